package runtime

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// startError is an error message from the container runtime about a pod that does not start.
type startError struct {
	pod  *corev1.Pod
	node *facts.Node
	// id is the ID of the finding that the message indicates. name is the handler, file, runtime type or CDI devices
	// that the message names.
	id, name string
	// sandbox is true if creating the pod's sandbox failed.
	sandbox  bool
	evidence finding.Evidence
}

const failedSandbox = "FailedCreatePodSandBox"

// startErrors returns the start errors for pods, by node.
func startErrors(f *facts.Facts) map[*facts.Node][]startError { return facts.Once(f, findStartErrors) }

// findStartErrors returns the start errors for pods, by node. It ignores pods that have started since.
func findStartErrors(f *facts.Facts) map[*facts.Node][]startError {
	all := map[*facts.Node][]startError{}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		n := f.Node(pod.Spec.NodeName)
		if n == nil || facts.Ended(pod) || podutils.IsPodReady(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		restarted := runtimeStarted(n)
		for _, e := range runtimeSaid(f, pod) {
			if said := e.evidence.Time; !said.IsZero() && said.Before(restarted) {
				continue // the error predates the runtime's current configuration
			}
			e.pod, e.node, e.evidence = pod, n, finding.Clipped(e.evidence)
			e.id, e.name = facts.Recognize(e.evidence.Text)
			all[n] = append(all[n], e)
		}
	}
	return all
}

// runtimeSaid returns the newest error about a pod's sandbox. If there is none, it returns the errors of the pod's
// containers.
func runtimeSaid(f *facts.Facts, pod *corev1.Pod) []startError {
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
			return []startError{{sandbox: true, evidence: facts.Quote(e)}}
		}
	}
	for s := range facts.Statuses(pod) {
		if w := s.State.Waiting; w != nil && w.Message != "" && w.Reason != "ContainerCreating" &&
			w.Reason != "PodInitializing" {
			all = append(all, startError{
				evidence: finding.FieldEvidence(facts.PodObject(pod), "container "+s.Name+" .state.waiting", "%s: %s",
					w.Reason,
					w.Message),
			})
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && t.Message != "" && (t.Reason == "StartError" || t.Reason == "ContainerCannotRun") {
				all = append(all,
					startError{evidence: finding.FieldEvidence(facts.PodObject(pod), "container "+s.Name+" .terminated",
						"%s: %s", t.Reason, t.Message)})
			}
		}
	}
	if e := newest("Failed"); e != nil && len(all) == 0 && !strings.Contains(e.Message, "ImagePull") &&
		!strings.Contains(e.Message, "pull image") {
		all = append(all, startError{evidence: facts.Quote(e)})
	}
	return all
}

// hasSandbox reports whether the pod has a sandbox, which makes older errors about the sandbox irrelevant.
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

// errorsOf returns the start errors with the given ID on a node, grouped by name.
func errorsOf(f *facts.Facts, id string, n *facts.Node) []errorGroup {
	var all []errorGroup
	for _, e := range startErrors(f)[n] {
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

// errorGroup is a group of start errors with the same name on a node.
type errorGroup struct {
	name   string
	errors []startError
}

// pods returns the names of the affected pods.
func (g errorGroup) pods() []string {
	var all []string
	for _, e := range g.errors {
		all = append(all, e.pod.Namespace+"/"+e.pod.Name)
	}
	return all
}

// evidence returns the first two messages.
func (g errorGroup) evidence() []finding.Evidence {
	var all []finding.Evidence
	for _, e := range g.errors[:min(len(g.errors), 2)] {
		all = append(all, e.evidence)
	}
	return all
}

// errorsOn returns all start errors with the given ID on a node as one group, which may be empty.
func errorsOn(f *facts.Facts, id string, n *facts.Node) errorGroup {
	var all errorGroup
	for _, g := range errorsOf(f, id, n) {
		all.name, all.errors = g.name, append(all.errors, g.errors...)
	}
	return all
}
