package leftover

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cordon"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/daemonpod"
)

var (
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	leaseResource     = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
)

// fieldManager is the field manager with which this tool changes workloads.
const fieldManager = ledger.ManagedBy

// faultKinds are the commands whose runs have a record from the start. Other commands only read, and have no record.
var faultKinds = []string{"xid", "cuda", "runtime", "network", "device", "workload", "fleet"}

func ourLabel() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: ledger.LabelManagedBy + "=" + ledger.ManagedBy}
}

func isOurs(o metav1.Object) bool { return o.GetLabels()[ledger.LabelManagedBy] == ledger.ManagedBy }

func isRecord(o metav1.Object) bool {
	_, ok := o.GetLabels()[ledger.LabelFault]
	return ok && isOurs(o)
}

// labeled lists objects with this tool's label, except kinds that are already listed for their pod specs. It also lists
// nodes cordoned by this tool, which have no label.
func (s *search) labeled() []task {
	return []task{func(ctx context.Context) error {
		_, err := s.metadata(ctx, leaseResource, ourLabel(), func(o *metav1.PartialObjectMetadata) {
			s.ours = append(s.ours, labeledObject(leaseResource, "Lease", o))
		})
		return err
	}, func(ctx context.Context) error {
		_, err := s.metadata(ctx, chaosResource, ourLabel(), func(o *metav1.PartialObjectMetadata) {
			s.ours = append(s.ours, labeledObject(chaosResource, "NetworkChaos", o))
		})
		return err
	}, func(ctx context.Context) error {
		_, err := s.metadata(ctx, nodeResource, metav1.ListOptions{}, func(o *metav1.PartialObjectMetadata) {
			run := cordon.RunOf(o)
			if run == "" {
				return
			}
			left := leftoverOf(nodeResource, "Node", o, Ours, "cordoned by a simulated remediation")
			left.Run, left.Remedy, left.Todo = run, Nobody, "kubectl uncordon "+o.Name
			s.ours = append(s.ours, left)
		})
		return err
	}}
}

// labeledObject returns the potential leftover for an object with this tool's label.
func labeledObject(resource schema.GroupVersionResource, kind string, o metav1.Object) Leftover {
	what := "created by this tool"
	switch kind {
	case "Lease":
		what = "lock of " + cmp.Or(o.GetAnnotations()[ledger.AnnotationTarget], "a target")
	case kindJob:
		what = "expiry of a run"
	case "ConfigMap":
		what = "data of a run"
	case "NetworkChaos":
		what = "fault injected through Chaos Mesh"
	}
	left := leftoverOf(resource, kind, o, Ours, what)
	left.Run = cmp.Or(o.GetLabels()[ledger.LabelRun], runInName(o.GetName()))
	return left
}

// isCopy reports whether a pod was created by the nvml layer.
func isCopy(spec map[string]any) bool {
	var names []string
	for _, c := range elements(spec, "initContainers") {
		names = append(names, text(c, "name"))
	}
	return daemonpod.HasGate(names)
}

// podName matches the name of a run's pod and of its ConfigMap: gpu-fault-RUN-HASH.
var podName = regexp.MustCompile(`^gpu-fault-([a-z-]+-[a-z0-9]{6})-[0-9a-f]{8}$`)

// runInName returns the run that the name of a pod contains, because the pod's labels may have been removed. It returns
// "" for other names.
func runInName(name string) string {
	if m := podName.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return ""
}

// ourPod returns the potential leftover for a debug pod. busy reports whether the pod may be in use by a command that
// only reads and therefore has no record.
func ourPod(
	resource schema.GroupVersionResource, o *unstructured.Unstructured, now time.Time,
) (left Leftover, busy bool) {
	left = labeledObject(resource, kindPod, o)
	spec, _ := field(o.Object, "spec")
	status, _ := field(o.Object, "status")
	phase := text(status, "phase")
	what := "debug pod"
	if isCopy(spec) {
		what = "copy of a DaemonSet's pod"
	}
	left.What = []string{
		fmt.Sprintf("%s on node %s, %s", what, cmp.Or(text(spec, "nodeName"), "(none)"),
			cmp.Or(phase, "unknown phase")),
	}
	seconds, bounded, _ := unstructured.NestedInt64(o.Object, "spec", "activeDeadlineSeconds")
	kind, _, _ := strings.Cut(left.Run, "-")
	busy = left.Run != "" && !slices.Contains(faultKinds, kind) && phase != "Succeeded" && phase != "Failed" &&
		bounded && now.Before(left.Since.Add(time.Duration(seconds)*time.Second))
	return left, busy
}

