// Package scheduler reproduces the calculations of the Kubernetes scheduler: which pods hold GPUs, and why pending pods
// are not scheduled.
package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// AllocationView shows which pods hold which GPUs and which pods are waiting for GPUs.
type AllocationView struct {
	Nodes   []NodeAllocation    `json:"nodes"`
	Pending []PendingAllocation `json:"pending,omitempty"`
}

// NodeAllocation is the allocation on a GPU node. On a MIG or time-sliced node, the GPUs are the units that the device
// plugin advertises: partitions or replicas.
type NodeAllocation struct {
	Node string `json:"node"`
	// Product is the GPU model, for example NVIDIA-H100-80GB-HBM3. It is empty if no label contains the model.
	Product string `json:"product,omitempty"`
	// Schedulable is false if the node is cordoned or not Ready.
	Schedulable bool             `json:"schedulable"`
	Resources   []ResourceCounts `json:"resources"`
	Holders     []Holder         `json:"holders,omitempty"`
}

// ResourceCounts contains the counts for one resource on one node.
type ResourceCounts struct {
	// Resource is a resource name such as nvidia.com/gpu or nvidia.com/mig-1g.10gb, or the name of a DRA driver such as
	// gpu.nvidia.com.
	Resource    string `json:"resource"`
	Capacity    int64  `json:"capacity"`
	Allocatable int64  `json:"allocatable"` // the healthy part of Capacity
	// Used is the amount requested by unfinished pods. It may exceed Allocatable if GPUs were lost.
	Used int64 `json:"used"`
	Free int64 `json:"free"`
}

// Holder is a pod that holds GPUs.
type Holder struct {
	Namespace string     `json:"namespace"`
	Pod       string     `json:"pod"`
	OwnerKind string     `json:"ownerKind,omitempty"` // for example Job or Deployment
	OwnerName string     `json:"ownerName,omitempty"`
	Resource  string     `json:"resource"`
	GPUs      int64      `json:"gpus"`
	Phase     string     `json:"phase"`
	Started   *time.Time `json:"started,omitempty"`
	Age       string     `json:"age"`
	// Idle is true if the pod's GPUs are idle. It is nil if this is unknown.
	Idle *bool `json:"idle,omitempty"`

	node string
}

// PendingAllocation is a pod that is waiting for GPUs.
type PendingAllocation struct {
	Namespace string           `json:"namespace"`
	Pod       string           `json:"pod"`
	GPUs      map[string]int64 `json:"gpus,omitempty"`
	Age       string           `json:"age"`
	Finding   string           `json:"finding,omitempty"` // ID of the finding that explains the wait
	Reason    string           `json:"reason"`
}

func (h Holder) owner() string {
	if h.OwnerName == "" {
		return "none"
	}
	return h.OwnerKind + " " + h.OwnerName
}

// Allocation returns which pods hold which GPUs.
func Allocation(f *facts.Facts) AllocationView {
	v := AllocationView{Nodes: []NodeAllocation{}}
	s := New(f)
	devices := draDevices(f)
	for _, n := range f.GPUNodes {
		a := NodeAllocation{
			Node: n.Name, Product: facts.Product(n), Schedulable: facts.Available(n), Resources: []ResourceCounts{},
		}
		for name := range n.Status.Capacity {
			if facts.LooksLikeGPU(name) {
				a.Resources = append(a.Resources,
					ResourceCounts{
						string(name), n.Capacity(name), n.Allocatable(name), s.Use(n)[name], s.Free(n, name),
					})
			}
		}
		a.Holders = s.Holders([]*facts.Node{n}, nil)
		for _, driver := range slices.Sorted(maps.Keys(devices[n.Name])) {
			d := devices[n.Name][driver]
			used := int64(0)
			for _, h := range d.holders {
				used += h.GPUs
			}
			a.Resources = append(a.Resources, ResourceCounts{driver, d.count, d.count, used, max(0, d.count-used)})
			a.Holders = append(a.Holders, d.holders...)
		}
		sorting.Func(a.Resources, func(x, y ResourceCounts) int { return cmp.Compare(x.Resource, y.Resource) })
		v.Nodes = append(v.Nodes, a)
	}
	for _, p := range Pending(f) {
		v.Pending = append(v.Pending, pendingAllocation(f, p))
	}
	return v
}

func pendingAllocation(f *facts.Facts, p PendingPod) PendingAllocation {
	a := PendingAllocation{
		Namespace: p.Pod.Namespace, Pod: p.Pod.Name, Age: words.AgeText(f.Age(p.Pod)), Finding: p.Id, Reason: p.Title,
	}
	for name, n := range facts.GPUDemand(p.Pod) {
		if a.GPUs == nil {
			a.GPUs = map[string]int64{}
		}
		a.GPUs[string(name)] = n
	}
	if a.Reason == "" && len(p.Evidence) > 0 { // another layer reports the reason
		a.Reason = p.Evidence[0].Text
	}
	a.Reason = cmp.Or(a.Reason, "unknown")
	return a
}

