package facts

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// RunsOn returns the service mesh container that is still running although all other containers in the pod have
// completed, and the time of their completion. It returns "" if there is none.
func RunsOn(pod *corev1.Pod) (proxy string, since time.Time) {
	if pod.Status.Phase != corev1.PodRunning || pod.Spec.RestartPolicy == corev1.RestartPolicyAlways ||
		pod.Spec.RestartPolicy == "" || pod.DeletionTimestamp != nil {
		return "", since
	}
	for i := range pod.Status.ContainerStatuses {
		switch s := &pod.Status.ContainerStatuses[i]; {
		case s.Name == proxyOf(pod) && s.State.Running != nil:
			proxy = s.Name
		case s.State.Terminated == nil || s.State.Terminated.ExitCode != 0:
			return "", since
		case s.State.Terminated.FinishedAt.After(since):
			since = s.State.Terminated.FinishedAt.Time
		}
	}
	if since.IsZero() {
		return "", since
	}
	return proxy, since
}

// proxyOf returns the name of the service mesh container that intercepts the pod's connections, or "" if there is none.
func proxyOf(pod *corev1.Pod) string {
	for c := range Containers(pod) {
		always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		init := slices.ContainsFunc(pod.Spec.InitContainers,
			func(i corev1.Container) bool { return i.Name == c.Name })
		if init && !always {
			continue // the container only sets up the redirection
		}
		if slices.Contains([]string{
			"istio-proxy", "linkerd-proxy", "consul-dataplane", "kuma-sidecar", "envoy-sidecar", "osm-envoy",
		}, c.Name) || proxyImage.MatchString(c.Image) {
			return c.Name
		}
	}
	return ""
}

var (
	proxyImage = regexp.MustCompile(`istio/proxyv2|linkerd(?:-io|2)?/(?:\w+-)?proxy\b|kuma-dp|consul-dataplane`)
	// excluded matches annotations that exclude some of the pod's connections from the proxy.
	excluded = regexp.MustCompile(
		`^traffic\.sidecar\.istio\.io/(?:ex|in)clude|^config\.linkerd\.io/skip-(?:in|out)bound-ports$|` +
			`^traffic\.kuma\.io/exclude-|^consul\.hashicorp\.com/transparent-proxy(?:-exclude-.*)?$`,
	)
	unconnected = regexp.MustCompile(
		`(?i)connection (?:was )?(?:reset|refused|closed)|broken pipe|got 0 bytes|recvValue failed|timed? ?out|unreachable|` +
			`\w*Rendezvous\w*Error|Dist(?:Store|Network)Error|ncclRemoteError|ncclSystemError|` +
			`failed to connect to (?:GCS|all addresses)|StatusCode\.UNAVAILABLE`,
	)
)

// jobOf returns the kind and name of the distributed job in which a pod is a rank, or "" if there is none.
func jobOf(pod *corev1.Pod) (kind, name string) {
	for _, by := range []struct{ label, kind string }{
		{"jobset.sigs.k8s.io/jobset-name", "JobSet"}, {"leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"},
		{"ray.io/cluster", "RayCluster"}, {"volcano.sh/job-name", "Volcano Job"},
		{"training.kubeflow.org/job-name", ""}, {"pytorch-job-name", "PyTorchJob"}, {"tf-job-name", "TFJob"},
		{"mpi-job-name", "MPIJob"}, {"batch.kubernetes.io/job-completion-index", "Job"},
	} {
		value, ok := pod.Labels[by.label]
		owner := metav1.GetControllerOfNoCopy(pod)
		switch {
		case !ok || value == "":
			continue
		case by.kind == "Job" && owner != nil:
			return "Job", owner.Name
		case by.kind == "" && owner != nil:
			return owner.Kind, value
		}
		return cmp.Or(by.kind, "job"), value
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && slices.Contains([]string{
		"PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "RayCluster",
	}, owner.Kind) {
		return owner.Kind, owner.Name
	}
	return "", ""
}

// job is a distributed job.
type job struct {
	pods []*corev1.Pod
	// failing is the number of ranks that are failing, and own is the number of ranks that are known to be failing for
	// a reason other than a failed connection.
	failing, own int
}

type jobs map[[3]string]*job

// findJobs returns the distributed jobs whose pods have a proxy, by namespace, kind and name.
func findJobs(f *Facts) jobs {
	all := jobs{}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		kind, name := jobOf(pod)
		if kind == "" || pod.DeletionTimestamp != nil || proxyOf(pod) == "" {
			continue
		}
		key := [3]string{pod.Namespace, kind, name}
		if all[key] == nil {
			all[key] = &job{}
		}
		j := all[key]
		j.pods = append(j.pods, pod)
		if troubles := f.Troubles(pod); len(troubles) > 0 {
			j.failing++
			if f.failsItself(pod, troubles) {
				j.own++
			}
		}
	}
	return all
}

// failsItself reports whether a rank is known to fail for a reason other than a failed connection.
func (f *Facts) failsItself(pod *corev1.Pod, troubles []Trouble) bool {
	proxy := proxyOf(pod)
	for _, t := range troubles {
		if t.Container != proxy && (!t.Ran || t.Reason == "OOMKilled" || t.ExitCode == 137) {
			return true
		}
	}
	logs := f.LogsOf(pod)
	for _, l := range logs {
		for line := range strings.Lines(l.Text) {
			if l.Container != proxy && unconnected.MatchString(line) {
				return false
			}
		}
	}
	return len(logs) > 0
}

