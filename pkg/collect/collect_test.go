package collect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// TestCollectKeepsWhatMatters verifies that, in a cluster with 50,000 pods, exactly the pods that may explain GPU
// problems are kept. A missing pod would not be noticed.
func TestCollectKeepsWhatMatters(t *testing.T) {
	t.Parallel()
	cluster, _ := connected(aCluster()...)
	s := collected(t, cluster)
	if got, want := names(s.Pods),
		"helper plugin-bad plugin-good coredns pending rejected train wrong-name shimmed web-gpu-node"; got != want {
		t.Errorf("pods %s, wanted %s", got, want)
	}
	if s.Meta.PodsSeen != 14 {
		t.Errorf("%d pods were seen, wanted 14", s.Meta.PodsSeen)
	}
	if got, want := names(s.Events), "pending.Scheduled train.Unhealthy gone.BackOff"; got != want {
		t.Errorf("events %s, wanted %s", got, want)
	}
	if got := names(s.ConfigMaps); got != "plugin-config plugin-variables" {
		t.Errorf("ConfigMaps %s, wanted only the device plugin's", got)
	}
	if s.Nodes[0].ManagedFields != nil || s.Nodes[0].Status.Images != nil {
		t.Error("nodes keep fields that nobody reads")
	}
	for i := range s.Pods {
		switch p := &s.Pods[i]; p.Name {
		case "web-gpu-node":
			if p.Spec.Containers[0].Env != nil {
				t.Error("somebody else's pod keeps its variables")
			}
		case "pending":
			if got := p.Spec.Containers[0].Env[0].Value; got != snapshot.Redacted {
				t.Errorf("a token came through: %q", got)
			}
		}
	}
	if len(s.Logs) == 0 || s.Logs[0].Pod != "plugin-bad" || !s.Logs[0].Previous {
		t.Errorf("the log of the component that crashed was not read: %+v", s.Logs)
	}
	if len(s.Missing) > 0 {
		t.Errorf("something is missing where nothing is: %+v", s.Missing)
	}
}

// TestWhatIsForbiddenIsMissing verifies that evidence is recorded as missing, not as healthy, if the user lacks
// permissions.
func TestWhatIsForbiddenIsMissing(t *testing.T) {
	t.Parallel()
	cluster, client := connected(aCluster()...)
	forbid(client, "events", "secrets", "configmaps", "daemonsets", "resourcequotas", "runtimeclasses")
	client.PrependReactor("list", "namespaces", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTooManyRequests("later", 1)
	})
	s := collected(t, cluster)
	for _, what := range []string{
		"api/events", "helm", "runs", "api/daemonsets", "api/resourcequotas", "api/runtimeclasses",
	} {
		if got := why(s, what); !strings.HasPrefix(got, "forbidden: ") {
			t.Errorf("%s: %q, wanted it to be forbidden", what, got)
		}
	}
	if got := why(s, "api/namespaces"); !strings.Contains(got, "try again later") {
		t.Errorf("the throttled list of namespaces: %q", got)
	}
	if len(s.Nodes) != 3 || len(s.Pods) == 0 {
		t.Error("what is allowed was not collected")
	}
}

// TestCollectFailsWhenThereIsNothingToSee verifies that nodes or pods suffice for a collection. Without both, or
// without a cluster, an empty report would look healthy.
func TestCollectFailsWhenThereIsNothingToSee(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		nodes, pods error
		want        string
	}{
		"no right to nodes": {nodes: apierrors.NewForbidden(schema.GroupResource{}, "", nil)},
		"no right to pods":  {pods: apierrors.NewForbidden(schema.GroupResource{}, "", nil)},
		"no right to both": {
			apierrors.NewForbidden(schema.GroupResource{}, "", nil),
			apierrors.NewForbidden(schema.GroupResource{}, "", nil), "cannot list nodes or pods",
		},
		"away": {
			nodes: &url.Error{Op: "Get", URL: "https://x", Err: syscall.ECONNREFUSED}, want: "connection refused",
		},
		"not logged in":       {nodes: apierrors.NewUnauthorized("who?"), want: "list nodes"},
		"too slow":            {nodes: context.DeadlineExceeded},
		"the server is upset": {nodes: apierrors.NewInternalError(errors.New("etcd"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, client := connected(aCluster()...)
			for resource, err := range map[string]error{"nodes": test.nodes, "pods": test.pods} {
				if err != nil {
					client.PrependReactor("list", resource,
						func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, err })
				}
			}
			s, err := Collect(t.Context(), cluster, Options{Clock: clock, NoImages: true}, nil)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("%v, though something can be seen", err)
			case test.want == "" && len(s.Missing) == 0:
				t.Error("nothing is missing")
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, wanted it to say %q", err, test.want)
			}
		})
	}
}