// ofOurs handles an object with this tool's label according to the standing of the object's run.
func (s *search) ofOurs(left Leftover) {
	known := s.runs.of(left.Run)
	if left.Run == "" && s.runs.complete {
		known.standing = missing
	}
	switch known.standing {
	case inUse:
		s.inUse++
		return
	case overdue: // the leftover of the fault covers all of its objects
		return
	}
	left.judge(known)
	s.items = append(s.items, left)
}

// judge sets the remedy according to the standing of the run. The remedy is kept only if the run has certainly ended.
func (l *Leftover) judge(known knownRun) {
	switch known.standing {
	case closed:
		l.What = append(l.What, "the run is closed")
	case missing:
		l.What = append(l.What, "the run has no record")
	case ended:
		l.What = append(l.What, "the client exited without cleaning up")
		l.Remedy, l.Todo = Nobody, known.store.Command("revert", l.Run)
	case unreadable:
		l.What = append(l.What, "the record of the run cannot be read")
		l.Remedy, l.Todo = Nobody, fmt.Sprintf("kubectl get configmap %s -n %s -o yaml", l.Run, known.store.Namespace)
	case unknown:
		if known.unmarked == "" {
			l.What = append(l.What, "you are not allowed to read all records, so it is unknown whether the run has ended")
			l.Remedy, l.Todo = Nobody, "ask a user who is allowed to list configmaps in all namespaces"
			return
		}
		what := fmt.Sprintf("the record of the run is in namespace %q, which is not marked as a ledger", known.unmarked)
		l.What = append(l.What, what)
		l.Remedy, l.Todo = Nobody, "an administrator must decide which namespaces are ledgers: see docs/security.md"
	}
}

// fields returns the time since which an object has had managed fields of this tool, and whether it has any.
func fields(o metav1.Object) (since time.Time, any bool) {
	for _, entry := range o.GetManagedFields() {
		if entry.Manager != fieldManager {
			continue
		}
		any = true
		if entry.Time != nil && entry.Time.After(since) {
			since = entry.Time.UTC()
		}
	}
	return since, any
}

// ourChanges handles a user's object that was changed by this tool.
func (s *search) ourChanges(m marked) {
	left := leftoverOf(m.kind.resource, m.kind.name, m.object, Ours, m.ours.gone...)
	left.Run = runOf(m)
	known := s.runs.of(left.Run)
	if left.Run == "" {
		left.Run, known = s.runs.openFor(m.kind.name, m.object.GetNamespace(), m.object.GetName())
		if top, ok := s.top(m.object); known.standing == missing && ok {
			left.Run, known = s.runs.openFor(top.kind, top.namespace, top.name)
		}
		if known.standing == missing && !s.runs.complete {
			known.standing = unknown
		}
	}
	switch known.standing {
	case inUse:
		s.inUse++
		return
	case overdue:
		return
	}
	if _, owned := s.top(m.object); owned && m.kind.name == kindPod && known.standing == closed {
		return // the owner's template has been restored, and the shim is idle until the owner replaces the object
	}
	left.Remedy, left.edit = Edit, withoutOurs
	left.judge(known)
	since, managed := fields(m.object)
	if managed {
		left.Since = since
	}
	if len(m.ours.gone) == 0 {
		left.What = append([]string{"fields of the manager " + fieldManager}, left.What...)
		if left.Remedy == Edit { // removing fields without knowing their previous values would be a guess
			left.Remedy = Nobody
			left.Todo = fmt.Sprintf("kubectl get %s -n %s -o yaml --show-managed-fields",
				ref(left.APIVersion, left.Kind, left.Name), left.Namespace)
		}
	}
	s.place(m, left)
}

// runOf returns the run that an object or its pods refer to.
func runOf(m marked) string {
	for _, path := range [][]string{
		{"metadata", "labels"}, {"metadata", "annotations"}, {"spec", "template", "metadata", "labels"},
		{"spec", "template", "metadata", "annotations"},
	} {
		if words, ok := field(m.object.Object, path...); ok && text(words, ledger.LabelRun) != "" {
			return text(words, ledger.LabelRun)
		}
	}
	for _, p := range m.kind.places(m.object) { // kinds that drop pod labels still refer to the ConfigMap
		for _, volume := range elements(p.spec, "volumes") {
			if source, ok := field(volume, "configMap"); ok && text(volume, "name") == ourLibVolume {
				return strings.TrimPrefix(text(source, "name"), ourConfigPrefix)
			}
		}
	}
	return ""
}
