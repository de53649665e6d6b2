package cuda

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/daemonpod"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// Daemon describes loading the shim into the pod of a DaemonSet on one node. Other commands use it in their plans. The
// pods on other nodes do not restart, as they would if the shim were in the DaemonSet's template.
type Daemon struct {
	Node string
	// DaemonSet is the NAMESPACE/NAME of the DaemonSet. Empty means NVIDIA's device plugin.
	DaemonSet string
	Fault     cudafault.Fault // of NVML
	// Devices returns the nvidia-smi indexes of the GPUs with the fault. It is called before anything is changed. If it
	// is nil, all GPUs have the fault.
	Devices func(ctx context.Context, r fault.Recorder) ([]int, error)
	Pods    podflags.Flags // sets the image of the container in which the new pod waits
}

// ParseDaemonSet returns the parts of NAMESPACE/NAME.
func ParseDaemonSet(text string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("invalid DaemonSet %q: specify NAMESPACE/NAME, such as gpu-operator/nvidia-device-plugin-daemonset",
			text)
	}
	return namespace, name, nil
}

// Prepare returns the change to the node, and what a plan needs to carry it out.
func (d *Daemon) Prepare(ctx context.Context, cluster *kube.Cluster) (Loading, error) {
	node, err := cluster.Client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	if err != nil {
		return Loading{}, fmt.Errorf("get node %s: %w", d.Node, err)
	}
	pod, ds, err := d.find(ctx, cluster)
	if err != nil {
		return Loading{}, err
	}
	arch := node.Status.NodeInfo.Architecture
	library, err := cudafault.Library(arch, cudafault.LayerDriver)
	if err != nil {
		return Loading{}, err
	}
	w := newObserver(cluster.Client, debugpod.NewExecer(cluster.Config))
	replacement := &daemonpod.Replacement{
		Client: cluster.Client, Node: d.Node, DaemonSet: ds, Original: pod, DRA: isDRADriver(pod),
		Image: d.Pods.Image, Pull: corev1.PullPolicy(d.Pods.Pull),
		Add: func(pod *corev1.Pod, configMap string) error { return cudashim.AddToPod(pod, configMap, arch) },
		Data: func(run ledger.Run) (map[string][]byte, error) {
			state, err := d.state(run, firstGeneration(run), time.Time{})
			if err != nil {
				return nil, err
			}
			return cudashim.PodData(arch, library, state)
		},
		Prove: func(ctx context.Context, r fault.Recorder, copied daemonpod.Copy) ([]ledger.Evidence, error) {
			return d.prove(ctx, r, w, copied)
		},
	}
	needs := daemonPermissions(ds.Namespace)
	if replacement.DRA {
		needs = append(needs, slicesPermission)
	}
	ref := daemonpod.Ref(ds.Name)
	change := replacement.Change("load the shim into the pod of " + ref)
	apply := change.Apply
	change.Apply = func(ctx context.Context, r fault.Recorder) (evidence []ledger.Evidence, err error) {
		if d.Devices != nil {
			if d.Fault.Devices, err = d.Devices(ctx, r); err != nil {
				return nil, err
			}
		}
		return apply(ctx, r)
	}
	return Loading{
		Change: change,
		Needs:  needs,
		Check:  replacement.Check,
		Describe: func(say func(string, ...any)) {
			say("NVML in pod %s of %s in namespace %s: %s. A copy with the shim replaces the pod on node %s; pods on other nodes "+
				"do not restart.", pod.Name, ref, ds.Namespace, d.Fault.Summary(), d.Node)
		},
		SuppliesDevices: suppliesDevices(pod),
		Timeout:         daemonTimeout, CleanupTimeout: daemonTimeout,
	}, nil
}

