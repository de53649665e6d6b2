package cuda

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// decided is what an injection will change, as found in the cluster.
type decided struct {
	workload  *cudashim.Workload
	chosen    []cudashim.Chosen
	libraries map[string][]byte // by architecture
	without   []string          // architectures of its nodes for which no library exists
	budgets   []string          // names of PodDisruptionBudgets, with the number of pods that they require
	// preload maps images to their values of LD_PRELOAD. unread lists the images that could not be read, with the
	// reasons.
	preload  map[string]string
	unread   []string
	notes    []string // what the user should know before confirming
	replaced cudashim.Replacement
	changes  []string // descriptions; set only by a server dry run or a preflight
}

// decide finds the workload, its containers and the libraries for its nodes. It returns an error if the fault cannot
// work.
func (in *injecting) decide(
	ctx context.Context, cluster *cudashim.Cluster, namespace, ledgerNamespace string,
) (*decided, error) {
	found, err := cluster.Find(ctx, namespace, in.name)
	if err != nil {
		return nil, err
	}
	if err := fault.CheckNamespace(found.Target(), found.Target().Namespace, ledgerNamespace); err != nil {
		return nil, err
	}
	d := &decided{workload: found}
	if d.chosen, err = found.Select(in.selection); err != nil {
		return nil, err
	}
	// Read from the API server's cache.
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	if err := checkNodes("--only-on-node", in.onlyOn, nodes.Items); err != nil {
		return nil, err
	}
	if err := checkNodes("--pin-node", in.pinTo, nodes.Items); err != nil {
		return nil, err
	}
	if err := checkMemory(in.fault.MemLimit, nodes.Items); err != nil {
		return nil, err
	}
	archs, err := cluster.Architectures(ctx, found, d.chosen)
	if err != nil {
		return nil, err
	}
	if d.libraries, d.without, err = libraries(archs, in.fault.Layer); err != nil {
		return nil, err
	}
	d.budgets, d.notes, d.replaced = budgets(ctx, cluster, found), cluster.Notes(ctx, found), found.Replacement()
	return d, nil
}

// libraries returns the shims for these architectures, and the architectures for which there is no shim. On nodes with
// such an architecture, ld.so prints a warning and continues.
func libraries(archs []string, layer cudafault.Layer) (found map[string][]byte, without []string, err error) {
	found = map[string][]byte{}
	var errs []error
	for _, arch := range archs {
		library, err := cudafault.Library(arch, layer)
		if err != nil {
			without, errs = append(without, arch), append(errs, err)
			continue
		}
		found[arch] = library
	}
	if len(found) == 0 {
		return nil, nil, errors.Join(errs...)
	}
	return found, without, nil
}

// checkNodes returns an error if a node does not exist.
func checkNodes(flag string, names []string, nodes []corev1.Node) error {
	for _, name := range names {
		if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name }) {
			return fmt.Errorf("%s: %w", flag, fault.NodeNotFound(name, fault.NodeNames(nodes)))
		}
	}
	return nil
}

// memoryLabel is the node label with the GPU memory in MiB, set by NVIDIA's GPU feature discovery.
const memoryLabel = "nvidia.com/gpu.memory"

// checkMemory returns an error if the limit exceeds the memory of every GPU in the cluster. If no node has the memory
// label, any limit is allowed.
func checkMemory(limit uint64, nodes []corev1.Node) error {
	var largest uint64
	for _, n := range nodes {
		if mib, err := strconv.ParseUint(n.Labels[memoryLabel], 10, 32); err == nil {
			largest = max(largest, mib<<20)
		}
	}
	if limit > largest && largest > 0 {
		return fmt.Errorf("--mem-limit %s has no effect: the largest GPU in the cluster has %s (label %s)",
			cudafault.FormatSize(limit), cudafault.FormatSize(largest), memoryLabel)
	}
	return nil
}

// budgets returns the PodDisruptionBudgets that apply to a workload's pods. They are informational, so errors are
// ignored.
func budgets(ctx context.Context, cluster *cudashim.Cluster, w *cudashim.Workload) []string {
	set, _, err := unstructured.NestedStringMap(w.Object.Object, "spec", "template", "metadata", "labels")
	if err != nil || len(set) == 0 {
		return nil // for other kinds, the controller determines the pods' labels
	}
	list, err := cluster.Client.PolicyV1().PodDisruptionBudgets(w.Object.GetNamespace()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var names []string
	for _, budget := range list.Items {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || selector.Empty() || !selector.Matches(labels.Set(set)) {
			continue
		}
		names = append(names, fmt.Sprintf("%s (%d of %s must be healthy)", budget.Name, budget.Status.DesiredHealthy,
			count.Of(budget.Status.ExpectedPods, "pod")))
	}
	return names
}

// needs returns the permissions that the run needs in addition to those for every fault.
func (d *decided) needs(ofWorkload []fault.Permission) []fault.Permission {
	namespace := d.workload.Target().Namespace
	return fault.Permissions(ofWorkload, askPermissions(namespace))
}

// containers returns the containers that get the shim, such as "container main" or, if there are several templates,
// "containers decode/main, prefill/main".
func (d *decided) containers() string {
	var names []string
	for _, c := range d.chosen {
		for _, container := range c.Containers {
			name := container.Name
			if len(d.workload.Templates) > 1 && c.Template.Name != "" {
				name = c.Template.Name + "/" + name
			}
			names = append(names, name)
		}
	}
	if len(names) == 1 {
		return "container " + names[0]
	}
	return "containers " + strings.Join(names, ", ")
}

// onGPUs reports whether one of the chosen containers requests GPUs.
func (d *decided) onGPUs() bool {
	return slices.ContainsFunc(d.chosen, func(c cudashim.Chosen) bool {
		return slices.ContainsFunc(c.Containers, func(container cudashim.Container) bool { return container.GPU })
	})
}

// gpusEach returns the number of GPUs that the only chosen container with GPUs requests. It returns 0 if the number is
// unknown or there are several such containers, and -1 if none requests GPUs.
func (d *decided) gpusEach() int {
	if !d.onGPUs() {
		return -1
	}
	each := 0
	for _, c := range d.chosen {
		with := 0
		for _, container := range c.Containers {
			if !container.GPU {
				continue
			}
			if with++; with > 1 || (each != 0 && each != container.GPUs) {
				return 0
			}
			each = container.GPUs
		}
	}
	return each
}

// needsRoom reports whether a rolling update of the Deployment starts a new pod before it stops an old one, which is
// the default for a single replica. With GPUs, such an update needs a free GPU.
func needsRoom(w *cudashim.Workload) bool {
	if kind := w.Object.GroupVersionKind(); kind.Group != "apps" || kind.Kind != "Deployment" {
		return false
	}
	var d appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(w.Object.Object, &d); err != nil ||
		d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return false
	}
	replicas, most := 1, intstr.FromString("25%") // the API server's defaults
	if d.Spec.Replicas != nil {
		replicas = int(*d.Spec.Replicas)
	}
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil && rolling.MaxUnavailable != nil {
		most = *rolling.MaxUnavailable
	}
	unavailable, err := intstr.GetScaledValueFromIntOrPercent(&most, replicas, false)
	return err == nil && unavailable == 0 && replicas > 0
}

// images returns the distinct images of the chosen containers.
func images(chosen []cudashim.Chosen) []string {
	set := map[string]bool{}
	for _, c := range chosen {
		for _, container := range c.Containers {
			if container.Image != "" {
				set[container.Image] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
