package xid

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/dcgm"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/devicehealth"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/device"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// prepared is what the layers other than the kernel log add to a plan.
type prepared struct {
	changes          []fault.Change
	needs            []fault.Permission
	checks           []func(context.Context) error
	describe         []func(say func(string, ...any))
	timeout, cleanup time.Duration
	// pods returns the pods with the cuda layer, after the layer has been injected. Without that layer, pods is nil.
	pods func(context.Context, ledger.Run) ([]corev1.Pod, error)
	pod  *gpus.Pod // pod whose GPUs all layers affect, once it is known
	// suppliesDevices reports whether undoing a layer restarts the program that supplies the node's devices.
	suppliesDevices bool
}

// prepare looks up what the layers will change in the cluster, in the order of layerOrder.
func (w *writing) prepare(
	ctx context.Context, cluster *kube.Cluster, names []string, holder gpus.Pod,
) (prepared, error) {
	p := prepared{pod: &gpus.Pod{}, cleanup: fault.DefaultCleanupTimeout}
	for _, layer := range []struct {
		name string
		add  func(context.Context, *kube.Cluster, []string, gpus.Pod, *prepared) error
	}{
		{layerCUDA, w.prepareCUDA}, {layerNVML, w.prepareNVML}, {layerDevice, w.prepareDevice},
		{layerDCGM, w.prepareDCGM},
	} {
		if !w.layers.has(layer.name) {
			continue
		}
		if err := layer.add(ctx, cluster, names, holder, &p); err != nil {
			return p, kube.Explain(err)
		}
	}
	return p, nil
}

// prepareCUDA adds the cuda layer. The other layers affect the GPU of its pod.
func (w *writing) prepareCUDA(
	ctx context.Context, cluster *kube.Cluster, names []string, _ gpus.Pod, p *prepared,
) error {
	if len(names) > 1 { // selected by label
		return errOneNode
	}
	load := w.layers.load(w.code, names, cluster.Namespace)
	load.GPUs = func(each int) (cudafault.Fault, error) { return ofGPUs(w.code, w.gpus, w.layers.workload, each) }
	l, err := load.Prepare(ctx, w.connection, cluster)
	if err != nil {
		return err
	}
	check := l.Check
	l.Check = func(ctx context.Context) error {
		err := check(ctx)
		if errors.Is(err, cudashim.ErrImmutable) {
			return fmt.Errorf("%s is immutable: use `kubectl gpu-fault cuda inject %s --xid %d "+
				"--recreate`, and omit the cuda layer here", w.layers.workload, w.layers.workload, w.code)
		}
		return err
	}
	p.add(l)
	p.pods = l.Pods
	return nil
}

// add adds a change, and what a plan needs to carry it out.
func (p *prepared) add(l cuda.Loading) {
	p.changes, p.needs = append(p.changes, l.Change), append(p.needs, l.Needs...)
	p.checks, p.describe = append(p.checks, l.Check), append(p.describe, l.Describe)
	p.timeout, p.cleanup = p.timeout+l.Timeout, p.cleanup+l.CleanupTimeout
	p.suppliesDevices = p.suppliesDevices || l.SuppliesDevices
}

// prepareNVML adds the nvml layer.
func (w *writing) prepareNVML(
	ctx context.Context, cluster *kube.Cluster, names []string, holder gpus.Pod, p *prepared,
) error {
	for _, name := range names {
		of := holder
		d := &cuda.Daemon{
			Node: name, DaemonSet: w.layers.daemonSet, Pods: w.Pods, Fault: cudafault.Fault{XID: w.code},
			Devices: func(ctx context.Context, r fault.Recorder) ([]int, error) {
				chosen, err := w.pick(ctx, cluster, r, name, of)
				return slices.Sorted(maps.Keys(chosen)), err
			},
		}
		l, err := d.Prepare(ctx, cluster)
		if err != nil {
			return err
		}
		change := l.Change
		l.Change = p.onItsGPU(change, func(pod gpus.Pod) (fault.Change, error) {
			of = pod
			return change, nil
		})
		p.add(l)
		p.timeout += w.Pods.Timeout
	}
	return nil
}

// prepareDevice adds the device layer.
func (w *writing) prepareDevice(
	_ context.Context, cluster *kube.Cluster, names []string, holder gpus.Pod, p *prepared,
) error {
	for _, name := range names {
		of := func(pod gpus.Pod) (fault.Change, error) {
			unhealthy := device.Unhealthy{Node: name, GPU: w.gpu, Pod: pod, Pods: w.Pods}
			change, err := unhealthy.Change(w.connection, cluster)
			if w.layers.has(layerNVML) {
				change = orReported(change)
			}
			return change, err
		}
		change, err := of(holder)
		if err != nil {
			return err
		}
		p.changes = append(p.changes, p.onItsGPU(change, of))
		p.checks = append(p.checks, func(ctx context.Context) error {
			return device.CheckPlugin(ctx, cluster.Client, name)
		})
		p.timeout, p.cleanup = p.timeout+w.Pods.Timeout, p.cleanup+w.Pods.Timeout
	}
	p.needs = append(p.needs, device.Permissions(w.connection.LedgerNamespace)...)
	return nil
}

