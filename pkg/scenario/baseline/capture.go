package baseline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"golang.org/x/sync/errgroup"
)

const (
	defaultLimit    = 10_000
	defaultParallel = 8
	// page is the number of objects per request, and patience is the timeout of a request, because an aggregated API
	// server may not respond.
	page     = 500
	patience = 30 * time.Second
)

// Capture lists all objects of all kinds. Kinds that cannot be listed are in Missing. An error means that the API
// server is unreachable, or that the user may not list any kind. Capture sends about one request per kind, so it is
// slow with a client that is limited to 5 requests per second.
func Capture(
	ctx context.Context, objects dynamic.Interface, kinds discovery.DiscoveryInterface, options Options,
) (*Baseline, error) {
	c := &capture{
		client: objects, options: options, gone: map[string]bool{}, census: newCensus(),
		b: &Baseline{Taken: time.Now().UTC(), kinds: map[schema.GroupKind]string{}, objects: map[key]*object{}},
	}
	if c.options.Limit == 0 {
		c.options.Limit = defaultLimit
	}
	if c.options.Parallel == 0 {
		c.options.Parallel = defaultParallel
	}
	resources, err := c.discover(ctx, kinds)
	if err != nil {
		return nil, err
	}
	c.readSalt(ctx)
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(c.options.Parallel)
	for _, r := range resources {
		group.Go(func() error { return c.list(within, r) })
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("capture the baseline: %w", err)
	}
	if len(c.b.kinds) == 0 {
		return nil, fmt.Errorf("capture the baseline: nothing can be listed: %s", strings.Join(c.b.Missing, "; "))
	}
	if err := c.verify(ctx); err != nil {
		return nil, fmt.Errorf("capture the baseline: %w", err)
	}
	c.dropTerminating()
	slices.Sort(c.b.Missing)
	return c.b, nil
}

// capture is a capture in progress.
type capture struct {
	client  dynamic.Interface
	options Options
	// salt makes the hashes of Secrets specific to this cluster. It is the same for both sides of a comparison.
	salt []byte

	mu    sync.Mutex
	b     *Baseline
	whole int
	gone  map[string]bool // namespaces that are being deleted
	// census contains the objects in the namespaces of Options.Verify.
	census *census
}

// resource is a kind that can be listed.
type resource struct {
	schema.GroupVersionResource
	kind schema.GroupKind
}

// discover returns each kind once, in the API server's preferred version.
func (c *capture) discover(ctx context.Context, kinds discovery.DiscoveryInterface) ([]resource, error) {
	if cached, is := kinds.(discovery.CachedDiscoveryInterface); is {
		cached.Invalidate() // a CustomResourceDefinition may have been added since the last discovery
	}
	lists, err := discovery.ToDiscoveryInterfaceWithContext(kinds).ServerPreferredResourcesWithContext(ctx)
	var partly *discovery.ErrGroupDiscoveryFailed
	switch {
	case errors.As(err, &partly): // an aggregated API server is unavailable
		for version, why := range partly.Groups {
			c.missing(version.String(), why)
		}
	case err != nil:
		return nil, fmt.Errorf("capture the baseline: discover the API server's kinds: %w", err)
	}
	var found []resource
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			kind := schema.GroupKind{Group: version.Group, Kind: r.Kind}
			if slices.Contains(r.Verbs, "list") && !ephemeral(kind) {
				found = append(found, resource{version.WithResource(r.Name), kind})
			}
		}
	}
	return found, nil
}

func (c *capture) missing(what string, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.b.Missing = append(c.b.Missing, fmt.Sprintf("%s: %v", what, why))
}

func (c *capture) readSalt(ctx context.Context) {
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	// Without permission to read the namespace, the hashes are not salted.
	if system, err := c.client.Resource(namespaces).Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil {
		c.salt = []byte(system.GetUID())
	}
}

// list stores the objects of a kind. If a continue token expires, which may happen after five minutes on a busy
// cluster, list starts again without pagination.
func (c *capture) list(ctx context.Context, r resource) error {
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := c.page(ctx, r, options)
		var status apierrors.APIStatus
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsResourceExpired(err) && options.Continue != "":
			options = metav1.ListOptions{}
			continue
		case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
			// The CustomResourceDefinition was deleted in the meantime.
			return nil
		case errors.As(err, &status):
			c.missing(r.GroupResource().String(), err)
			return nil
		default:
			return fmt.Errorf("list %s: %w", r.GroupResource(), err)
		}
		for i := range list.Items {
			c.keep(r, &list.Items[i])
		}
		next := list.GetContinue()
		if next == "" || next == options.Continue { // repeating the same token would loop forever
			break
		}
		options.Continue = next
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.b.kinds[r.kind] = r.Version
	return nil
}

func (c *capture) page(
	ctx context.Context, r resource, options metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := c.client.Resource(r.GroupVersionResource).List(within, options)
	if err != nil && ctx.Err() == nil && within.Err() != nil {
		return nil, apierrors.NewTimeoutError(fmt.Sprintf("no response within %s", patience), 0)
	}
	return list, err
}

// keep stores an object, unless it is being deleted or is not worth storing.
func (c *capture) keep(r resource, raw *unstructured.Unstructured) {
	k := key{r.kind, raw.GetNamespace(), raw.GetName()}
	namespace := k.namespace
	if r.kind == (schema.GroupKind{Kind: "Namespace"}) {
		namespace = k.name
	}
	if slices.Contains(c.options.Without, namespace) {
		return
	}
	if raw.GetDeletionTimestamp() != nil {
		if namespace == k.name && k.namespace == "" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.gone[namespace] = true
		}
		return
	}
	if slices.Contains(c.options.Verify, k.namespace) || r.kind == runtimeClass && len(c.options.Verify) > 0 {
		c.mu.Lock()
		c.census.add(k, r, raw.DeepCopy())
		c.mu.Unlock()
	}
	c.store(k, r, raw)
}

// store stores an object if the object is worth storing. It modifies the object.
func (c *capture) store(k key, r resource, raw *unstructured.Unstructured) {
	namespace := k.namespace
	if r.kind == (schema.GroupKind{Kind: "Namespace"}) {
		namespace = k.name
	}
	if r.kind == nodeKind {
		c.addNodeClients(raw)
	}
	body, worth := normalize(r.kind, raw.Object, c.salt, c.options.Since)
	if !worth {
		return
	}
	// Items in a list of a built-in kind lack these fields.
	body["apiVersion"], body["kind"] = r.GroupVersion().String(), r.kind.Kind
	o := &object{version: r.Version, body: body}
	c.mu.Lock()
	whole := !alwaysHashed(r.kind) &&
		(c.whole < c.options.Limit || namespace != "" && slices.Contains(c.options.Whole, namespace))
	if whole {
		c.whole++
	}
	c.mu.Unlock()
	if !whole {
		o.shrink()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.b.objects[k] = o
}

var nodeKind = schema.GroupKind{Kind: "Node"}

// addNodeClients adds the field managers of a node.
func (c *capture) addNodeClients(raw *unstructured.Unstructured) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, entry := range raw.GetManagedFields() {
		if i, known := slices.BinarySearch(c.b.nodeClients, entry.Manager); !known {
			c.b.nodeClients = slices.Insert(c.b.nodeClients, i, entry.Manager)
		}
	}
}

// dropTerminating removes the objects in namespaces that are being deleted, so that their deletion is not reported.
func (c *capture) dropTerminating() {
	for k := range c.b.objects {
		if c.gone[k.namespace] {
			delete(c.b.objects, k)
		}
	}
}