// TestCollectEndsWithItsContext verifies that Ctrl-C stops the collection at once, with its own reason.
func TestCollectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cluster, client := connected(aCluster()...)
	stopped := errors.New("stopped by the user")
	ctx, cancel := context.WithCancelCause(t.Context())
	client.PrependReactor("list", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
		cancel(stopped)
		return true, nil, context.Canceled
	})
	if _, err := Collect(ctx, cluster, Options{Clock: clock}, nil); !errors.Is(err, stopped) {
		t.Errorf("%v, wanted %v", err, stopped)
	}
}

// TestAListThatLostItsPlace verifies that a list with many pages can be completed after its continue token has expired.
func TestAListThatLostItsPlace(t *testing.T) {
	t.Parallel()
	expired := func(token string) error {
		err := apierrors.NewResourceExpired("the provided continue parameter is too old")
		err.ErrStatus.ListMeta.Continue = token
		return err
	}
	for name, test := range map[string]struct {
		// answer returns the error for the nth request for the second page, or nil to return the page.
		answer func(n int, token string) error
		limit  int64 // of the last request
	}{
		"goes on with the present state": {func(n int, token string) error {
			if token == "fresh" {
				return nil
			}
			return expired("fresh")
		}, 2},
		"begins anew": {func(n int, _ string) error {
			if n == 0 {
				return expired("")
			}
			return nil
		}, 2},
		"asks for all at once in the end":     {func(int, string) error { return expired("") }, 0},
		"is not led in circles by its server": {func(_ int, token string) error { return expired(token) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := 0
			var last int64
			list := func(_ context.Context, options metav1.ListOptions) (page[int], error) {
				last = options.Limit
				if options.Limit == 0 {
					return page[int]{items: []int{1, 2, 3}}, nil
				}
				if options.Continue == "" {
					return page[int]{items: []int{1, 2}, next: "second"}, nil
				}
				second++
				if err := test.answer(second-1, options.Continue); err != nil {
					return page[int]{}, err
				}
				return page[int]{items: []int{3}}, nil
			}
			got, err := all(t.Context(), metav1.ListOptions{Limit: 2}, list, func(*int) bool { return true })
			if err != nil || !slices.Equal(got, []int{1, 2, 3}) || last != test.limit {
				t.Errorf("%v (%v), the last request with limit %d, wanted 1 2 3 and %d", got, err, last, test.limit)
			}
		})
	}
}

// TestListsGrowByTheServersCount verifies that a long list is not copied while it grows, if the API server reports the
// number of remaining objects. A short list is read even if this number is wrong, and uses no more memory than its
// pages.
func TestListsGrowByTheServersCount(t *testing.T) {
	t.Parallel()
	for _, left := range []int64{0, 2, -1, math.MaxInt64} {
		list := func(_ context.Context, options metav1.ListOptions) (page[int], error) {
			if options.Continue == "" {
				return page[int]{items: []int{1, 2}, next: "second", left: left}, nil
			}
			return page[int]{items: []int{3, 4}}, nil
		}
		got, err := all(t.Context(), metav1.ListOptions{Limit: 2}, list, func(*int) bool { return true })
		if err != nil || !slices.Equal(got, []int{1, 2, 3, 4}) {
			t.Errorf("%d left: %v (%v), wanted 1 2 3 4", left, got, err)
		}
		if left == 2 && cap(got) != 4 {
			t.Errorf("memory for %d objects, wanted 4: the list was moved", cap(got))
		}
		if cap(got) > roomLimit*11/10 { // an allocation is rounded up
			t.Errorf("%d left: memory for %d objects", left, cap(got))
		}
	}
}

