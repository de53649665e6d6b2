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

// RunsOn returns the container of a service mesh that alone still runs in a pod whose other containers have all
// completed, and since when, or "".
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

// proxyOf returns the name of the container of a service mesh that takes the connections of the pod, or "".
func proxyOf(pod *corev1.Pod) string {
	for c := range Containers(pod) {
		always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		init := slices.ContainsFunc(pod.Spec.InitContainers,
			func(i corev1.Container) bool { return i.Name == c.Name })
		if init && !always {
			continue // it only redirects the connections
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
	// excluded matches annotations that keep connections of a pod away from its proxy.
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

// jobOf returns the kind and name of the distributed job that a pod is a rank of, or "".
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
	// failing are the ranks that fail, and own those that fail for another reason than a connection.
	failing, own int
}

type jobs map[[3]string]*job

// findJobs returns the distributed jobs with a proxy in their pods, by namespace, kind and name.
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

// failsItself reports whether a rank fails for another reason than a connection, as far as known.
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

// meshed reports that a service mesh has its proxy in the pods of a distributed job, and that no rank fails for another
// reason. A running rank counts if it has been at the rendezvous for long.
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
		text += ", which wait at the rendezvous"
	}
	return PodObject(pod).String() + ", container " + proxy + ", and the other pods of the job", text
}

const longRendezvous = 10 * time.Minute

var rendezvous = regexp.MustCompile(
	`(?i)init_process_group|using distributed|rendezvous|torchrun|NCCL INFO Bootstrap|init method|` +
		`waiting for (?:all )?(?:ranks|workers|peers|processes|clients)|still waiting for response from worker`,
)

// atRendezvous reports whether the log of a rank has ended at the rendezvous for long.
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

// redirects matches the init containers of meshes, and validates those of them that only check a redirection that a CNI
// plugin set up: it applies to all init containers.
var (
	redirects = regexp.MustCompile(
		`^(?:istio|linkerd|kuma)-(?:init|validation|network-validator)$|^consul-connect-inject-init$`,
	)
	validates = regexp.MustCompile(`validat`)
	// connects matches commands that need a connection.
	connects = regexp.MustCompile(`https?://|\bnc\b.* -\w*z|/dev/tcp/|wait-?for|pg_isready|redis-cli`)
)

// BeforeProxy reports an init container that has needed a connection for long, although a service mesh redirects its
// connections to a proxy that starts after it. Native sidecars start before.
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
			return "", "" // perhaps of this connection
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

// asUserOf reports whether a container runs as the user of the proxy, whose connections are not redirected.
func asUserOf(c, proxy *corev1.Container) bool {
	if c.SecurityContext == nil || c.SecurityContext.RunAsUser == nil {
		return false
	}
	user := int64(1337) // Istio's
	if s := proxy.SecurityContext; s != nil && s.RunAsUser != nil {
		user = *s.RunAsUser
	}
	return *c.SecurityContext.RunAsUser == user
}

// longConnecting is how long an init container may try to connect.
const longConnecting = 5 * time.Minute

// lacksConnection reports whether an init container fails with an error of a connection, or has run for long with a
// command that needs one.
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
