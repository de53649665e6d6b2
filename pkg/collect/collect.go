// Package collect fills a snapshot from a cluster, with few, paginated calls. It keeps only data that is relevant for
// GPUs.
//
// Evidence that cannot be collected (no permission, no response, an API version that is not served) becomes an entry in
// Snapshot.Missing; the rest is still collected. Secrets are removed before the snapshot is used.
package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Cluster is the source of a collection.
type Cluster struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Ledger contains this tool's own runs; nil to skip them.
	Ledger *ledger.Store
}

// Connect returns clients that use protobuf if supported: lists are then a third of the size, and take a fifth of the
// time to decode.
func Connect(config *rest.Config, ledgerNamespace string) (Cluster, error) {
	binary := rest.CopyConfig(config)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return Cluster{}, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return Cluster{}, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return Cluster{Client: client, Dynamic: custom, Ledger: ledger.New(client, ledgerNamespace)}, nil
}

// Options configure the collection.
type Options struct {
	Client  string // version of this tool
	Context string // context in the kubeconfig
	// APIOnly is set if no node will be read.
	APIOnly bool
	// NoLogs skips pod logs. NoImages skips queries to registries.
	NoLogs, NoImages bool
	// Keep selects additional pods to keep; nil for none.
	Keep func(*corev1.Pod) bool
	// Clock returns the current time; nil means time.Now.
	Clock func() time.Time
	// Registries is the transport for registries; nil for the default, with the proxies from the environment.
	Registries http.RoundTripper
}

// Limits for a collection.
const (
	// pageSize is the same as kubectl's; a page of pods is a few MiB.
	pageSize = 500
	// pageTimeout is the timeout of one page of a list.
	pageTimeout = time.Minute
	// parallelLists is the number of concurrent list requests. API priority and fairness allows each client only a few
	// at a time.
	parallelLists = 4
)

// collector fills one snapshot.
type collector struct {
	Cluster
	options  Options
	progress func(string)
	s        *snapshot.Snapshot
	keeper   *keeper
	served   served
	// ofFailing is true if a log was read because its pod is failing, and false if it was read because it may explain
	// why other pods are failing.
	ofFailing bool

	mu sync.Mutex // protects the following fields, and s.Missing
	// refused contains the errors from list requests that are required for a diagnosis.
	refused map[string]error
}

// Collect collects a snapshot. It fails only if ctx is done, the API server is unreachable or does not authenticate the
// user, or neither nodes nor pods can be listed. All other errors are recorded in Missing. progress may be called
// concurrently, and may be nil.
func Collect(ctx context.Context, cluster Cluster, options Options, progress func(string)) (*snapshot.Snapshot, error) {
	if progress == nil {
		progress = func(string) {}
	}
	if options.Clock == nil {
		options.Clock = time.Now
	}
	c := &collector{
		Cluster: cluster, options: options, progress: progress, refused: map[string]error{},
		s: &snapshot.Snapshot{Meta: snapshot.Meta{
			APIVersion: snapshot.APIVersion, Kind: snapshot.Kind,
			Created: options.Clock().UTC().Truncate(time.Millisecond),
			Client:  options.Client, Context: options.Context, APIOnly: options.APIOnly,
		}},
	}
	c.keeper = newKeeper(c.s.Meta.Created, options.Keep)
	for _, phase := range []func(context.Context) error{c.ground, c.middle, c.top, c.outside, c.network, c.volumes} {
		if err := phase(ctx); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	c.s.Sort()
	hidden := hiddenVariables(c.s.Pods)
	snapshot.Redact(c.s)
	if hidden > 0 {
		if c.s.Meta.Redacted == nil {
			c.s.Meta.Redacted = map[string]int{}
		}
		c.s.Meta.Redacted["pods env"] += hidden
	}
	sorting.Func(c.s.Missing,
		func(a, b snapshot.Missing) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why)) })
	return c.s, nil
}

// ground collects the data that determines which other objects are relevant: nodes, DaemonSets, and the served APIs.
func (c *collector) ground(ctx context.Context) error {
	c.progress("listing nodes")
	err := c.together(ctx,
		func(ctx context.Context) {
			c.s.Nodes = listed(ctx, c, "api/nodes",
				streamed(c.Client.CoreV1().RESTClient(), "nodes",
					paged(c.Client.CoreV1().Nodes().List, func(l *corev1.NodeList) []corev1.Node { return l.Items })),
				c.keeper.node)
		},
		func(ctx context.Context) {
			c.s.DaemonSets = listed(ctx, c, "api/daemonsets", paged(c.Client.AppsV1().DaemonSets("").List,
				func(l *appsv1.DaemonSetList) []appsv1.DaemonSet { return l.Items }), c.keeper.daemonSet)
		},
		c.discover,
	)
	if err != nil {
		return err
	}
	return c.unreachable()
}