// TestCustomResources verifies that custom resources are requested in the version that is served, and only if they are
// installed.
func TestCustomResources(t *testing.T) {
	t.Parallel()
	cluster, client := connected(aCluster()...)
	client.Resources = append(client.Resources,
		&metav1.APIResourceList{
			GroupVersion: "nvidia.com/v1",
			APIResources: []metav1.APIResource{{Name: "clusterpolicies"}, {Name: "clusterpolicies/status"}},
		},
		&metav1.APIResourceList{
			GroupVersion: "monitoring.coreos.com/v1", APIResources: []metav1.APIResource{{Name: "servicemonitors"}},
		},
		&metav1.APIResourceList{
			GroupVersion: "resource.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "resourceslices"}},
		},
	)
	policy := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": map[string]any{
			"name": "cluster-policy", "managedFields": []any{map[string]any{"manager": "helm"}},
		},
		"spec": map[string]any{
			"driver": map[string]any{"env": []any{map[string]any{"name": "A_PASSWORD", "value": "hush"}}},
		},
	}}
	custom := cluster.Dynamic.(*dynamicfake.FakeDynamicClient)
	policies := schema.GroupVersionResource{Group: "nvidia.com", Version: "v1", Resource: "clusterpolicies"}
	if err := custom.Tracker().Create(policies, policy, ""); err != nil {
		t.Fatal(err)
	}
	custom.PrependReactor("list", "servicemonitors", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "servicemonitors"}, "", nil)
	})
	custom.PrependReactor("list", "nvidiadrivers", func(kubetesting.Action) (bool, runtime.Object, error) {
		t.Error("a resource was asked for that is not installed")
		return false, nil, nil
	})
	s := collected(t, cluster)
	if len(s.ClusterPolicies) != 1 || strings.Contains(fmt.Sprint(s.ClusterPolicies[0].Object), "hush") ||
		s.ClusterPolicies[0].GetManagedFields() != nil {
		t.Errorf("the ClusterPolicy is missing, or keeps what it must not: %+v", s.ClusterPolicies)
	}
	if !slices.Equal(s.CRDs, []string{"clusterpolicies.nvidia.com", "servicemonitors.monitoring.coreos.com"}) {
		t.Errorf("CRDs are %q", s.CRDs)
	}
	if got := why(s, "api/servicemonitors"); !strings.HasPrefix(got, "forbidden") {
		t.Errorf("ServiceMonitors: %q", got)
	}
	if got := why(s, "api/resourceslices"); !strings.Contains(got, "only as v1beta1") {
		t.Errorf("ResourceSlices of an old version: %q", got)
	}
	if got := why(s, "api/nvidiadrivers") + why(s, "api/prometheuses"); got != "" {
		t.Errorf("what is not installed is no missing evidence: %q", got)
	}
}

// TestDynamicResourceAllocation verifies that only NVIDIA devices and unallocated claims are kept.
func TestDynamicResourceAllocation(t *testing.T) {
	t.Parallel()
	name := "good"
	allocated := func(driver string) *resourcev1.AllocationResult {
		return &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Driver: driver}},
		}}
	}
	cluster, client := connected(
		gpuNode("good"),
		&resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "ours"},
			Spec:       resourcev1.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &name},
		},
		&resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: resourcev1.ResourceSliceSpec{Driver: "net.example.com"},
		},
		&resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "ours"},
			Status:     resourcev1.ResourceClaimStatus{Allocation: allocated("gpu.nvidia.com")},
		},
		&resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "other"},
			Status:     resourcev1.ResourceClaimStatus{Allocation: allocated("net.example.com")},
		},
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "waits"}},
	)
	client.Resources = append(client.Resources, &metav1.APIResourceList{
		GroupVersion: "resource.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "resourceslices"}},
	})
	s := collected(t, cluster)
	if got := names(s.ResourceSlices) + "; " + names(s.ResourceClaims); got != "ours; ours waits" {
		t.Errorf("kept %s", got)
	}
}

