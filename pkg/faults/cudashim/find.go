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

// maxOwners limits the number of owners to follow. A Dynamo graph is five levels above its pods.
const maxOwners = 10

// Find returns the workload with a name in kubectl's form TYPE/NAME. It follows the owners up to the topmost one with
// pod templates, because a controller would undo changes to the objects that it creates.
func (c *Cluster) Find(ctx context.Context, namespace, name string) (*Workload, error) {
	kind, name, ok := strings.Cut(strings.TrimSpace(name), "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("invalid workload %q: must be TYPE/NAME, such as deployment/web",
			strings.Trim(kind+"/"+name, "/"))
	}
	mapping, err := c.mapping(kind)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return nil, fmt.Errorf("%s/%s: a %s is not a workload, because it is not namespaced", kind, name,
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

// mapping returns the type for a name in any form that kubectl accepts: deploy, deployments.apps, deployments.v1.apps,
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

// climb follows the owners of an object up to the topmost one with pod templates.
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
		if parent == nil { // the owner was deleted, so the object has no owner now
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

// noTemplate returns the error for an object for which neither the object nor an owner has a pod template.
func noTemplate(top *unstructured.Unstructured, asked, above, reason string) error {
	isPod := strings.HasPrefix(asked, "pod/")
	switch {
	case isPod && strings.HasPrefix(above, "node/"):
		return fmt.Errorf("%s is a static pod that %s runs from a file: it has no pod template in the cluster",
			asked, above)
	case isPod && above != "" && reason != "":
		return fmt.Errorf("%s belongs to %s, which cannot be read (%s): specify an object with a pod template, or get permission to read the owner",
			asked, above,
			reason)
	case isPod && above != "":
		return fmt.Errorf(
			"%s belongs to %s, which has no pod template: specify the object that creates its pods",
			asked, above,
		)
	case isPod:
		return fmt.Errorf("%s is a pod without a controller: its containers cannot be changed, and it would not be recreated; run it as a Deployment or "+
			"Job, and specify that object", asked)
	case above != "":
		return fmt.Errorf(
			"neither %s nor %s has a pod template: specify the object that creates the pods, such as deployment/NAME",
			asked,
			above,
		)
	}
	return fmt.Errorf("%s has no pod template (kind %s): specify the object that creates the pods, such as deployment/NAME",
		asked,
		top.GetKind())
}

// ownerOf returns the controller of an object or, if there is none, its only owner.
func ownerOf(object *unstructured.Unstructured) *metav1.OwnerReference {
	if controller := metav1.GetControllerOf(object); controller != nil {
		return controller
	}
	if owners := object.GetOwnerReferences(); len(owners) == 1 {
		return &owners[0]
	}
	return nil
}

// owner returns an owner. It returns nil without an error if the owner no longer exists.
func (c *Cluster) owner(
	ctx context.Context, namespace string, owner metav1.OwnerReference,
) (*unstructured.Unstructured, schema.GroupVersionResource, error) {
	none := schema.GroupVersionResource{}
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return nil, none, fmt.Errorf("invalid apiVersion %q", owner.APIVersion)
	}
	mapping, err := c.Mapper.RESTMapping(schema.GroupKind{Group: version.Group, Kind: owner.Kind}, version.Version)
	if err != nil {
		return nil, none, errors.New("its kind does not exist in the cluster")
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return nil, none, errors.New("the owner is not namespaced")
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

// Run returns the ID of the run whose shim is in the workload, or an empty string.
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
