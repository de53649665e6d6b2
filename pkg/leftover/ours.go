package leftover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

var (
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	leaseResource     = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
)

// fieldManager is who changes workloads for this tool: the API server keeps its name with every field.
const fieldManager = ledger.ManagedBy

// faultKinds are those whose runs have a record from their beginning. Other commands only read, and have no record.
var faultKinds = []string{"xid", "cuda", "runtime", "workload"}

func ourLabel() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: ledger.LabelManagedBy + "=" + ledger.ManagedBy}
}

func isOurs(o metav1.Object) bool { return o.GetLabels()[ledger.LabelManagedBy] == ledger.ManagedBy }

func isRecord(o metav1.Object) bool {
	_, ok := o.GetLabels()[ledger.LabelFault]
	return ok && isOurs(o)
}

// labeled lists what has our label and is not listed for its pod specs anyway.
func (s *search) labeled() []task {
	return []task{func(ctx context.Context) error {
		_, err := s.metadata(ctx, leaseResource, ourLabel(), func(o *metav1.PartialObjectMetadata) {
			s.ours = append(s.ours, labeledObject(leaseResource, "Lease", o))
		})
		return err
	}}
}

// labeledObject returns an object with our label, as the leftover that it may be.
func labeledObject(resource schema.GroupVersionResource, kind string, o metav1.Object) Leftover {
	what := "made by this tool"
	switch kind {
	case "Lease":
		what = "lock of " + cmp.Or(o.GetAnnotations()[ledger.AnnotationTarget], "a target")
	case kindJob:
		what = "would end the time of a run"
	case "ConfigMap":
		what = "data of a run"
	}
	left := leftoverOf(resource, kind, o, Ours, what)
	left.Run = o.GetLabels()[ledger.LabelRun]
	return left
}

// ourPod returns a debug pod. busy reports whether it belongs to a command that only reads, has no record, and may be
// at work.
func ourPod(
	resource schema.GroupVersionResource, o *unstructured.Unstructured, now time.Time,
) (left Leftover, busy bool) {
	left = labeledObject(resource, kindPod, o)
	spec, _ := field(o.Object, "spec")
	status, _ := field(o.Object, "status")
	phase := text(status, "phase")
	left.What = []string{
		fmt.Sprintf("debug pod on node %s, %s", cmp.Or(text(spec, "nodeName"), "(none)"),
			cmp.Or(phase, "of unknown phase")),
	}
	seconds, bounded, _ := unstructured.NestedInt64(o.Object, "spec", "activeDeadlineSeconds")
	kind, _, _ := strings.Cut(left.Run, "-")
	busy = left.Run != "" && !slices.Contains(faultKinds, kind) && phase != "Succeeded" && phase != "Failed" &&
		bounded && now.Before(left.Since.Add(time.Duration(seconds)*time.Second))
	return left, busy
}

// ofOurs judges an object with our label by its run.
func (s *search) ofOurs(left Leftover) {
	known := s.runs.of(left.Run)
	if left.Run == "" && s.runs.complete {
		known.standing = missing
	}
	switch known.standing {
	case inUse:
		s.inUse++
		return
	case overdue: // the fault stands for all that belongs to it
		return
	}
	left.judge(known)
	s.items = append(s.items, left)
}

// judge says what may be done about something of ours, by the standing of its run. Its remedy stays only where that
// certainly is over.
func (l *Leftover) judge(known knownRun) {
	switch known.standing {
	case closed:
		l.What = append(l.What, "its run is closed")
	case missing:
		l.What = append(l.What, "its run has no record")
	case ended:
		l.What = append(l.What, "its client ended without tidying up")
		l.Remedy, l.Todo = Nobody, known.store.Command("revert", l.Run)
	case unreadable:
		l.What = append(l.What, "the record of its run cannot be read")
		l.Remedy, l.Todo = Nobody, fmt.Sprintf("kubectl get configmap %s -n %s -o yaml", l.Run, known.store.Namespace)
	case untold:
		if known.unmarked == "" {
			l.What = append(l.What, "you may not read all records, so nobody can say whether its run is over")
			l.Remedy, l.Todo = Nobody, "let somebody look who may list configmaps in all namespaces"
			return
		}
		what := fmt.Sprintf("the record of its run is in namespace %q, which is not marked as a ledger", known.unmarked)
		l.What = append(l.What, what)
		l.Remedy, l.Todo = Nobody, "an administrator decides which namespaces are ledgers: see docs/security.md"
	}
}

// fields returns the managed fields of ours on an object: since when.
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

// ourChanges judges an object of a user's that has changes of ours.
func (s *search) ourChanges(m marked) {
	left := leftoverOf(m.kind.resource, m.kind.name, m.object, Ours, m.ours.gone...)
	left.Run = runOf(m)
	known := s.runs.of(left.Run)
	if left.Run == "" {
		left.Run, known = s.runs.aiming(m.kind.name, m.object.GetNamespace(), m.object.GetName())
		if top, ok := s.top(m.object); known.standing == missing && ok {
			left.Run, known = s.runs.aiming(top.kind, top.namespace, top.name)
		}
		if known.standing == missing && !s.runs.complete {
			known.standing = untold
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
		return // its owner's template is as before, and its shim idle until the owner replaces it
	}
	left.Remedy, left.edit = Edit, withoutOurs
	left.judge(known)
	since, managed := fields(m.object)
	if managed {
		left.Since = since
	}
	if len(m.ours.gone) == 0 {
		left.What = append([]string{"fields of the manager " + fieldManager}, left.What...)
		if left.Remedy == Edit { // to take out fields whose former values nobody knows would guess
			left.Remedy = Nobody
			left.Todo = fmt.Sprintf("kubectl get %s -n %s -o yaml --show-managed-fields",
				ref(left.APIVersion, left.Kind, left.Name), left.Namespace)
		}
	}
	s.place(m, left)
}

// runOf returns the run that an object or its pods name.
func runOf(m marked) string {
	for _, path := range [][]string{
		{"metadata", "labels"}, {"metadata", "annotations"}, {"spec", "template", "metadata", "labels"},
		{"spec", "template", "metadata", "annotations"},
	} {
		if words, ok := field(m.object.Object, path...); ok && text(words, ledger.LabelRun) != "" {
			return text(words, ledger.LabelRun)
		}
	}
	for _, p := range m.kind.places(m.object) { // kinds that drop labels of pods still name the ConfigMap
		for _, volume := range elements(p.spec, "volumes") {
			if source, ok := field(volume, "configMap"); ok && text(volume, "name") == ourLibVolume {
				return strings.TrimPrefix(text(source, "name"), ourConfigPrefix)
			}
		}
	}
	return ""
}