// Holders returns the pods that hold GPUs on the nodes, oldest first. If want is not empty, only the resources in want
// count.
func (s *Scheduler) Holders(nodes []*facts.Node, want map[corev1.ResourceName]int64) []Holder {
	var all []Holder
	for _, n := range nodes {
		for _, pod := range n.Pods {
			if facts.Ended(pod) {
				continue
			}
			counts := facts.GPUDemand(pod)
			for _, name := range slices.Sorted(maps.Keys(counts)) {
				if _, wanted := want[name]; len(want) == 0 || wanted {
					h := newHolder(s.F, n, pod)
					h.Resource, h.GPUs = string(name), counts[name]
					all = append(all, h)
				}
			}
		}
	}
	sorting.StableFunc(all, func(a, b Holder) int {
		if a.Started != nil && b.Started != nil {
			return a.Started.Compare(*b.Started)
		}
		return 0
	})
	return all
}

func newHolder(f *facts.Facts, n *facts.Node, pod *corev1.Pod) Holder {
	h := Holder{
		Namespace: pod.Namespace, Pod: pod.Name, Phase: string(pod.Status.Phase), Age: words.AgeText(f.Age(pod)),
		Idle: facts.Idle(n, pod), node: n.Name,
	}
	if pod.Status.StartTime != nil {
		h.Started = &pod.Status.StartTime.Time
	} else if !pod.CreationTimestamp.IsZero() {
		h.Started = &pod.CreationTimestamp.Time
	}
	if pod.CreationTimestamp.IsZero() {
		h.Age = "unknown"
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		h.OwnerKind, h.OwnerName = owner.Kind, owner.Name
		if hash := pod.Labels["pod-template-hash"]; owner.Kind == "ReplicaSet" && hash != "" {
			h.OwnerKind, h.OwnerName = "Deployment", facts.DeploymentName(pod, owner.Name)
		}
	}
	return h
}

// draNode counts a DRA driver's devices on a node.
type draNode struct {
	count   int64
	holders []Holder
}

// draDevices returns the GPUs that DRA drivers publish and the GPUs that claims hold, by node and driver.
func draDevices(f *facts.Facts) map[string]map[string]*draNode {
	type pool struct{ driver, name string }
	at := map[pool]string{}
	all := map[string]map[string]*draNode{}
	for _, slice := range f.ResourceSlices {
		if slice.Spec.NodeName == nil || !isGPUDriver(slice.Spec.Driver) {
			continue
		}
		node := *slice.Spec.NodeName
		at[pool{slice.Spec.Driver, slice.Spec.Pool.Name}] = node
		if all[node] == nil {
			all[node] = map[string]*draNode{}
		}
		if all[node][slice.Spec.Driver] == nil {
			all[node][slice.Spec.Driver] = &draNode{}
		}
		for _, d := range slice.Spec.Devices {
			if t, ok := d.Attributes["type"]; !ok || t.StringValue == nil || *t.StringValue == "gpu" {
				all[node][slice.Spec.Driver].count++
			}
		}
	}
	for i := range f.ResourceClaims {
		claim := &f.ResourceClaims[i]
		if claim.Status.Allocation == nil {
			continue
		}
		held := map[pool]int64{}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.AdminAccess == nil || !*r.AdminAccess { // admin access does not consume the device
				held[pool{r.Driver, r.Pool}]++
			}
		}
		for _, p := range slices.SortedFunc(
			maps.Keys(held),
			func(a, b pool) int { return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.name, b.name)) },
		) {
			if node := at[p]; node != "" {
				d := all[node][p.driver]
				d.holders = append(d.holders, claimHolder(f, claim, node, p.driver, held[p]))
			}
		}
	}
	return all
}

// claimHolder returns the first pod for which a claim is reserved, or the claim itself if it is not reserved.
func claimHolder(f *facts.Facts, claim *resourcev1.ResourceClaim, node, driver string, count int64) Holder {
	h := Holder{
		Namespace: claim.Namespace, OwnerKind: "ResourceClaim", OwnerName: claim.Name,
		Age: words.AgeText(f.Now.Sub(claim.CreationTimestamp.Time)), node: node,
	}
	for _, user := range claim.Status.ReservedFor {
		if pod := f.Pod(claim.Namespace, user.Name); pod != nil && user.Resource == "pods" {
			if n := f.Node(node); n != nil {
				h = newHolder(f, n, pod)
			}
			break
		}
		h.Pod = user.Name
	}
	h.Resource, h.GPUs = driver, count
	return h
}

func isGPUDriver(driver string) bool {
	return driver == "gpu.nvidia.com" || strings.HasSuffix(driver, ".gpu.nvidia.com")
}
