package check

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// pageSize is the number of objects per list request.
const pageSize = 500

// object reads an object.
func (c *Checker) object(ctx context.Context, ref scenario.Ref, wantsWas bool) (view, error) {
	client, err := c.client(ref.APIVersion, ref.Kind, ref.Namespace)
	if err != nil {
		return view{}, err
	}
	seen := view{vars: expr.Vars{"o": nil, "was": nil}}
	if wantsWas && c.Was != nil {
		was, err := c.Was(ctx, ref)
		if err != nil {
			return view{}, fmt.Errorf("read %s %s from the baseline: %w", ref.Kind, ref.Name, err)
		}
		if was != nil { // a nil map is not null
			seen.vars["was"] = was
		}
	}
	o, err := client.Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		seen.evidence = fmt.Sprintf("%s %s does not exist", ref.Kind, ref.Name)
		return seen, nil
	case err != nil:
		return view{}, fmt.Errorf("get %s %s: %w", ref.Kind, ref.Name, err)
	}
	seen.vars["o"] = o.Object
	seen.evidence = state(o.Object)
	return seen, nil
}

// objects lists the objects that a selector matches.
func (c *Checker) objects(ctx context.Context, s scenario.Selector, wantsWas bool) (view, error) {
	client, err := c.client(s.APIVersion, s.Kind, s.Namespace)
	if err != nil {
		return view{}, err
	}
	seen := view{vars: expr.Vars{"list": nil, "was": nil}}
	if wantsWas && c.WasList != nil {
		was, err := c.WasList(ctx, s)
		if err != nil {
			return view{}, fmt.Errorf("read objects of kind %s from the baseline: %w", s.Kind, err)
		}
		if was == nil {
			was = []any{}
		}
		seen.vars["was"] = was
	}
	items, err := list(ctx, client, metav1.ListOptions{LabelSelector: s.Labels, FieldSelector: s.Fields})
	if err != nil {
		return view{}, fmt.Errorf("list %s: %w", s.Kind, err)
	}
	if c.Guarded && s.Kind == "Pod" {
		items = slices.DeleteFunc(items, abandoned)
	}
	seen.vars["list"], seen.evidence = items, states(items)
	return seen, nil
}

// abandoned reports whether a pod has terminated and was replaced by its ReplicaSet, which does not delete such pods.
// For example, the kubelet rejects a pod that specifies nodeName while another pod still holds the GPU.
func abandoned(item any) bool {
	pod := &unstructured.Unstructured{}
	pod.Object, _ = item.(map[string]any)
	phase, _ := nested(pod.Object, "status", "phase").(string)
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "ReplicaSet" && (phase == "Failed" || phase == "Succeeded")
}

// list lists all objects, page by page. If the continue token has expired, it starts again without pagination.
func list(ctx context.Context, client dynamic.ResourceInterface, options metav1.ListOptions) ([]any, error) {
	options.Limit = pageSize
	items := []any{}
	for {
		page, err := client.List(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			items, options.Limit, options.Continue = []any{}, 0, ""
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			items = append(items, page.Items[i].Object)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return items, nil
		}
	}
}

// client returns the client for objects of a kind. If the kind does not exist in the cluster, the error is not an API
// server error.
func (c *Checker) client(apiVersion, kind, namespace string) (dynamic.ResourceInterface, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	mapping, err := c.Mapper.RESTMapping(gv.WithKind(kind).GroupKind(), gv.Version)
	switch {
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("kind %s in %s does not exist in the cluster", kind, apiVersion)
	case err != nil:
		return nil, fmt.Errorf("kind %s in %s: %w", kind, apiVersion, err)
	}
	resource := c.Dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && namespace != "" {
		return resource.Namespace(namespace), nil
	}
	return resource, nil
}

// nested returns a field of an object, or nil if it does not exist.
func nested(o map[string]any, path ...string) any {
	value, _, err := unstructured.NestedFieldNoCopy(o, path...)
	if err != nil {
		return nil
	}
	return value
}

// errNoNamespace is for sources that require a namespace.
var errNoNamespace = errors.New("the check does not specify a namespace")
