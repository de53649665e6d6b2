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

// This file finds pods whose logs show that they are stuck because a server does not respond.

// stuckTime is the time for which a container may try to connect before its log is considered, because Services and
// their pods start in any order.
const stuckTime = 20 * time.Second

// These constants limit the analysis.
const (
	logEnd       = 60 // lines at the end of a log; a container that has recovered since then logs other lines
	mostAsked    = 4  // Services per pod
	mostServices = 12 // Services in total
)

// Unreached is a pod that is stuck because a server does not respond.
type Unreached struct {
	Pod  *corev1.Pod
	Said finding.Evidence
	// Names is true if name resolution fails.
	Names bool
	Asks  []ServiceRef
}

// ServiceRef is a Service named by a program. Port is 0 if the program did not specify a port.
type ServiceRef struct {
	Namespace, Name string
	Port            int32
}

var (
	// noNameTexts matches errors logged by programs whose DNS server does not respond: glibc, musl, Go, Node, curl,
	// busybox, bind, apt.
	noNameTexts = regexp.MustCompile(`(?i)no servers could be reached|temporary failure (in name resolution|resolving)|could(n't| not) resolve|bad address|` +
		`name or service not known|eai_again|server misbehaving|\[errno -3\]|\blookup \S+.*(i/o timeout|deadline exceeded|timed out)|resolving timed out|name resolution.*(failed|timed out)`)
	// noAnswerTexts matches errors about connections that get no response. The word "timeout" alone does not match,
	// because it may be the name of a setting.
	noAnswerTexts = regexp.MustCompile(
		`(?i)timed out|i/o timeout|deadline exceeded|timeout exceeded|etimedout|(connect|connection|read|request) ?time-?out|` +
			`failed to connect to \S+ port \d+ after \d{5,} ms`,
	)
	// refusedTexts matches errors about connections that policies reject instead of dropping, as with kube-router.
	refusedTexts = regexp.MustCompile(`(?i)connection refused|no route to host|host is unreachable|econnrefused`)
	// serviceNames matches DNS names of Services, with an optional scheme and an optional port, including a port that
	// is an argument of nc.
	serviceNames = regexp.MustCompile(
		`(https?://)?\b([a-z0-9][-a-z0-9]{0,62})\.([a-z0-9][-a-z0-9]{0,62})\.svc\b(?:\.[a-z0-9][-.a-z0-9]*)?(?:[: ]([0-9]{1,5})(?:[^.0-9]|$))?`,
	)
)

// servicesNamed returns the distinct Services that a text names, in order of appearance.
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

// withService adds Services to a list. If a Service occurs twice, the reference with a port is kept.
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

// Unreached returns the namespaces of GPU pods and components that are stuck because a server does not respond, and the
// Services that these pods connect to. Both lists are limited to a few entries.
func (f *Facts) Unreached() (namespaces []string, services []ServiceRef) {
	for _, u := range f.UnreachedPods() {
		namespaces = append(namespaces, u.Pod.Namespace)
		services = withService(services, u.Asks...)
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces), services[:min(len(services), mostServices)]
}

// findUnreached searches the logs of stuck pods. It skips pods on the host network because NetworkPolicies do not apply
// to them.
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

// stuck returns the containers that prevent a pod from becoming ready: they fail, or run without completing or becoming
// ready.
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

// unanswered reports whether the end of a container's log shows that a server does not respond. It also returns the
// Services named in the log.
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
				u.Said = finding.Evidence{Source: LogSource(l), Text: words.Clip(strings.TrimSpace(line))}
				u.Names = u.Names || noName
			}
		}
	}
	if u.Said.Text == "" {
		return u, false
	}
	u.Asks = servicesNamed(text)
	for c := range Containers(pod) {
		if c.Name == container {
			u.Asks = withService(u.Asks, servicesNamed(strings.Join(slices.Concat(c.Command, c.Args), "\n"))...)
			u.Asks = withService(u.Asks, named(c.Env, u.Said.Text)...)
		}
	}
	u.Asks = u.Asks[:min(len(u.Asks), mostAsked)]
	return u, true
}

// named returns the Services that occur in a container's environment variables and that a message refers to by a name
// such as NATS.
func named(env []corev1.EnvVar, said string) []ServiceRef {
	var all []ServiceRef
	said = strings.ToLower(said)
	for _, e := range env {
		for _, ref := range servicesNamed(e.Value) {
			if slices.ContainsFunc(strings.Split(ref.Name, "-"),
				func(word string) bool { return len(word) > 3 && strings.Contains(said, word) }) {
				all = withService(all, ref)
			}
		}
	}
	return all
}

// LogSource describes the source of a log's lines in evidence.
func LogSource(l *snapshot.Log) string {
	source := "log of Pod " + l.Namespace + "/" + l.Pod + ", container " + l.Container
	switch {
	case l.Previous:
		source += ", previous instance"
	case l.Head:
		source += ", first lines"
	}
	return source
}

// policiesRefuse reports whether the network plugin rejects denied connections instead of dropping packets.
// kube-router, which is part of k3s, rejects them.
func (f *Facts) policiesRefuse(pod *corev1.Pod) bool {
	n := f.Node(pod.Spec.NodeName)
	return n != nil && n.Distribution == K3s || f.HasDaemonSet("kube-router")
}

// HasDaemonSet reports whether the cluster has a DaemonSet whose name contains part.
func (f *Facts) HasDaemonSet(part string) bool {
	return slices.ContainsFunc(f.DaemonSets, func(ds appsv1.DaemonSet) bool { return strings.Contains(ds.Name, part) })
}
