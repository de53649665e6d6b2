package leftover

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/pager"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Finder searches a cluster for leftovers. All clients must be for the same cluster. It only sends list requests, and
// requests full objects only for kinds that it must inspect.
type Finder struct {
	Client   kubernetes.Interface
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	// Namespaces are the namespaces to search for kinds that may not be listed in all namespaces at once.
	Namespaces []string
	// Clock returns the current time. nil means time.Now.
	Clock func() time.Time
}

// Find searches everything that the user may read. Found.Skipped lists the rest. An error means that the cluster does
// not respond.
func (f *Finder) Find(ctx context.Context) (*Found, error) {
	s := &search{Finder: f, inventory: newInventory()}
	if err := s.inParallel(ctx, slices.Concat(s.workloads(), s.labeled(), s.dynamoObjects())); err != nil {
		return nil, err
	}
	// Runs are loaded last: see loadRuns.
	var records, configMaps []metav1.PartialObjectMetadata
	complete, err := s.metadata(ctx, configMapResource, ourLabel(), func(o *metav1.PartialObjectMetadata) {
		if isRecord(o) {
			records = append(records, *o)
		} else if !isOfFleet(o) {
			configMaps = append(configMaps, *o)
		}
	})
	if err != nil {
		return nil, err
	}
	if s.runs, err = f.loadRuns(ctx, records, complete); err != nil {
		return nil, err
	}
	for i := range configMaps {
		s.ofOurs(labeledObject(configMapResource, "ConfigMap", &configMaps[i]))
	}
	if err := s.inParallel(ctx, s.serviceParts()); err != nil {
		return nil, err
	}
	return s.result(), nil
}

// search holds the state of a single call to Find.
type search struct {
	*Finder
	*inventory
	runs *runs

	mu      sync.Mutex
	skipped []Skipped
	items   []Leftover
	inUse   int
}

// task is one list request.
type task func(ctx context.Context) error

const (
	// parallel is the maximum number of concurrent list requests. The limit avoids a burst of requests.
	parallel = 6
	// pageSize limits memory use: a pod is about 10 KB.
	pageSize = 250
)

func (s *search) inParallel(ctx context.Context, tasks []task) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, t := range tasks {
		group.Go(func() error { return t(ctx) })
	}
	return group.Wait()
}

// metadata visits the metadata of all objects of a kind, one at a time. It reports whether it saw all of them. A kind
// that does not exist in the cluster counts as complete.
func (s *search) metadata(
	ctx context.Context, resource schema.GroupVersionResource, options metav1.ListOptions,
	visit func(*metav1.PartialObjectMetadata),
) (bool, error) {
	client := s.Metadata.Resource(resource)
	return s.each(ctx, resource, options,
		func(ctx context.Context, namespace string, options metav1.ListOptions) (runtime.Object, error) {
			if namespace == "" {
				return client.List(ctx, options)
			}
			return client.Namespace(namespace).List(ctx, options)
		}, func(object runtime.Object) {
			// Skip objects that are already being deleted.
			if o, ok := object.(*metav1.PartialObjectMetadata); ok && o.DeletionTimestamp == nil {
				visit(o)
			}
		})
}

// objects visits full objects.
func (s *search) objects(
	ctx context.Context, resource schema.GroupVersionResource, options metav1.ListOptions,
	visit func(*unstructured.Unstructured),
) (bool, error) {
	client := s.Dynamic.Resource(resource)
	return s.each(ctx, resource, options,
		func(ctx context.Context, namespace string, options metav1.ListOptions) (runtime.Object, error) {
			if namespace == "" {
				return client.List(ctx, options)
			}
			return client.Namespace(namespace).List(ctx, options)
		}, func(object runtime.Object) {
			if o, ok := object.(*unstructured.Unstructured); ok && o.GetDeletionTimestamp() == nil {
				visit(o)
			}
		})
}

type lister func(ctx context.Context, namespace string, options metav1.ListOptions) (runtime.Object, error)

// each lists objects in all namespaces or, if that is forbidden, in the Finder's namespaces.
func (s *search) each(
	ctx context.Context, resource schema.GroupVersionResource, options metav1.ListOptions, list lister,
	visit func(runtime.Object),
) (bool, error) {
	what := resource.GroupResource().String()
	err := s.pages(ctx, "", options, list, visit)
	switch {
	case err == nil, apierrors.IsNotFound(err): // the cluster does not have the kind
		return true, nil
	case !mayNot(err):
		return false, fmt.Errorf("list %s: %w", what, err)
	}
	skipped := Skipped{What: what, Why: reason(err)}
	for _, namespace := range s.Namespaces {
		switch err := s.pages(ctx, namespace, options, list, visit); {
		case err == nil:
			skipped.Namespaces = append(skipped.Namespaces, namespace)
		case !mayNot(err) && !apierrors.IsNotFound(err):
			return false, fmt.Errorf("list %s in namespace %s: %w", what, namespace, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.skipped, func(old Skipped) bool { return old.What == what }) {
		s.skipped = append(s.skipped, skipped)
	}
	return false, nil
}

func (s *search) pages(
	ctx context.Context, namespace string, options metav1.ListOptions, list lister, visit func(runtime.Object),
) error {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, namespace, options)
	})
	pages.PageSize, pages.PageBufferSize = pageSize, 1
	return pages.EachListItem(ctx, options, func(object runtime.Object) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		visit(object)
		return nil
	})
}

// mayNot reports whether the API server permanently refuses to list a kind.
func mayNot(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) }

func reason(err error) string {
	if apierrors.IsForbidden(err) {
		return "you are not allowed to list these objects in all namespaces"
	}
	return err.Error()
}

func (s *search) result() *Found {
	s.assemble()
	items := append(s.items, s.runs.faults()...)
	sortItems(items)
	s.skipped = append(s.skipped, s.runs.unread...)
	sorting.Func(s.skipped, func(a, b Skipped) int {
		if a.What < b.What {
			return -1
		}
		return 1
	})
	return &Found{
		Items: items, Skipped: s.skipped, InUse: s.inUse, Nodes: s.runs.nodes(), Unmarked: s.runs.unmarked,
		runs: s.runs,
	}
}

func (f *Finder) now() time.Time {
	if f.Clock == nil {
		return time.Now()
	}
	return f.Clock()
}

// leftoverOf returns a leftover for an object.
func leftoverOf(
	resource schema.GroupVersionResource, kind string, o metav1.Object, of Source, what ...string,
) Leftover {
	return Leftover{
		APIVersion: resource.GroupVersion().String(), Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(),
		UID: o.GetUID(),
		Of:  of, Since: o.GetCreationTimestamp().UTC(), What: what, Remedy: Delete,
		resource: resource, resourceVersion: o.GetResourceVersion(), generation: o.GetGeneration(),
	}
}
