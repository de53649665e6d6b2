package exercise

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// Kinds that need special treatment.
const (
	kindNode      = "Node"
	kindNamespace = "Namespace"
	kindSecret    = "Secret"
	kindConfigMap = "ConfigMap"
)

// made returns the manifests that a scenario creates, in order.
func made(r *scenario.Resolved) []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	for _, step := range slices.Concat(r.Setup, r.Inject) {
		if step.Create == nil {
			continue
		}
		for _, object := range step.Create.Objects {
			all = append(all, &unstructured.Unstructured{Object: object})
		}
	}
	return all
}

// namespacesOf returns the namespaces that are reserved for an exercise: the exercise creates them, or the candidate is
// admin there.
func namespacesOf(r *scenario.Resolved) []string {
	names := slices.Clone(r.Public.Access.Namespaces)
	for _, object := range made(r) {
		if isNamespace(refOf(object)) {
			names = append(names, object.GetName())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// whole returns the namespaces that snapshots store in full: those of the exercise, and that of an existing
// workload.
func (s *start) whole() []string { return slices.Concat(s.namespaces, s.r.Public.Access.Shared()) }

// whole returns the namespaces that snapshots of a stored exercise store in full.
func (e Exercise) whole() []string { return slices.Concat(e.Namespaces, e.Public.Access.Shared()) }

// ownedBy returns the objects that a scenario creates or changes outside its namespaces.
func ownedBy(r *scenario.Resolved, namespaces []string) []scenario.Ref {
	var refs []scenario.Ref
	add := func(ref scenario.Ref) {
		if !slices.Contains(namespaces, ref.Namespace) && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	for _, object := range made(r) {
		add(refOf(object))
	}
	if sim := r.Facts.Simulation; sim != nil {
		for _, node := range sim.Nodes {
			add(nodeRef(node))
		}
	}
	for _, step := range slices.Concat(r.Setup, r.Inject) {
		switch {
		case step.Patch != nil:
			add(step.Patch.Object)
		case step.CUDA != nil:
			add(step.CUDA.Workload)
		case step.XID != nil:
			add(nodeRef(step.XID.Node))
		case step.Runtime != nil:
			add(nodeRef(step.Runtime.Node))
		case step.Firewall != nil:
			add(nodeRef(step.Firewall.Node))
		case step.Device != nil:
			add(nodeRef(step.Device.Node))
		}
	}
	return refs
}

// nodesOf returns the nodes that a scenario or its attempts change.
func nodesOf(r *scenario.Resolved) []string {
	var names []string
	steps := slices.Concat(r.Setup, r.Inject)
	for _, attempt := range slices.Concat(r.Sealed.Solutions, r.Sealed.WrongFixes) {
		steps = append(steps, attempt.Steps...)
	}
	for _, step := range steps {
		switch {
		case step.XID != nil:
			names = append(names, step.XID.Node)
		case step.Runtime != nil:
			names = append(names, step.Runtime.Node)
		case step.Firewall != nil:
			names = append(names, step.Firewall.Node)
		case step.Device != nil:
			names = append(names, step.Device.Node)
		case step.NodeShell != nil:
			names = append(names, step.NodeShell.Node)
		case step.Patch != nil && step.Patch.Object.Kind == kindNode:
			names = append(names, step.Patch.Object.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func nodeRef(name string) scenario.Ref {
	return scenario.Ref{APIVersion: "v1", Kind: kindNode, Name: name}
}

func refOf(object *unstructured.Unstructured) scenario.Ref {
	return scenario.Ref{
		APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Namespace: object.GetNamespace(),
		Name: object.GetName(),
	}
}

func isNamespace(ref scenario.Ref) bool { return ref.Kind == kindNamespace && ref.APIVersion == "v1" }

// sameObject reports whether both refer to the same object, in any API version.
func sameObject(a, b scenario.Ref) bool {
	return a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name && groupOf(a) == groupOf(b)
}

func groupOf(ref scenario.Ref) string {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return ref.APIVersion
	}
	return gv.Group
}

// within reports whether an object is in one of the namespaces, or is itself one of them.
func within(ref scenario.Ref, namespaces []string) bool {
	return slices.Contains(namespaces, ref.Namespace) || isNamespace(ref) && slices.Contains(namespaces, ref.Name)
}

// has reports whether an object belongs to the exercise: it is in one of its namespaces, was created or changed by it,
// or is part of the candidate's account and permissions.
func (e Exercise) has(ref scenario.Ref) bool {
	return within(ref, e.Namespaces) || within(ref, e.Account.namespaces()) ||
		slices.ContainsFunc(e.Owned, func(own scenario.Ref) bool { return sameObject(own, ref) })
}

func (a Account) namespaces() []string {
	if a.Namespace == "" {
		return nil
	}
	return []string{a.Namespace}
}

// writers determines which objects the candidate may write, to separate the candidate's changes from other
// activity in the cluster.
type writers struct {
	access scenario.Access
	mapper meta.RESTMapper
	// all is set if the permissions allow privilege escalation.
	all bool
}

func writersOf(access scenario.Access, mapper meta.RESTMapper) writers {
	w := writers{access: access, mapper: mapper}
	for _, rule := range access.Rules {
		for _, verb := range rule.Verbs {
			named := verb == "bind" && len(rule.ResourceNames) > 0 // limited to the named roles
			climbs := slices.Contains([]string{"escalate", "bind", "impersonate"}, verb) && !named
			w.all = w.all || climbs || verb == "*" && slices.Contains(rule.Resources, "*")
		}
	}
	return w
}

// may reports whether the candidate could have changed the object.
func (w writers) may(ref scenario.Ref) bool {
	// Root on a node can also write the node's labels, with the kubelet's credentials.
	if w.all || slices.Contains(w.access.Namespaces, ref.Namespace) || w.access.NodeShell && ref.Kind == kindNode {
		return true
	}
	resource := w.resource(ref)
	for _, rule := range w.access.Rules {
		if matches(rule.APIGroups, groupOf(ref)) && matches(rule.Resources, resource) && writes(rule.Verbs) &&
			(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, ref.Name)) {
			return true
		}
	}
	return false
}

// surely reports whether only the exercise and its candidate have a reason to change the object. The object must be in
// a namespace that the exercise created, be a node that the exercise changes, or be named by the candidate's
// permissions, the allowed changes, or an attempt of the scenario. Namespaces that existed before, and objects in them,
// are shared. The undo of the run handles the namespaces that the run created.
func surely(e *Exercise, r *scenario.Resolved, w writers, stood func(namespace string) bool, ref scenario.Ref) bool {
	switch {
	case isNamespace(ref):
		return false
	case ref.Namespace != "" && !stood(ref.Namespace) && e.has(ref),
		ref.Kind == kindNode && slices.Contains(e.Nodes, ref.Name):
		return true
	case slices.ContainsFunc(namedBy(r), func(named scenario.Ref) bool { return sameObject(named, ref) }):
		return true
	}
	for _, rule := range r.Public.Access.Rules {
		if writes(rule.Verbs) && slices.Contains(rule.ResourceNames, ref.Name) &&
			matches(rule.APIGroups, groupOf(ref)) &&
			matches(rule.Resources, w.resource(ref)) {
			return true
		}
	}
	return slices.ContainsFunc(r.Sealed.Grade.Collateral.Allow, func(allowed scenario.Allowed) bool {
		return allowed.Kind == ref.Kind && allowed.Name == ref.Name && allowed.Namespace == ref.Namespace
	})
}

// stoodIn returns a predicate for the namespaces that exist in a snapshot.
func stoodIn(before *baseline.Baseline) func(namespace string) bool {
	return func(namespace string) bool {
		return before.Get(scenario.Ref{APIVersion: "v1", Kind: kindNamespace, Name: namespace}) != nil
	}
}

// namedBy returns the objects that attempts of a scenario change.
func namedBy(r *scenario.Resolved) []scenario.Ref {
	var refs []scenario.Ref
	for _, attempt := range slices.Concat(r.Sealed.Solutions, r.Sealed.WrongFixes) {
		for _, step := range attempt.Steps {
			list := step.Replace
			switch {
			case step.Create != nil:
				list = step.Create.Objects
			case step.Patch != nil:
				refs = append(refs, step.Patch.Object)
			case step.Delete != nil:
				refs = append(refs, *step.Delete)
			}
			for _, object := range list {
				refs = append(refs, refOf(&unstructured.Unstructured{Object: object}))
			}
		}
	}
	return refs
}

// resource returns the resource name for the object's kind, such as deployments, or "" if the kind does not exist in
// the cluster.
func (w writers) resource(ref scenario.Ref) string {
	if w.mapper == nil {
		return ""
	}
	mapping, err := mappingOf(w.mapper, ref)
	if err != nil {
		return ""
	}
	return mapping.Resource.Resource
}

func matches(list []string, one string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, one)
}

// writes reports whether one of the verbs changes something.
func writes(verbs []string) bool {
	return slices.ContainsFunc(verbs, func(verb string) bool {
		switch verb {
		case "*", "create", "update", "patch", "delete", "deletecollection":
			return true
		}
		return false
	})
}