// suppliesDevices reports whether a pod registers devices with the kubelet: NVIDIA's device plugin, or any other pod
// that mounts one of the kubelet's plugin directories (for device plugins, DRA drivers and CSI drivers).
func suppliesDevices(pod *corev1.Pod) bool {
	return facts.ComponentOf(pod.Labels, &pod.Spec) == facts.DevicePlugin || mounts(pod, "device-plugins") ||
		isDRADriver(pod)
}

// isDRADriver reports whether a pod registers with the kubelet in the way that DRA drivers and CSI drivers do.
func isDRADriver(pod *corev1.Pod) bool { return mounts(pod, "plugins", "plugins_registry") }

// mounts reports whether a pod mounts a node directory whose path contains one of the names.
func mounts(pod *corev1.Pod, names ...string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && slices.ContainsFunc(strings.Split(v.HostPath.Path, "/"),
			func(name string) bool { return slices.Contains(names, name) })
	})
}

// daemonTimeout is the maximum time for replacing a pod and verifying the fault.
const daemonTimeout = 6 * time.Minute

func daemonPermissions(namespace string) []fault.Permission {
	return append(daemonpod.Permissions(namespace), askPermissions(namespace)[:4]...)
}

// DaemonPermissions returns the permissions for loading the shim into the pods of all DaemonSets, in addition to those
// for every fault.
func DaemonPermissions() []fault.Permission { return append(daemonPermissions(""), slicesPermission) }

// slicesPermission allows reading what DRA drivers publish.
var slicesPermission = fault.Permission{Verb: "list", Group: resourcev1.GroupName, Resource: "resourceslices"}

// find returns the DaemonSet and its pod on the node.
func (d *Daemon) find(ctx context.Context, cluster *kube.Cluster) (*corev1.Pod, *appsv1.DaemonSet, error) {
	namespace, name := metav1.NamespaceAll, ""
	if d.DaemonSet != "" {
		var err error
		if namespace, name, err = ParseDaemonSet(d.DaemonSet); err != nil {
			return nil, nil, err
		}
	}
	list, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.Node).String(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the pods on node %s: %w", d.Node, err)
	}
	var found []*corev1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		owner := metav1.GetControllerOf(pod)
		switch {
		case owner == nil || owner.Kind != "DaemonSet" || pod.DeletionTimestamp != nil:
		case name != "" && owner.Name == name,
			name == "" && facts.ComponentOf(pod.Labels, &pod.Spec) == facts.DevicePlugin:
			found = append(found, pod)
		}
	}
	switch {
	case len(found) == 0 && name != "":
		if _, err := cluster.Client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, nil, fmt.Errorf("--daemonset %s: %w", d.DaemonSet, err)
		}
		return nil, nil, fmt.Errorf("daemonset %s in namespace %s has no pod on node %s", name, namespace, d.Node)
	case len(found) == 0:
		return nil, nil, fmt.Errorf("no DaemonSet of NVIDIA's device plugin has a pod on node %s: specify another program that reads NVML "+
			"with --daemonset NAMESPACE/NAME, or leave out the nvml layer", d.Node)
	case len(found) > 1:
		return nil, nil, fmt.Errorf("pods %s and %s on node %s both belong to a device plugin: specify one with --daemonset "+
			"NAMESPACE/NAME", found[0].Name, found[1].Name, d.Node)
	}
	pod := found[0]
	if run := pod.Labels[ledger.LabelRun]; run != "" {
		return nil, nil, fmt.Errorf("pod %s on node %s already has the shim of run %s: revert that run first with `kubectl gpu-fault revert %s`",
			pod.Name, d.Node, run, run)
	}
	owner := metav1.GetControllerOf(pod)
	ds, err := cluster.Client.AppsV1().DaemonSets(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("get %s: %w", daemonpod.Ref(owner.Name), err)
	}
	return pod, ds, nil
}

// state returns the state file of a run. The parameter at is the time of arming, or zero before the run is armed.
func (d *Daemon) state(run ledger.Run, generation uint64, at time.Time) ([]byte, error) {
	s, err := d.Fault.State(run.ID, generation, at, run.Until)
	if err != nil {
		return nil, err
	}
	return s.Encode()
}

