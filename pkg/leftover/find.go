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
)

// Finder looks for leftovers in a cluster. All clients are the same cluster's. It only lists, and asks for whole
// objects only where it has to look into them.
type Finder struct {
	Client   kubernetes.Interface
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	// Namespaces are looked into where a kind may not be listed in all namespaces at once.
	Namespaces []string
	// Clock is time.Now when nil.
	Clock func() time.Time
}

// Find looks everywhere that it may. What it may not read is in Found.Skipped; the error is for a cluster that does not
// answer.
func (f *Finder) Find(ctx context.Context) (*Found, error) {
	s := &search{Finder: f, inventory: newInventory()}
	if err := s.inParallel(ctx, slices.Concat(s.workloads(), s.labeled(), s.dynamoObjects())); err != nil {
		return nil, err
	}
	// Only now: see loadRuns.
	var records, configMaps []metav1.PartialObjectMetadata
	complete, err := s.metadata(ctx, configMapResource, ourLabel(), func(o *metav1.PartialObjectMetadata) {
		if isRecord(o) {
			records = append(records, *o)
		} else {
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

// search is one Find.
type search struct {
	*Finder
	*inventory
	runs *runs

	mu      sync.Mutex
	skipped []Skipped
	items   []Leftover
	inUse   int
}

// task is one list.
type task func(ctx context.Context) error

const (
	// parallel is how many lists are asked for at once, so that the API server does not see a burst.
	parallel = 6
	// pageSize bounds what is held at once: pods have some 10 KB each.
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

// metadata visits the metadata of the objects of a kind. It returns whether it saw all that there are; a kind that the
// cluster lacks has none. Visits come one at a time.
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
			// Else it is going already
			if o, ok := object.(*metav1.PartialObjectMetadata); ok && o.DeletionTimestamp == nil {
				visit(o)
			}
		})
}

// objects visits whole objects.
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

// each lists in all namespaces, or in those of the Finder where that is not allowed.
func (s *search) each(
	ctx context.Context, resource schema.GroupVersionResource, options metav1.ListOptions, list lister,
	visit func(runtime.Object),
) (bool, error) {
	what := resource.GroupResource().String()
	err := s.pages(ctx, "", options, list, visit)
	switch {
	case err == nil, apierrors.IsNotFound(err): // the cluster has no such kind
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

// mayNot reports whether the API server refuses to list a kind, for good.
func mayNot(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) }

func reason(err error) string {
	if apierrors.IsForbidden(err) {
		return "you may not list them in all namespaces"
	}
	return err.Error()
}

func (s *search) result() *Found {
	s.assemble()
	items := append(s.items, s.runs.faults()...)
	sortItems(items)
	s.skipped = append(s.skipped, s.runs.unread...)
	slices.SortFunc(s.skipped, func(a, b Skipped) int {
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

// leftoverOf returns a leftover about an object.
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
