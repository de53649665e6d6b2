package doctor

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// startError is why the container runtime did not start a pod, in its own words.
type startError struct {
	pod  *corev1.Pod
	node *Node
	// id is the finding that the words stand for, and name what they name: a handler, a file, a runtime type, CDI
	// devices.
	id, name string
	// sandbox reports whether already the pod's sandbox could not be made.
	sandbox  bool
	evidence Evidence
}

// startPattern is how runtimes say that something is wrong. The first group is what they name.
type startPattern struct {
	id string
	re *regexp.Regexp
}

// handlerName is how a handler or a RuntimeClass is named. Events are anybody's who may write them, and these names go
// into commands.
const handlerName = `([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)`

// Texts of containerd 1.7.28 and 2.3.4, where not noted, as pods' events have them. What comes before them differs
// between releases.
var startPatterns = []startPattern{
	{"rt.handler-missing", regexp.MustCompile(`no runtime for "` + handlerName + `" is configured`)},
	// dockershim
	{"rt.handler-missing", regexp.MustCompile(`RuntimeHandler "` + handlerName + `" not supported`)},
	// CRI-O
	{"rt.handler-missing", regexp.MustCompile(`failed to find runtime handler ` + handlerName + ` from runtime list`)},
	// The shim
	{"rt.runtime-type", regexp.MustCompile(`runtime "([^"]+)" binary not installed`)},
	// BinaryName
	{"rt.binary-missing", regexp.MustCompile(`unable to retrieve OCI runtime error.*fork/exec (/[^\s:]+): `)},
	{
		"rt.binary-missing",
		regexp.MustCompile(`unable to retrieve OCI runtime error.*exec: "([^"]+)": executable file not found`),
	},
	{"rt.cgroup-driver", regexp.MustCompile(`expected cgroupsPath to be of format "(slice:prefix:name)"`)}, // runc
	{"cdi.unresolvable", regexp.MustCompile(`unresolvable CDI devices? ([^\n]+)`)},
	{"cdi.unresolvable", regexp.MustCompile(`failed to stat CDI host device "?([^":\s]+)`)},
	// The kubelet
	{"rc.handler-mismatch", regexp.MustCompile(`runtimeclasses?\.node\.k8s\.io "` + handlerName + `" not found`)},
	// The API server
	{"rc.handler-mismatch", regexp.MustCompile(`RuntimeClass "` + handlerName + `" not found`)},
	{"docker.no-gpu-driver", regexp.MustCompile(`could not select device driver "([^"]*)" with capabilities: \[\[gpu`)},
	{"rt.shim-skew", regexp.MustCompile(`failed to create TTRPC connection: (dial unix \S+)`)},
	{"rt.shim-skew", regexp.MustCompile(`(unsupported shim version[^\n]*)`)},
	{"sec.selinux", regexp.MustCompile(`(?i)nvml[^\n]*: (insufficient permissions)`)},
}

// recognize finds what the words of a runtime stand for; the ID is empty when it is none of ours.
func recognize(text string) (id, name string) {
	for _, p := range startPatterns {
		if m := p.re.FindStringSubmatch(text); m != nil {
			return p.id, strings.TrimSpace(clip(m[1]))
		}
	}
	return "", ""
}

const failedSandbox = "FailedCreatePodSandBox"

// findStartErrors reads what the runtimes say about pods that do not start, by node. A pod that has started since is no
// evidence.
func (f *Facts) findStartErrors() map[*Node][]startError {
	all := map[*Node][]startError{}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		n := f.nodes[pod.Spec.NodeName]
		if n == nil || Ended(pod) || podReady(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		restarted := n.runtimeStarted()
		for _, e := range f.runtimeSaid(pod) {
			if said := e.evidence.Time; !said.IsZero() && said.Before(restarted) {
				continue // of a configuration that the runtime has no more
			}
			e.pod, e.node, e.evidence = pod, n, clipped(e.evidence)
			e.id, e.name = recognize(e.evidence.Text)
			all[n] = append(all[n], e)
		}
	}
	return all
}

// runtimeSaid returns the newest words about a pod's sandbox, and those of its containers that wait.
func (f *Facts) runtimeSaid(pod *corev1.Pod) []startError {
	var all []startError
	events := f.EventsOfPod(pod)
	newest := func(reasons ...string) *corev1.Event {
		n := slices.IndexFunc(events, func(e *corev1.Event) bool {
			return slices.Contains(reasons, e.Reason)
		})
		if n < 0 {
			return nil
		}
		return events[n]
	}
	if !hasSandbox(pod) {
		if e := newest(failedSandbox); e != nil {
			return []startError{{sandbox: true, evidence: Quote(e)}}
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Message != "" && w.Reason != "ContainerCreating" &&
			w.Reason != "PodInitializing" {
			all = append(all, startError{
				evidence: fieldEvidence(PodObject(pod), "container "+s.Name+" .state.waiting", "%s: %s", w.Reason,
					w.Message),
			})
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && t.Message != "" && (t.Reason == "StartError" || t.Reason == "ContainerCannotRun") {
				all = append(all, startError{evidence: fieldEvidence(PodObject(pod), "container "+s.Name+" .terminated",
					"%s: %s", t.Reason, t.Message)})
			}
		}
	}
	if e := newest("Failed"); e != nil && len(all) == 0 && !strings.Contains(e.Message, "ImagePull") &&
		!strings.Contains(e.Message, "pull image") {
		all = append(all, startError{evidence: Quote(e)})
	}
	return all
}

// hasSandbox reports whether the pod's sandbox was made, so that older words about it are of no concern.
func hasSandbox(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers {
			return c.Status == corev1.ConditionTrue
		}
	}
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses),
		func(s corev1.ContainerStatus) bool {
			return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
		})
}

// errorsOf returns the start errors of an ID on a node, by what they name.
func (f *Facts) errorsOf(id string, n *Node) []errorGroup {
	var all []errorGroup
	for _, e := range f.startErrors()[n] {
		if e.id != id {
			continue
		}
		i := slices.IndexFunc(all, func(g errorGroup) bool { return g.name == e.name })
		if i < 0 {
			i, all = len(all), append(all, errorGroup{name: e.name})
		}
		all[i].errors = append(all[i].errors, e)
	}
	return all
}

// errorGroup is what the runtime of a node says of one thing, about whichever pods.
type errorGroup struct {
	name   string
	errors []startError
}

// pods returns those of which the runtime says it.
func (g errorGroup) pods() []string {
	var all []string
	for _, e := range g.errors {
		all = append(all, e.pod.Namespace+"/"+e.pod.Name)
	}
	return all
}

// evidence returns the first quotations.
func (g errorGroup) evidence() []Evidence {
	var all []Evidence
	for _, e := range g.errors[:min(len(g.errors), 2)] {
		all = append(all, e.evidence)
	}
	return all
}

// errorsOn returns the errors of an ID on a node, whatever they name; without errors when there are none.
func (f *Facts) errorsOn(id string, n *Node) errorGroup {
	var all errorGroup
	for _, g := range f.errorsOf(id, n) {
		all.name, all.errors = g.name, append(all.errors, g.errors...)
	}
	return all
}
