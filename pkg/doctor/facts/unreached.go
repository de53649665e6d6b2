package facts

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Pods that do not get on because somebody does not answer, by their own words.

// stuckTime is how long a container may try before its words count: Services and their pods come up in any order.
const stuckTime = 20 * time.Second

// How much is looked at.
const (
	logEnd       = 60 // of a log: a container that has got on since says other things at its end
	mostAsked    = 4  // Services of one pod
	mostServices = 12 // of all
)

// Unreached is a pod that does not get on.
type Unreached struct {
	Pod  *corev1.Pod
	Said finding.Evidence
	// Names says that it gets no answer for names.
	Names bool
	Asks  []ServiceRef
}

// ServiceRef is a Service as a program names it. Port is 0 where it names none.
type ServiceRef struct {
	Namespace, Name string
	Port            int32
}

var (
	// noNameTexts are what programs say whose DNS server does not answer: glibc, musl, Go, Node, curl, busybox, bind,
	// apt.
	noNameTexts = regexp.MustCompile(`(?i)no servers could be reached|temporary failure (in name resolution|resolving)|could(n't| not) resolve|bad address|` +
		`name or service not known|eai_again|server misbehaving|\[errno -3\]|\blookup \S+.*(i/o timeout|deadline exceeded|timed out)|resolving timed out|name resolution.*(failed|timed out)`)
	// noAnswerTexts are what they say when a connection gets no answer. A timeout alone may be a setting.
	noAnswerTexts = regexp.MustCompile(
		`(?i)timed out|i/o timeout|deadline exceeded|timeout exceeded|etimedout|(connect|connection|read|request) ?time-?out`,
	)
	// refusedTexts are what they say where policies refuse, as kube-router's do, and do not drop.
	refusedTexts = regexp.MustCompile(`(?i)connection refused|no route to host|host is unreachable|econnrefused`)
	// serviceNames are names of Services as Kubernetes makes them, with a scheme before and a port after, or a port as
	// nc takes it.
	serviceNames = regexp.MustCompile(
		`(https?://)?\b([a-z0-9][-a-z0-9]{0,62})\.([a-z0-9][-a-z0-9]{0,62})\.svc\b(?:\.[a-z0-9][-.a-z0-9]*)?(?:[: ]([0-9]{1,5})(?:[^.0-9]|$))?`,
	)
)

// servicesNamed returns the Services that a text names, each once, the first first.
func servicesNamed(text string) []ServiceRef {
	var all []ServiceRef
	for _, m := range serviceNames.FindAllStringSubmatch(text, -1) {
		ref := ServiceRef{Namespace: m[3], Name: m[2]}
		port, err := strconv.ParseUint(m[4], 10, 16)
		switch {
		case err == nil:
			ref.Port = int32(port)
		case m[1] == "http://":
			ref.Port = 80
		case m[1] == "https://":
			ref.Port = 443
		}
		all = withService(all, ref)
	}
	return all
}

// withService adds a Service. Of one that is named twice the mention counts that has a port.
func withService(all []ServiceRef, more ...ServiceRef) []ServiceRef {
	for _, ref := range more {
		at := slices.IndexFunc(all,
			func(r ServiceRef) bool { return r.Namespace == ref.Namespace && r.Name == ref.Name })
		switch {
		case !shell.IsSubdomain(ref.Name) || !shell.IsSubdomain(ref.Namespace):
		case at < 0:
			all = append(all, ref)
		default:
			all[at].Port = cmp.Or(all[at].Port, ref.Port)
		}
	}
	return all
}

// Unreached returns the namespaces of GPU pods and components that do not get on because somebody does not answer them,
// and the Services that these ask for: of both the few that are worth to be looked at.
func (f *Facts) Unreached() (namespaces []string, services []ServiceRef) {
	for _, u := range f.UnreachedPods() {
		namespaces = append(namespaces, u.Pod.Namespace)
		services = withService(services, u.Asks...)
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces), services[:min(len(services), mostServices)]
}

// findUnreached looks at the logs of pods that do not get on. Pods of the host's network know no policies.
func (f *Facts) findUnreached() []Unreached {
	var all []Unreached
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Spec.HostNetwork ||
			len(f.LogsOf(pod)) == 0 || f.Concerns(pod) != finding.Error {
			continue
		}
		for _, container := range f.stuck(pod) {
			if u, found := f.unanswered(pod, container); found {
				all = append(all, u)
				break
			}
		}
	}
	return all
}

// stuck returns the containers of a pod that keep it from getting on: they fail, or run and do not end or become ready.
func (f *Facts) stuck(pod *corev1.Pod) []string {
	var all []string
	for _, t := range f.Troubles(pod) {
		all = append(all, t.Container)
	}
	runs := func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil && f.Now.Sub(s.State.Running.StartedAt.Time) >= stuckTime
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if runs(s) && !isSidecar(pod, s.Name) {
			all = append(all, s.Name)
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		if runs(s) && !s.Ready && !RunsReady(pod) {
			all = append(all, s.Name)
		}
	}
	return all
}

func isSidecar(pod *corev1.Pod, container string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == container && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	})
}

// unanswered reports whether a container says at the end of its log that somebody does not answer, and whom it asks.
func (f *Facts) unanswered(pod *corev1.Pod, container string) (Unreached, bool) {
	u := Unreached{Pod: pod}
	var text string
	for _, l := range f.LogsOf(pod) {
		if l.Container != container {
			continue
		}
		lines := strings.Split(strings.TrimRight(l.Text, "\r\n"), "\n")
		lines = lines[max(0, len(lines)-logEnd):]
		text += strings.Join(lines, "\n") + "\n"
		for _, line := range lines {
			noName := noNameTexts.MatchString(line)
			if noName && !u.Names || u.Said.Text == "" &&
				(noAnswerTexts.MatchString(line) || f.policiesRefuse(pod) && refusedTexts.MatchString(line)) {
				u.Said = finding.Evidence{Source: LogSource(l), Text: words.Cut(strings.TrimSpace(line))}
				u.Names = u.Names || noName
			}
		}
	}
	if u.Said.Text == "" {
		return u, false
	}
	u.Asks = servicesNamed(text)
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == container {
			u.Asks = withService(u.Asks, servicesNamed(strings.Join(slices.Concat(c.Command, c.Args), "\n"))...)
		}
	}
	u.Asks = u.Asks[:min(len(u.Asks), mostAsked)]
	return u, true
}

// LogSource says where a log's lines are, for evidence.
func LogSource(l *snapshot.Log) string {
	source := "log of Pod " + l.Namespace + "/" + l.Pod + ", container " + l.Container
	switch {
	case l.Previous:
		source += ", its run before"
	case l.Head:
		source += ", its beginning"
	}
	return source
}

// policiesRefuse reports whether the network plugin answers what policies deny with a refusal: kube-router does, which
// is in k3s.
func (f *Facts) policiesRefuse(pod *corev1.Pod) bool {
	n := f.Node(pod.Spec.NodeName)
	return n != nil && n.Distribution == K3s || f.HasDaemonSet("kube-router")
}

// HasDaemonSet reports whether the cluster has a DaemonSet with this in its name.
func (f *Facts) HasDaemonSet(part string) bool {
	return slices.ContainsFunc(f.DaemonSets, func(ds appsv1.DaemonSet) bool { return strings.Contains(ds.Name, part) })
}