// meshed reports a service mesh proxy in the pods of a distributed job, unless a rank fails for a reason other than a
// failed connection. If no rank fails, the pod must have been waiting at the rendezvous for a long time.
func (f *Facts) meshed(pod *corev1.Pod, n *Node) (source, text string) {
	if source, text = f.BeforeProxy(pod); text != "" {
		return source, text
	}
	kind, name := jobOf(pod)
	proxy := proxyOf(pod)
	if kind == "" || proxy == "" {
		return "", ""
	}
	for key := range pod.Annotations {
		if excluded.MatchString(key) {
			return "", ""
		}
	}
	j := Once(f, findJobs)[[3]string{pod.Namespace, kind, name}]
	if j == nil || len(j.pods) < 2 || j.own > 0 {
		return "", ""
	}
	text = "mesh: " + proxy + " between the ranks of " + kind + " " + name
	if j.failing == 0 {
		idle := Idle(n, pod)
		if n.GPUs().SMI != nil && (idle == nil || !*idle) || !f.atRendezvous(pod, proxy) {
			return "", ""
		}
		text += ", which are waiting at the rendezvous"
	}
	return PodObject(pod).String() + ", container " + proxy + ", and the other pods of the job", text
}

const longRendezvous = 10 * time.Minute

var rendezvous = regexp.MustCompile(
	`(?i)init_process_group|using distributed|rendezvous|torchrun|NCCL INFO Bootstrap|init method|` +
		`waiting for (?:all )?(?:ranks|workers|peers|processes|clients)|still waiting for response from worker`,
)

// atRendezvous reports whether a rank has been running for a long time and its log ends at the rendezvous.
func (f *Facts) atRendezvous(pod *corev1.Pod, proxy string) bool {
	for _, l := range f.LogsOf(pod) {
		if l.Container == proxy || l.Previous || !rendezvous.MatchString(words.LastLine(l.Text)) {
			continue
		}
		for i := range pod.Status.ContainerStatuses {
			s := &pod.Status.ContainerStatuses[i]
			if s.Name == l.Container && s.State.Running != nil &&
				f.Now.Sub(s.State.Running.StartedAt.Time) > longRendezvous {
				return true
			}
		}
	}
	return false
}

// redirects matches the names of service mesh init containers that redirect connections. validates matches those that
// only verify a redirection set up by a CNI plugin; such a redirection applies to all init containers.
var (
	redirects = regexp.MustCompile(
		`^(?:istio|linkerd|kuma)-(?:init|validation|network-validator)$|^consul-connect-inject-init$`,
	)
	validates = regexp.MustCompile(`validat`)
	// connects matches commands that need a connection.
	connects = regexp.MustCompile(`https?://|\bnc\b.* -\w*z|/dev/tcp/|wait-?for|pg_isready|redis-cli`)
)

// BeforeProxy reports an init container that has been trying to connect for a long time and whose connections a service
// mesh redirects to a proxy that starts later. Native sidecars start earlier, so they do not count.
func (f *Facts) BeforeProxy(pod *corev1.Pod) (source, text string) {
	proxy := containerNamed(pod, proxyOf(pod))
	at := slices.IndexFunc(pod.Spec.InitContainers,
		func(c corev1.Container) bool { return redirects.MatchString(c.Name) })
	if proxy == nil || at < 0 || pod.Spec.HostNetwork || pod.Status.Phase != corev1.PodPending ||
		!slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == proxy.Name }) {
		return "", ""
	}
	for key := range pod.Annotations {
		if excluded.MatchString(key) && !strings.Contains(strings.ToLower(key), "inbound") {
			return "", "" // the annotation may exclude this connection
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if redirects.MatchString(c.Name) || i < at && !validates.MatchString(pod.Spec.InitContainers[at].Name) ||
			asUserOf(c, proxy) || !f.lacksConnection(pod, c) {
			continue
		}
		return PodObject(pod).String() + " .spec.initContainers[" + c.Name + "] and .spec.containers[" +
				proxy.Name + "]",
			"mesh: init container " + c.Name + " needs a connection and runs before " + proxy.Name
	}
	return "", ""
}

// asUserOf reports whether a container runs as the same user as the proxy. Connections of this user are not redirected.
func asUserOf(c, proxy *corev1.Container) bool {
	if c.SecurityContext == nil || c.SecurityContext.RunAsUser == nil {
		return false
	}
	user := int64(1337) // Istio's default user
	if s := proxy.SecurityContext; s != nil && s.RunAsUser != nil {
		user = *s.RunAsUser
	}
	return *c.SecurityContext.RunAsUser == user
}

// longConnecting is the time after which an init container that is trying to connect is reported.
const longConnecting = 5 * time.Minute

// lacksConnection reports whether an init container fails with a connection error, or has been running for a long time
// and needs a connection, according to its command or its log.
func (f *Facts) lacksConnection(pod *corev1.Pod, c *corev1.Container) bool {
	said := ""
	for _, l := range f.LogsOf(pod) {
		if l.Container == c.Name {
			said += l.Text
		}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		switch {
		case s.Name != c.Name:
		case s.State.Running != nil && f.Now.Sub(s.State.Running.StartedAt.Time) > longConnecting:
			return connects.MatchString(strings.Join(slices.Concat(c.Command, c.Args), " ")) ||
				unconnected.MatchString(words.LastLine(said))
		case s.State.Terminated == nil || s.State.Terminated.ExitCode != 0:
			return s.LastTerminationState.Terminated != nil && unconnected.MatchString(said)
		}
	}
	return false
}