// reactionTime is the time to wait for the program to react. NVIDIA's device plugin took 0.2 s, but by default the
// kubelet updates the status of its node only every 10 s (nodeStatusUpdateFrequency). NVIDIA's DRA driver publishes a
// taint within 0.1 s.
const reactionTime = 15 * time.Second

// prove arms the shim. It returns evidence that the program has loaded the shim, and evidence of whether the program
// reacted.
func (d *Daemon) prove(
	ctx context.Context, r fault.Recorder, w *observer, copied daemonpod.Copy,
) ([]ledger.Evidence, error) {
	run := r.Run()
	p := &proof{
		observer: w, run: run.ID, generation: firstGeneration(run), grace: grace, patience: patience,
		pods: func(ctx context.Context) ([]corev1.Pod, error) {
			now, err := w.client.CoreV1().Pods(copied.Pod.Namespace).Get(ctx, copied.Pod.Name, metav1.GetOptions{})
			if err != nil {
				return nil, fmt.Errorf("get pod %s: %w", copied.Pod.Name, err)
			}
			return []corev1.Pod{*now}, nil
		},
	}
	r.Progress("querying the shim")
	if _, _, err := p.gather(ctx); err != nil {
		return nil, err
	}
	if !p.isLoaded(ctx) {
		return nil, fmt.Errorf("no program in pod %s has called NVML or CUDA within %s: the pod's program is linked "+
			"statically, does not use glibc, or does not read NVML; specify another program with --daemonset "+
			"NAMESPACE/NAME", copied.Pod.Name, grace)
	}
	before, err := copied.Published(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if !run.Until.IsZero() && !now.Before(run.Until) {
		return nil, errTooSlow
	}
	p.generation, p.known, p.grace = uint64(now.UnixNano()), true, armedGrace
	state, err := d.state(run, p.generation, now)
	if err != nil {
		return nil, err
	}
	r.Progress("arming")
	if err := copied.Update(ctx, cudashim.StateKey, state); err != nil {
		return nil, err
	}
	if err := cudashim.Refresh(ctx, w.client, []corev1.Pod{*copied.Pod}, stamp()); err != nil {
		r.Progress("the pod receives the change within a minute: " + err.Error())
	}
	evidence, _, err := p.gather(ctx)
	if err != nil || !suppliesDevices(copied.Pod) {
		return evidence, err
	}
	r.Progress("waiting for a reaction from " + copied.Controller)
	changed, err := copied.Reaction(ctx, before, reactionTime)
	if err != nil {
		return evidence, err
	}
	return append(evidence, reaction(changed, len(before) > 0, copied.Controller, time.Since(now))), nil
}

// reaction returns evidence of the changes on the node after the fault.
func reaction(changed []string, publishes bool, controller string, after time.Duration) ledger.Evidence {
	source := "node status"
	if publishes {
		source = "node status and ResourceSlices"
	}
	if len(changed) > 0 {
		return ledger.NewEvidence(source, "%s, %.1f s after the fault", strings.Join(changed, ", "), after.Seconds())
	}
	text := "the number of allocatable devices is unchanged"
	if publishes {
		text = "no device has a new taint, and " + text
	}
	return ledger.NewEvidence(source, "%s, %s after the fault: %s ignores the fault", text, reactionTime, controller)
}

// isLoaded reports whether, in each pod, a process has called the driver through the shim.
func (p *proof) isLoaded(ctx context.Context) bool {
	pods, err := p.pods(ctx)
	if err != nil {
		return false
	}
	reports := p.observer.ask(ctx, pods)
	return len(reports) > 0 && !slices.ContainsFunc(reports, func(r report) bool {
		v, _ := r.judge(p.run, p.generation)
		return v != loaded
	})
}