// orReported returns a change for the device layer that is injected after the nvml layer. The device plugin itself may
// already have reported the device, in which case there is nothing to change.
func orReported(change fault.Change) fault.Change {
	apply := change.Apply
	change.Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		evidence, err := apply(ctx, r)
		var none *device.NoDeviceError
		if !errors.As(err, &none) {
			return evidence, err
		}
		return []ledger.Evidence{ledger.NewEvidence("kubelet's device checkpoint",
			"%s is no longer healthy: the device plugin itself has reported it as unhealthy", none.GPU)}, nil
	}
	return change
}

// prepareDCGM adds the dcgm layer.
func (w *writing) prepareDCGM(
	_ context.Context, cluster *kube.Cluster, names []string, holder gpus.Pod, p *prepared,
) error {
	for _, name := range names {
		of := holder
		in := dcgm.Injection{
			Engine: dcgm.Engine{Client: cluster.Client, Execer: debugpod.NewExecer(cluster.Config)},
			Node:   name, XID: w.code,
			GPUs: func(ctx context.Context, r fault.Recorder) (uuids []string, err error) {
				chosen, err := w.pick(ctx, cluster, r, name, of)
				for _, g := range chosen {
					uuids = append(uuids, g.UUID)
				}
				return uuids, err
			},
		}
		change := in.Change("inject the XID into DCGM's host engine")
		p.changes = append(p.changes, p.onItsGPU(change, func(pod gpus.Pod) (fault.Change, error) {
			of = pod
			return change, nil
		}))
		p.checks = append(p.checks, in.Check)
		p.timeout += w.Pods.Timeout
	}
	p.needs = append(p.needs, dcgm.Permissions()...)
	return nil
}

// onItsGPU returns a change to a node that applies to the GPUs of the pod with the cuda layer. These GPUs are known
// only when the workload's new pod is running. Without that layer, it returns the change unmodified. All changes apply
// to the GPUs of the same pod, even if the workload's controller has replaced the pod in the meantime: the pod's
// kubelet knows the GPUs as long as the pod exists.
func (p prepared) onItsGPU(change fault.Change, of func(gpus.Pod) (fault.Change, error)) fault.Change {
	if p.pods == nil {
		return change
	}
	change.Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		if p.pod.UID == "" {
			pods, err := p.pods(ctx, r.Run())
			if err != nil {
				return nil, err
			}
			if *p.pod, err = podOn(change.Target.Name, pods); err != nil {
				return nil, err
			}
		}
		actual, err := of(*p.pod)
		if err != nil {
			return nil, err
		}
		return actual.Apply(ctx, r)
	}
	return change
}

// podOn returns the only pod running on a node.
func podOn(node string, pods []corev1.Pod) (gpus.Pod, error) {
	var on []gpus.Pod
	ended := ""
	for _, p := range pods {
		switch {
		case p.Spec.NodeName != node || p.DeletionTimestamp != nil:
		case p.Status.Phase == corev1.PodRunning:
			on = append(on, gpus.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)})
		default:
			ended = p.Name
		}
	}
	switch {
	case len(on) == 1:
		return on[0], nil
	case len(on) > 1:
		return gpus.Pod{}, fmt.Errorf("%s of the workload are running on node %s, but a fault affects the GPUs of only one pod: specify a "+
			"node with only one of these pods", count.Of(len(on), "pod"), node)
	case ended != "":
		return gpus.Pod{}, fmt.Errorf("pod %s on node %s has terminated with the CUDA error, and no longer holds a GPU: specify a "+
			"workload whose containers are restarted, or omit the cuda layer", ended, node)
	}
	return gpus.Pod{}, fmt.Errorf("no pod of the workload is running on node %s: specify a node that runs such a pod and has a "+
		"free GPU for its rolling update", node)
}

// pick returns the chosen GPUs of a node, keyed by their nvidia-smi indexes. If a pod is specified, it chooses among
// the pod's GPUs.
func (w *writing) pick(
	ctx context.Context, cluster *kube.Cluster, r fault.Recorder, node string, holder gpus.Pod,
) (chosen map[int]gpus.GPU, err error) {
	r.Progress("starting the debug pod")
	start := session.StartShortPod[devicehealth.Pod](cluster, w.connection.LedgerNamespace, w.Pods)
	pod, err := start(ctx, r.Run(), node, r.Progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pod.Close(ctx)) }()
	what := api.Inspect{}
	if holder.UID != "" {
		what.PodUIDs = []string{holder.UID}
	}
	info, err := pod.Inspect(ctx, what)
	if err != nil {
		return nil, err
	}
	picked, err := w.gpus.Pick(*info, holder)
	if err != nil {
		return nil, err
	}
	all, err := gpus.Of(*info)
	if err != nil {
		return nil, err
	}
	chosen = map[int]gpus.GPU{}
	for _, g := range picked {
		index := slices.Index(all, g)
		if index < 0 {
			return nil, fmt.Errorf("the driver on node %s has no GPU %s: omit the nvml and dcgm layers", node, g.PCI)
		}
		chosen[index] = g
	}
	return chosen, nil
}