// TestOwnRuns verifies that this tool's runs are collected, because a fault is the root cause of its effects. Lines in
// a kernel log remain long after their run has been closed.
func TestOwnRuns(t *testing.T) {
	t.Parallel()
	cluster, _ := connected(aCluster()...)
	create := func(id, fault string, undo ledger.Undo, state ledger.State) {
		t.Helper()
		_, err := cluster.Ledger.Create(t.Context(), ledger.Run{
			APIVersion: ledger.APIVersion, Kind: ledger.KindRun, ID: id, Fault: fault, Created: now, Deadline: now,
			Phase: ledger.Proven, Steps: []ledger.Step{{
				ID: "1", Target: ledger.Target{Kind: "Node", Name: "good"}, State: state, Undo: undo,
				Evidence: []ledger.Evidence{{Source: "/dev/kmsg sequence 4711", Time: now, Text: "NVRM: Xid"}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	create("xid-aaaaaa", "xid", ledger.Undo{Kind: "kernellog", Permanent: true}, ledger.StateProven)
	create("fix-aaaaaa", "fix", ledger.Undo{Kind: "x"}, ledger.StateProven)
	create("runtime-aaaaaa", "runtime", ledger.Undo{Kind: "x"}, ledger.StateReverted)
	closed := func(id, fault string, at time.Time, undo ledger.Undo, state ledger.State) {
		t.Helper()
		_, err := cluster.Ledger.Create(t.Context(), ledger.Run{
			APIVersion: ledger.APIVersion, Kind: ledger.KindRun, ID: id, Fault: fault, Created: at, Deadline: at,
			Closed: at, Phase: ledger.Reverted, Steps: []ledger.Step{{
				ID: "1", Target: ledger.Target{Kind: "Node", Name: "gpu-1"}, State: state, Undo: undo,
				Evidence: []ledger.Evidence{{Source: "/dev/kmsg sequence 5", Time: at, Text: "NVRM: Xid"}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	lines := ledger.Undo{Kind: "kernel-log", Permanent: true}
	closed("xid-bbbbbb", "xid", now.Add(-6*24*time.Hour), lines, ledger.StatePermanent)
	closed("xid-cccccc", "xid", now.Add(-8*24*time.Hour), lines, ledger.StatePermanent)
	closed("scenario-bbbbbb", "scenario", now.Add(-time.Hour), lines, ledger.StatePermanent)
	closed("runtime-bbbbbb", "runtime", now.Add(-time.Hour), ledger.Undo{Kind: "node-files"}, ledger.StateReverted)
	s := collected(t, cluster)
	var over []string
	s.Runs = slices.DeleteFunc(s.Runs, func(r snapshot.Run) bool {
		if r.Closed.IsZero() {
			return false
		}
		over = append(over, r.ID)
		if len(r.Targets) != 1 || r.Targets[0].Evidence[0].Source != "/dev/kmsg sequence 5" {
			t.Errorf("a closed run has not its line: %+v", r)
		}
		return true
	})
	if slices.Sort(over); !slices.Equal(over, []string{"scenario-bbbbbb", "xid-bbbbbb"}) {
		t.Fatalf("of closed runs those count whose lines of the last week are in a kernel log: %q", over)
	}
	if got := suspicious(s); slices.Contains(got, "gpu-1") {
		t.Errorf("a node is suspicious for a run that is over: %q", got)
	}
	if len(s.Runs) != 1 || s.Runs[0].ID != "xid-aaaaaa" || !s.Runs[0].Targets[0].Permanent ||
		s.Runs[0].Targets[0].Evidence[0].Source != "/dev/kmsg sequence 4711" {
		t.Fatalf("runs are %+v", s.Runs)
	}
	if s.Runs[0].Revert != "kubectl gpu-fault revert xid-aaaaaa" {
		t.Errorf("revert with %q", s.Runs[0].Revert)
	}
	if got := suspicious(s); !slices.Contains(got, "good") {
		t.Errorf("a node with a fault of ours is not suspicious: %q", got)
	}
}
