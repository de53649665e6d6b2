package leftover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// inventory is the result of listing workloads and pods. For objects without findings, it keeps only the identity.
type inventory struct {
	byUID  map[types.UID]*identity
	byName map[string]*identity
	marked []marked
	ours   []Leftover // objects with this tool's label
	// services are the namespaces in which Dynamo's fault-injection service is or was.
	services []string
}

// identity identifies an object and its owner.
type identity struct {
	apiVersion, kind, namespace, name string
	owner                             *metav1.OwnerReference // controller
	graph                             string                 // DynamoGraphDeployment specified by its label
}

// marked is an object with findings.
type marked struct {
	kind   kind
	object *unstructured.Unstructured
	// dynamo and ours are the additions that would be removed.
	dynamo, ours change
	managed      bool // whether it has managed fields of this tool
}

func newInventory() *inventory {
	return &inventory{
		byUID: map[types.UID]*identity{}, byName: map[string]*identity{}, services: []string{serviceNamespace},
	}
}

func nameKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// labelGraph is a label on objects that a DynamoGraphDeployment creates.
const labelGraph = "nvidia.com/dynamo-graph-deployment-name"

func (s *search) workloads() []task {
	var tasks []task
	for _, k := range workloads() {
		tasks = append(tasks, func(ctx context.Context) error {
			_, err := s.objects(ctx, k.resource, metav1.ListOptions{},
				func(o *unstructured.Unstructured) { s.take(k, o) })
			return err
		})
	}
	return tasks
}

// take inspects a workload or a pod.
func (s *search) take(k kind, o *unstructured.Unstructured) {
	if k.name != kindPod {
		who := &identity{
			o.GetAPIVersion(), k.name, o.GetNamespace(), o.GetName(), metav1.GetControllerOf(o),
			o.GetLabels()[labelGraph],
		}
		s.byUID[o.GetUID()], s.byName[nameKey(k.name, o.GetNamespace(), o.GetName())] = who, who
	}
	switch {
	case isOurs(o) && k.name == kindPod:
		if left, busy := ourPod(k.resource, o, s.now()); !busy {
			s.ours = append(s.ours, left)
		}
		return
	case isOfFleet(o) && k.name == kindJob:
		s.fleetJob(k, o)
		return
	case isOurs(o):
		s.ours = append(s.ours, labeledObject(k.resource, k.name, o))
		return
	case s.isService(k, o):
		return
	case isOver(k, o): // completed, and will not run again
		return
	}
	m := marked{kind: k, object: o}
	copied := o // the inspection removes what it finds
	if mayHave(k, o) {
		copied = o.DeepCopy()
		for _, p := range k.places(copied) {
			m.dynamo.merge(withoutDynamo(p))
			m.ours.merge(withoutOurs(p))
		}
	}
	_, m.managed = fields(o)
	if len(m.dynamo.gone) > 0 || len(m.ours.gone) > 0 || m.managed {
		s.marked = append(s.marked, m)
	}
}

// mayHave reports whether the object may have findings, so that most objects do not have to be copied.
func mayHave(k kind, o *unstructured.Unstructured) bool {
	for _, p := range k.places(o) {
		for _, c := range p.containers() {
			for _, variable := range elements(c.fields, c.env) {
				name := text(variable, "name")
				if name == preload || name == "CUDA_XID_TYPE" || strings.HasPrefix(name, dynamoVariablePrefix) ||
					ourVariable(name) {
					return true
				}
			}
			for _, mount := range elements(c.fields, "volumeMounts") {
				if named, _ := dynamoVolume(mount); named {
					return true
				}
			}
			if slices.Contains(dynamoContainers, text(c.fields, "name")) {
				return true
			}
		}
		for _, volume := range elements(p.spec, "volumes") {
			named, _ := dynamoVolume(volume)
			ours, _ := ourVolume(volume)
			if named || ours {
				return true
			}
		}
	}
	return false
}

// isOver reports whether a pod or a job has completed.
func isOver(k kind, o *unstructured.Unstructured) bool {
	status, _ := field(o.Object, "status")
	switch k.name {
	case kindPod:
		return text(status, "phase") == "Succeeded" || text(status, "phase") == "Failed"
	case kindJob:
		for _, condition := range elements(status, "conditions") {
			if kind := text(condition, "type"); (kind == "Complete" || kind == "Failed") &&
				text(condition, "status") == "True" {
				return true
			}
		}
	}
	return false
}

