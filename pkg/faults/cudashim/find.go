package cudashim

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// maxOwners bounds the way up: from a pod to a Dynamo graph there are five.
const maxOwners = 10

// Find finds a workload by what a user calls it, TYPE/NAME as kubectl takes it, and goes up to the topmost owner that
// has pod templates: changes to what a controller makes would be undone by it. The errors are for people.
func (c *Cluster) Find(ctx context.Context, namespace, name string) (*Workload, error) {
	kind, name, ok := strings.Cut(strings.TrimSpace(name), "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q does not name a workload: write TYPE/NAME, such as deployment/web",
			strings.Trim(kind+"/"+name, "/"))
	}
	mapping, err := c.mapping(kind)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return nil, fmt.Errorf("%s/%s: a %s is no workload: it belongs to no namespace", kind, name,
			mapping.GroupVersionKind.Kind)
	}
	object, err := c.Dynamic.Resource(mapping.Resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, c.notFound(ctx, mapping, namespace, name)
	case err != nil:
		return nil, fmt.Errorf("get %s/%s in namespace %s: %w", kind, name, namespace, err)
	}
	w, err := c.climb(ctx, object, mapping.Resource)
	if err != nil {
		return nil, err
	}
	if w.Object.GetDeletionTimestamp() != nil {
		return nil, fmt.Errorf("%s is being deleted", w.Ref())
	}
	return w, nil
}

// mapping finds a type by its name, in all the forms that kubectl takes: deploy, deployments.apps, deployments.v1.apps,
// Deployment.
func (c *Cluster) mapping(name string) (*meta.RESTMapping, error) {
	full, group := schema.ParseResourceArg(strings.ToLower(name))
	kind := schema.GroupVersionKind{}
	var err error
	if full != nil {
		kind, _ = c.Mapper.KindFor(*full)
	}
	if kind.Empty() {
		kind, err = c.Mapper.KindFor(group.WithVersion(""))
	}
	if kind.Empty() {
		if asKind, groupKind := schema.ParseKindArg(name); asKind != nil {
			if mapping, err := c.Mapper.RESTMapping(asKind.GroupKind(), asKind.Version); err == nil {
				return mapping, nil
			}
		} else if mapping, err := c.Mapper.RESTMapping(groupKind); err == nil {
			return mapping, nil
		}
		if err == nil || meta.IsNoMatchError(err) {
			return nil, c.noSuchType(name)
		}
		return nil, fmt.Errorf("find the type %q: %w", name, err)
	}
	mapping, err := c.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("find the type %q: %w", name, err)
	}
	return mapping, nil
}

// climb goes from an object up to its topmost owner with pod templates.
func (c *Cluster) climb(
	ctx context.Context, object *unstructured.Unstructured, resource schema.GroupVersionResource,
) (*Workload, error) {
	asked := refOf(object)
	var found *Workload
	if templates := Templates(object); len(templates) > 0 {
		found = &Workload{Object: object, Resource: resource, Templates: templates}
	}
	above, reason := "", ""
	for range maxOwners {
		owner := ownerOf(object)
		if owner == nil {
			break
		}
		above = ref(owner.APIVersion, owner.Kind, owner.Name)
		parent, parentResource, err := c.owner(ctx, object.GetNamespace(), *owner)
		if err != nil {
			reason = err.Error()
			break
		}
		if parent == nil { // what is left of one that was deleted belongs to nobody
			above = ""
			break
		}
		object = parent
		if templates := Templates(object); len(templates) > 0 {
			found, above = &Workload{Object: object, Resource: parentResource, Templates: templates}, ""
		}
	}
	if found == nil {
		return nil, noTemplate(object, asked, above, reason)
	}
	if found.Ref() != asked {
		found.Asked = asked
	}
	found.Above = above
	return found, nil
}

// noTemplate returns why an object, or what owns it, cannot carry the shim, and what to do.
func noTemplate(top *unstructured.Unstructured, asked, above, reason string) error {
	isPod := strings.HasPrefix(asked, "pod/")
	switch {
	case isPod && strings.HasPrefix(above, "node/"):
		return fmt.Errorf("%s is a static pod of %s, which runs it from a file: there is no pod template in the cluster",
			asked, above)
	case isPod && above != "" && reason != "":
		return fmt.Errorf("%s belongs to %s, which cannot be read (%s): name an object with a pod template, or get the right to read it",
			asked, above,
			reason)
	case isPod && above != "":
		return fmt.Errorf(
			"%s belongs to %s, which has no pod template that could be changed: name the object that makes its pods",
			asked, above,
		)
	case isPod:
		return fmt.Errorf("%s is a bare pod: its containers cannot be changed, and nothing would make it again; run it as a Deployment or a Job, "+
			"and inject into that", asked)
	case above != "":
		return fmt.Errorf(
			"%s has no pod template, and neither has %s: name what makes the pods, such as deployment/NAME", asked,
			above,
		)
	}
	return fmt.Errorf("%s has no pod template (kind %s): name what makes the pods, such as deployment/NAME", asked,
		top.GetKind())
}

// ownerOf returns the controller of an object, or its only owner.
func ownerOf(object *unstructured.Unstructured) *metav1.OwnerReference {
	if controller := metav1.GetControllerOf(object); controller != nil {
		return controller
	}
	if owners := object.GetOwnerReferences(); len(owners) == 1 {
		return &owners[0]
	}
	return nil
}

// owner reads an owner; nil, without an error, when it does not exist any more.
func (c *Cluster) owner(
	ctx context.Context, namespace string, owner metav1.OwnerReference,
) (*unstructured.Unstructured, schema.GroupVersionResource, error) {
	none := schema.GroupVersionResource{}
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return nil, none, fmt.Errorf("its apiVersion %q is none", owner.APIVersion)
	}
	mapping, err := c.Mapper.RESTMapping(schema.GroupKind{Group: version.Group, Kind: owner.Kind}, version.Version)
	if err != nil {
		return nil, none, errors.New("the cluster does not know its kind")
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return nil, none, errors.New("it belongs to no namespace")
	}
	object, err := c.Dynamic.Resource(mapping.Resource).Namespace(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && object.GetUID() != owner.UID:
		return nil, none, nil
	case err != nil:
		return nil, none, err
	}
	return object, mapping.Resource, nil
}

// Run returns the run whose shim the workload carries; empty when it carries none.
func (w *Workload) Run() string {
	for _, t := range w.Templates {
		for _, v := range kubeedit.List(w.Object.Object, t.spec.Then(kubeedit.Field("volumes"))) {
			name := kubeedit.Text(v, kubeedit.Fields("configMap", "name"))
			if kubeedit.Text(v, kubeedit.Fields("name")) == volumeLib && strings.HasPrefix(name, Name("")) {
				return strings.TrimPrefix(name, Name(""))
			}
		}
	}
	return ""
}