// middle collects pods and small objects.
func (c *collector) middle(ctx context.Context) error {
	raiseMemoryLimit(len(c.s.Nodes))
	c.keeper.ready(c.s.Nodes, c.s.DaemonSets)
	c.progress("listing pods (" + count.Of(len(c.s.Nodes), "node") + ")")
	err := c.together(ctx,
		func(ctx context.Context) {
			c.s.Pods = listed(ctx, c, "api/pods",
				streamed(c.Client.CoreV1().RESTClient(), "pods",
					paged(c.Client.CoreV1().Pods("").List, func(l *corev1.PodList) []corev1.Pod { return l.Items })),
				c.keeper.pod)
			c.s.Meta.PodsSeen = len(c.s.Pods) + len(c.keeper.left)
		},
		func(ctx context.Context) {
			c.s.Namespaces = listed(ctx, c, "api/namespaces", paged(c.Client.CoreV1().Namespaces().List,
				func(l *corev1.NamespaceList) []corev1.Namespace { return l.Items }), trim)
			c.s.RuntimeClasses = listed(ctx, c, "api/runtimeclasses", paged(c.Client.NodeV1().RuntimeClasses().List,
				func(l *nodev1.RuntimeClassList) []nodev1.RuntimeClass { return l.Items }), trim)
			c.s.ResourceQuotas = listed(ctx, c, "api/resourcequotas", paged(c.Client.CoreV1().ResourceQuotas("").List,
				func(l *corev1.ResourceQuotaList) []corev1.ResourceQuota { return l.Items }), trim)
			c.s.LimitRanges = listed(ctx, c, "api/limitranges", paged(c.Client.CoreV1().LimitRanges("").List,
				func(l *corev1.LimitRangeList) []corev1.LimitRange { return l.Items }), trim)
		},
		c.dra,
		c.custom,
	)
	if err != nil {
		return err
	}
	return c.unreachable()
}

// top collects the objects that depend on the relevant pods.
func (c *collector) top(ctx context.Context) error {
	c.keeper.pods(c.s.Pods)
	c.progress(fmt.Sprintf("listing events (pods: %d, relevant: %d)", c.s.Meta.PodsSeen, len(c.s.Pods)))
	return c.together(ctx,
		func(ctx context.Context) {
			c.s.Events = listed(ctx, c, "api/events",
				streamed(c.Client.CoreV1().RESTClient(), "events", paged(c.Client.CoreV1().Events("").List,
					func(l *corev1.EventList) []corev1.Event { return l.Items })),
				c.keeper.event)
		},
		c.configMaps,
		c.helm,
		c.runs,
	)
}

// outside collects logs from kubelets, and image platforms from registries.
func (c *collector) outside(ctx context.Context) error {
	return c.together(ctx, c.logs, c.images)
}

// together runs parts concurrently.
func (c *collector) together(ctx context.Context, parts ...func(context.Context)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelLists)
	for _, part := range parts {
		group.Go(func() error {
			part(ctx)
			return nil
		})
	}
	return group.Wait()
}

// unreachable returns an error if there is nothing to diagnose.
func (c *collector) unreachable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes, pods := c.refused["api/nodes"], c.refused["api/pods"]
	var status apierrors.APIStatus
	switch {
	case nodes != nil && !errors.As(nodes, &status) && !errors.Is(nodes, context.DeadlineExceeded):
		return fmt.Errorf("list nodes: %w", nodes)
	case apierrors.IsUnauthorized(nodes):
		return fmt.Errorf("list nodes: %w", nodes)
	case nodes != nil && pods != nil:
		return fmt.Errorf("nothing to diagnose: cannot list nodes or pods: %w",
			errors.Join(nodes, pods))
	}
	return nil
}

// missing records evidence that could not be collected.
func (c *collector) missing(what, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Missing = append(c.s.Missing, snapshot.Missing{What: what, Why: why})
}

// trim removes from an object the fields that only the API server needs. It always returns true, so that the object is
// kept.
func trim[T any, P interface {
	*T
	metav1.Object
}](object P) bool {
	object.SetManagedFields(nil)
	return true
}
