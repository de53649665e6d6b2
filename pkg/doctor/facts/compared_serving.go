package facts

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// kserveDefaults reports an InferenceService that requests no resources and whose container therefore has the limits
// that KServe sets by default.
func (f *Facts) kserveDefaults(pod *corev1.Pod, _ *Node) (source, text string) {
	if kind, _ := GeneratedBy(pod); kind != "InferenceService" || f.AsksForGPU(pod) {
		return "", ""
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		is := func(list corev1.ResourceList) bool {
			return list.Cpu().String() == "1" && list.Memory().String() == "2Gi"
		}
		if c.Name == "kserve-container" && is(c.Resources.Limits) && is(c.Resources.Requests) {
			return PodObject(pod).String() + ", container " + c.Name + " .resources",
				"conflict: KServe's defaults of 1 CPU and 2Gi memory in container " + c.Name + ", no GPU requested"
		}
	}
	return "", ""
}

// withoutSidecar reports a pod with a volume of GKE's CSI driver for Cloud Storage, if the pod has neither the sidecar
// nor the annotation that makes GKE add it.
func (f *Facts) withoutSidecar(pod *corev1.Pod, _ *Node) (source, text string) {
	const driver, annotation = "gcsfuse.csi.storage.gke.io", "gke-gcsfuse/volumes"
	for c := range Containers(pod) {
		if strings.HasPrefix(c.Name, "gke-gcsfuse-") {
			return "", ""
		}
	}
	at := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.CSI != nil && v.CSI.Driver == driver
	})
	if at < 0 || pod.Annotations[annotation] == "true" {
		return "", ""
	}
	return PodObject(pod).String() + " .spec.volumes, .spec.containers and .metadata.annotations",
		"conflict: volume " + pod.Spec.Volumes[at].Name + " of " + driver + ", no annotation " + annotation +
			" and no sidecar"
}

// listensAt matches the line with which a server logs its address and port.
var listensAt = regexp.MustCompile(`(?i)\b(?:running|listening|serving|started)\b[^\n]{0,30}?(?:\bon|\bat|URL):? +` +
	`(?:\w+://)?(localhost|\*?|[0-9.]+|\[[0-9a-f:]*\]):(\d{2,5})\b`)

// listener is an address at which a container's program listens, according to its log.
type listener struct{ source, host, port, line string }

func (l listener) isLoopback() bool {
	return l.host == "localhost" || l.host == "[::1]" || strings.HasPrefix(l.host, "127.")
}

// listenersOf returns the addresses at which the only container of a pod listens.
func (f *Facts) listenersOf(pod *corev1.Pod) (all []listener) {
	if len(pod.Spec.Containers) != 1 || pod.Spec.HostNetwork {
		return nil // a proxy in another container may forward connections
	}
	for _, l := range slices.Concat(f.HeadsOf(pod), f.LogsOf(pod)) {
		if l.Previous || l.Container != pod.Spec.Containers[0].Name {
			continue
		}
		for _, m := range listensAt.FindAllStringSubmatch(l.Text, -1) {
			all = append(all, listener{LogSource(l), m[1], m[2], words.Clip(m[0])})
		}
	}
	return all
}

// onlyOnLoopback returns the only address at which the pod's program listens, if it is a loopback address. ok is
// false if the pod is ready and a probe connects to this port: the program then also listens elsewhere.
func (f *Facts) onlyOnLoopback(pod *corev1.Pod) (l listener, ok bool) {
	all := f.listenersOf(pod)
	for i, next := range all {
		if !next.isLoopback() || i > 0 && next.port != l.port {
			return l, false
		}
		l = next
	}
	return l, len(all) > 0 && !(isProbed(pod, l.port) && RunsReady(pod))
}

// isProbed reports whether a probe of the pod's first container connects to the port.
func isProbed(pod *corev1.Pod, port string) bool {
	c := &pod.Spec.Containers[0]
	for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if strconv.Itoa(int(probedPort(c, p))) == port {
			return true
		}
	}
	return false
}

// unserved reports a Service that uses a port of a pod whose program listens only on a loopback address. If the port
// differs, too, another program in the container may serve it, unless the address is the program's default.
func (f *Facts) unserved(pod *corev1.Pod, _ *Node) (source, text string) {
	l, ok := f.onlyOnLoopback(pod)
	if !ok {
		return "", ""
	}
	_, why := f.loopbackOnly(pod, nil)
	for i := range f.Services {
		s := &f.Services[i]
		if s.Namespace != pod.Namespace || len(s.Spec.Selector) == 0 ||
			!labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			continue
		}
		for _, p := range s.Spec.Ports {
			port := p.TargetPort.String()
			if port == "0" {
				port = strconv.Itoa(int(p.Port))
			}
			for _, named := range pod.Spec.Containers[0].Ports {
				if named.Name == port {
					port = strconv.Itoa(int(named.ContainerPort))
				}
			}
			if port == l.port || strings.Contains(why, ", the default of ") {
				return "Service " + s.Namespace + "/" + s.Name + " .spec.ports, and " + l.source, "conflict: Service " +
					s.Name + " uses port " + port + ", the program listens only on " + l.host + ":" + l.port
			}
		}
	}
	return "", ""
}

// otherFamily reports a program that listens on IPv4 although its pod has only IPv6 addresses.
func (f *Facts) otherFamily(pod *corev1.Pod, _ *Node) (source, text string) {
	if len(pod.Status.PodIPs) == 0 || slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		return !strings.Contains(ip.IP, ":")
	}) {
		return "", ""
	}
	for _, l := range f.listenersOf(pod) {
		if l.host != "0.0.0.0" || isProbed(pod, l.port) && RunsReady(pod) {
			return "", ""
		}
		c := &pod.Spec.Containers[0]
		if !isProbed(pod, l.port) && !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			return strconv.Itoa(int(p.ContainerPort)) == l.port
		}) {
			continue
		}
		source, text = l.source+", and "+PodObject(pod).String()+" .status.podIPs",
			"conflict: listens on 0.0.0.0:"+l.port+", the pod has only the IPv6 address "+pod.Status.PodIPs[0].IP
	}
	return source, text
}

// Responds returns the last line in a container's log about a successful response to a probe, if the line is from the
// last minutes.
func (f *Facts) Responds(pod *corev1.Pod, container, path string) (finding.Evidence, bool) {
	for _, l := range f.LogsOf(pod) {
		if l.Container != container || l.Previous {
			continue
		}
		at := strings.LastIndex(l.Text, "GET "+path+" ")
		line := l.Text[strings.LastIndex(l.Text[:max(at, 0)], "\n")+1:]
		line, _, _ = strings.Cut(line, "\n")
		logged, stamped := timeOf(line, f.Now)
		if at >= 0 && stamped && strings.Contains(line, " 200") && f.Now.Sub(logged).Abs() < 2*time.Minute {
			return finding.Evidence{Source: LogSource(l), Time: logged, Text: words.Clip(line)}, true
		}
	}
	return finding.Evidence{}, false
}