// top returns the topmost owner of an object, as far as it can be determined without further requests. ok is false if
// the object has no owner.
func (in *inventory) top(o *unstructured.Unstructured) (top identity, ok bool) {
	who := identity{
		o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName(), metav1.GetControllerOf(o),
		o.GetLabels()[labelGraph],
	}
	for range 8 { // prevents an endless loop
		next := in.owner(who, o.GetLabels()["pod-template-hash"])
		if next == nil {
			break
		}
		who, ok = *next, true
	}
	return who, ok
}

func (in *inventory) owner(who identity, templateHash string) *identity {
	if graph := in.byName[nameKey(kindGraph, who.namespace, who.graph)]; graph != nil && who.kind != kindGraph {
		return graph
	}
	if who.owner == nil {
		return nil
	}
	if known := in.byUID[who.owner.UID]; known != nil {
		return known
	}
	// A ReplicaSet's name consists of its Deployment's name and the hash in the label of its pods.
	if name, cut := strings.CutSuffix(who.owner.Name, "-"+templateHash); cut && who.owner.Kind == kindReplicaSet &&
		templateHash != "" {
		if known := in.byName[nameKey(kindDeployment, who.namespace, name)]; known != nil {
			return known
		}
	}
	return &identity{
		apiVersion: who.owner.APIVersion, kind: who.owner.Kind, namespace: who.namespace, name: who.owner.Name,
	}
}

// assemble creates leftovers from the marked objects.
func (s *search) assemble() {
	for _, left := range s.ours {
		s.ofOurs(left)
	}
	// Owners come first, so that the objects they own can be added to their leftovers.
	sorting.StableFunc(s.marked, func(a, b marked) int { return s.depth(a) - s.depth(b) })
	for _, m := range s.marked {
		if len(m.ours.gone) > 0 || m.managed {
			s.ourChanges(m)
		}
		if len(m.dynamo.gone) > 0 {
			s.dynamoChanges(m)
		}
	}
}

func (s *search) depth(m marked) int {
	_, owned := s.top(m.object)
	switch {
	case m.kind.name == kindPod:
		return 2
	case owned:
		return 1
	}
	return 0
}

// place adds a leftover to the leftover of its owner, if there is one, because the owner must be changed instead.
// Otherwise, it adds the leftover to the list.
func (s *search) place(m marked, left Leftover) {
	top, owned := s.top(m.object)
	if owned {
		if i := slices.IndexFunc(s.items, func(other Leftover) bool {
			return other.Of == left.Of && other.Kind == top.kind && other.Namespace == top.namespace &&
				other.Name == top.name && other.edit != nil
		}); i >= 0 {
			s.items[i].With = append(s.items[i].With, ref(left.APIVersion, left.Kind, left.Name))
			return
		}
	}
	if left.Remedy == Edit {
		s.fixed(m, &left, top, owned)
	}
	s.items = append(s.items, left)
}

// fixed handles objects that cannot or should not be changed directly.
func (s *search) fixed(m marked, left *Leftover, top identity, owned bool) {
	switch {
	case owned:
		owner := ref(top.apiVersion, top.kind, top.name)
		left.What = append(left.What, "owned by "+owner)
		left.Remedy, left.Todo = Nobody,
			fmt.Sprintf("its owner would restore the additions; see: kubectl edit %s -n %s", owner, left.Namespace)
		if m.kind.name == kindPod && s.byName[nameKey(top.kind, top.namespace, top.name)] != nil {
			left.Todo = fmt.Sprintf("to let its owner recreate it without the additions: kubectl delete pod %s -n %s",
				left.Name,
				left.Namespace)
		}
	case m.kind.fixed != "":
		left.Remedy, left.Todo = Nobody,
			fmt.Sprintf("%s: kubectl delete %s -n %s, and recreate it without the additions",
				m.kind.fixed, ref(left.APIVersion, left.Kind, left.Name), left.Namespace)
	}
}

// changedAt returns the time at which one of the names was added to the object, according to its managed fields, or
// zero if unknown.
func changedAt(o metav1.Object, names []string) time.Time {
	var last time.Time
	for _, entry := range o.GetManagedFields() {
		if entry.FieldsV1 == nil || entry.Time == nil {
			continue
		}
		raw := entry.FieldsV1.String()
		isIn := func(name string) bool {
			return strings.Contains(raw, `\"`+name+`\"`) || strings.Contains(raw, `"f:`+name+`"`)
		}
		if slices.ContainsFunc(names, isIn) && entry.Time.After(last) {
			last = entry.Time.UTC()
		}
	}
	return last
}
