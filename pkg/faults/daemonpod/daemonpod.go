// Package daemonpod replaces the pod of a DaemonSet on one node with a copy that has additions, such as the shim in the
// node's device plugin. Neither the DaemonSet nor its other pods change.
//
// The copy becomes the DaemonSet's own pod: it gets the labels and the owner of the original while the original is
// terminating. The DaemonSet's controller does not count a pod that is being deleted, so it treats the copy as the
// node's pod and creates no other. If the controller has already created another pod, the copy is older, and the
// controller keeps the oldest pod (podsShouldBeOnNode in Kubernetes' pkg/controller/daemon/daemon_controller.go). The
// node therefore always has a pod of the DaemonSet, and deleting the copy undoes the change. The change is undone even
// without this tool: the kubelet terminates the copy when the TTL expires (activeDeadlineSeconds), and the controller
// replaces the copy when the DaemonSet changes.
package daemonpod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// UndoKind is the ledger.Undo.Kind for replaced pods.
const UndoKind = "daemon-pod"

// Replacement replaces the pod of a DaemonSet on a node.
type Replacement struct {
	Client    kubernetes.Interface
	Node      string
	DaemonSet *appsv1.DaemonSet
	// Original is the pod to replace.
	Original *corev1.Pod
	// DRA reports whether the pod may belong to a DRA driver, so that changes in the node's ResourceSlices also count
	// as a reaction.
	DRA bool
	// Image is an image with sh, for the container in which the copy waits. Pull is its pull policy.
	Image string
	Pull  corev1.PullPolicy
	// Add modifies the copy: it adds everything that is not in the DaemonSet's template. The added volumes may mount
	// the ConfigMap named configMap.
	Add func(pod *corev1.Pod, configMap string) error
	// Data returns the initial content of the ConfigMap.
	Data func(run ledger.Run) (map[string][]byte, error)
	// Prove returns evidence from the copy, once the node has as many devices as before. If Prove fails, so does the
	// change.
	Prove func(ctx context.Context, r fault.Recorder, copied Copy) ([]ledger.Evidence, error)
}

// Copy is the pod that replaces the original.
type Copy struct {
	Client     kubernetes.Interface
	Pod        *corev1.Pod
	ConfigMap  string
	Devices    Devices // devices that were allocatable before
	Controller string  // the DaemonSet, such as "daemonset.apps/nvidia-device-plugin"
	DRA        bool    // same as in Replacement
}

// undo is the content of ledger.Undo.Data. Anyone with permission to write ConfigMaps may have written it, so the pod
// is deleted only if it has the run's seal.
type undo struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	DaemonSet string `json:"daemonSet"`
	UID       string `json:"uid"` // UID of the DaemonSet
	// PodUID is the UID of the copy. It is empty if the client was killed before the UID was known.
	PodUID  string  `json:"podUID,omitempty"`
	Devices Devices `json:"devices,omitempty"`
	DRA     bool    `json:"dra,omitempty"`
	// Taints are the taints that the devices of DRA drivers had before the change.
	Taints Published `json:"taints,omitempty"`
}

// Annotations on the copy: the mark of the seal, whether the copy is the DaemonSet's pod, and whether the copy may
// start.
const (
	annotationSeal  = "gpufault.dev/seal"
	annotationOwned = "gpufault.dev/owned"
	annotationStart = "gpufault.dev/start"
)

// mark returns the mark of the seal, to set on the copy.
func (u undo) mark(run, node string) string {
	return seal.Of(run, UndoKind, fmt.Appendf(nil, "%q %q %q", node, u.DaemonSet, u.UID)).
		Mark("", "pods", u.Namespace, u.Pod)
}

// nameOf returns the name of the copy and of its ConfigMap. It contains the node, because a run may replace pods on
// several nodes.
func nameOf(run, node string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(node))
	return fmt.Sprintf("gpu-fault-%s-%08x", run, sum.Sum32())
}

// Change returns the change to the node, for use in a fault.Plan.
func (r *Replacement) Change(action string) fault.Change {
	return fault.Change{
		Target: ledger.Target{Kind: "Node", Name: r.Node}, Action: action, Undo: ledger.Undo{Kind: UndoKind},
		Apply: r.apply,
	}
}

// Check returns an error if the pod cannot be replaced. It asks the API server whether it would accept the copy.
func (r *Replacement) Check(ctx context.Context) error {
	ds := r.DaemonSet
	ref := Ref(ds.Name)
	switch s := ds.Status; {
	case s.ObservedGeneration < ds.Generation || s.UpdatedNumberScheduled < s.CurrentNumberScheduled:
		return fmt.Errorf("%s in namespace %s is being updated: try again when its pods are up to date", ref, ds.Namespace)
	case !ready(r.Original):
		return fmt.Errorf("pod %s of %s on node %s is not ready, so its program would not see the fault", r.Original.Name, ref,
			r.Node)
	}
	for _, c := range r.Original.Spec.Containers {
		for _, port := range c.Ports {
			if port.HostPort > 0 {
				return fmt.Errorf("pod %s of %s uses host port %d: the kubelet would reject the copy, which briefly runs at the same time; "+
					"omit the nvml layer", r.Original.Name, ref, port.HostPort)
			}
		}
	}
	pod, err := r.copy(ledger.Run{ID: "check"}, undo{})
	if err != nil {
		return err
	}
	_, err = r.Client.CoreV1().Pods(ds.Namespace).Create(ctx, pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: ledger.ManagedBy})
	if err != nil {
		return fmt.Errorf("the API server rejects a copy of pod %s: %w", r.Original.Name, err)
	}
	return nil
}

// Ref formats the name of a DaemonSet in kubectl's style.
func Ref(daemonSet string) string { return "daemonset.apps/" + daemonSet }

// Names of the objects that the copy has in addition to those of the original.
const (
	gateName = "gpu-fault-gate"
	gateDir  = "/gpu-fault-gate"
)

// HasGate reports whether a pod has the gate init container, as copies do. Init containers cannot be removed from a
// pod.
func HasGate(initContainers []string) bool { return slices.Contains(initContainers, gateName) }

// copy returns the pod for a run. The pod does not have the DaemonSet's labels yet, so that the controller does not see
// it, and waits in an init container.
func (r *Replacement) copy(run ledger.Run, u undo) (*corev1.Pod, error) {
	name := nameOf(run.ID, r.Node)
	template := r.DaemonSet.Spec.Template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: r.DaemonSet.Namespace, Annotations: maps.Clone(template.Annotations),
			Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: run.ID},
		},
		Spec: template.Spec,
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationSeal, u.mark(run.ID, r.Node))
	pod.Spec.NodeName, pod.Spec.Tolerations = r.Node, r.Original.Spec.Tolerations
	// On a full node, the kubelet would evict other pods to admit a pod with a critical priority.
	pod.Spec.PriorityClassName, pod.Spec.Priority, pod.Spec.PreemptionPolicy = "", nil, nil
	if !run.Until.IsZero() {
		seconds := max(int64(time.Until(run.Until).Seconds()), 1)
		pod.Spec.ActiveDeadlineSeconds = &seconds
	}
	if err := r.Add(pod, name); err != nil {
		return nil, err
	}
	wait := int64(gateSeconds + corev1.DefaultTerminationGracePeriodSeconds)
	if grace := r.Original.Spec.TerminationGracePeriodSeconds; grace != nil {
		wait = gateSeconds + *grace
	}
	addGate(&pod.Spec, r.Image, r.Pull, wait)
	return pod, nil
}

// gateSeconds is the time that the copy waits for the client after it has become the DaemonSet's pod, in addition to
// the time that the original may take to terminate.
const gateSeconds = 60

// addGate adds the init container in which the copy waits until it may start. If the copy is never allowed to start,
// because the client was killed, it starts on its own, but only if it has become the DaemonSet's pod: a node without
// the program would be worse than one with an idle shim, and two instances would be worse than none.
func addGate(spec *corev1.PodSpec, image string, pull corev1.PullPolicy, seconds int64) {
	file := func(name, annotation string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{
			Path: name, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + annotation + "']"},
		}
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{
		Name: gateName, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{file("owned", annotationOwned), file("start", annotationStart)},
		}},
	})
	no := false
	spec.InitContainers = append([]corev1.Container{{
		Name: gateName, Image: image, ImagePullPolicy: pull,
		Command: []string{"sh", "-c", fmt.Sprintf(
			"cd %s; i=0; until [ -s start ] || [ $i -ge %d ]; do [ -s owned ] && i=$((i+1)); sleep 0.1 || sleep 1; done",
			gateDir, 10*seconds)},
		VolumeMounts: []corev1.VolumeMount{{Name: gateName, MountPath: gateDir, ReadOnly: true}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}}, spec.InitContainers...)
}

func (r *Replacement) apply(ctx context.Context, rec fault.Recorder) ([]ledger.Evidence, error) {
	run := rec.Run()
	if err := r.unchanged(ctx); err != nil {
		return nil, err
	}
	devices, err := allocatable(ctx, r.Client, r.Node)
	if err != nil {
		return nil, err
	}
	u := undo{
		Namespace: r.DaemonSet.Namespace, Pod: nameOf(run.ID, r.Node), DaemonSet: r.DaemonSet.Name,
		UID: string(r.DaemonSet.UID), Devices: devices, DRA: r.DRA,
	}
	var before Published
	if r.DRA {
		if before, err = published(ctx, r.Client, r.Node); err != nil {
			return nil, err
		}
		u.Taints = before.taints()
	}
	pod, err := r.copy(run, u)
	if err != nil {
		return nil, err
	}
	data, err := r.Data(run)
	if err != nil {
		return nil, err
	}
	if err := u.save(ctx, rec); err != nil {
		return nil, err
	}
	rec.Progress("creating a copy of pod " + r.Original.Name)
	pod, err = r.create(ctx, pod, data)
	if err != nil {
		return nil, err
	}
	made := time.Now()
	u.PodUID = string(pod.UID)
	if err := u.save(ctx, rec); err != nil {
		return nil, err
	}
	if pod, err = r.await(ctx, pod, "waiting", waits); err != nil {
		return nil, err
	}
	rec.Progress("replacing pod " + r.Original.Name)
	if pod, err = r.takeOver(ctx, pod, made); err != nil {
		return nil, err
	}
	evidence := []ledger.Evidence{ledger.NewEvidence("pod "+pod.Name, "replaces pod %s of %s on node %s",
		r.Original.Name, Ref(r.DaemonSet.Name), r.Node)}
	rec.Progress("waiting for pod " + pod.Name)
	if pod, err = r.await(ctx, pod, "ready", ready); err != nil {
		return evidence, err
	}
	if err := devices.await(ctx, r.Client, r.Node); err != nil {
		return evidence, err
	}
	if r.DRA {
		if err := before.await(ctx, r.Client, r.Node); err != nil {
			return evidence, err
		}
	}
	more, err := r.Prove(ctx, rec, Copy{r.Client, pod, pod.Name, devices, Ref(r.DaemonSet.Name), r.DRA})
	return append(evidence, more...), err
}

func (u undo) save(ctx context.Context, rec fault.Recorder) error {
	text, err := json.Marshal(u)
	if err != nil {
		return fmt.Errorf("encode the undo: %w", err)
	}
	return rec.Save(ctx, func(s *ledger.Step) { s.Undo.Data = text })
}

// unchanged returns an error if the original has been replaced since the user confirmed. Its successor would be older
// than the copy, so the controller would keep the successor.
func (r *Replacement) unchanged(ctx context.Context) error {
	now, err := r.Client.CoreV1().Pods(r.DaemonSet.Namespace).Get(ctx, r.Original.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get pod %s: %w", r.Original.Name, err)
	}
	if err != nil || now.UID != r.Original.UID || now.DeletionTimestamp != nil {
		return fmt.Errorf("pod %s was replaced since the command started: try again", r.Original.Name)
	}
	return nil
}

// create creates the copy and its ConfigMap. The ConfigMap is deleted together with the copy.
func (r *Replacement) create(ctx context.Context, pod *corev1.Pod, data map[string][]byte) (*corev1.Pod, error) {
	options := metav1.CreateOptions{FieldManager: ledger.ManagedBy}
	made, err := r.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, options)
	if err != nil {
		return nil, fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: made.Name, UID: made.UID},
			},
		},
		BinaryData: data,
	}
	if _, err := r.Client.CoreV1().ConfigMaps(pod.Namespace).Create(ctx, cm, options); err != nil {
		return nil, fmt.Errorf("create configmap %s: %w", cm.Name, err)
	}
	return made, nil
}

// olderBy is the minimum time by which the copy must be older than the controller's pod, because the API server stores
// creation times in seconds.
const olderBy = 1100 * time.Millisecond

// takeOver deletes the original so that the DaemonSet adopts the copy. The copy was created at the given time.
func (r *Replacement) takeOver(ctx context.Context, pod *corev1.Pod, made time.Time) (*corev1.Pod, error) {
	pods := r.Client.CoreV1().Pods(pod.Namespace)
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(time.Until(made.Add(olderBy))):
	}
	err := pods.Delete(ctx, r.Original.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.Original.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("delete pod %s: %w", r.Original.Name, err)
	}
	// Do this immediately: otherwise, once the original has terminated, the controller creates its own pod. The copy
	// would then have to wait until that pod has terminated as well. This takes the pod's full grace period if the pod
	// receives the signal before it can handle signals.
	labels := maps.Clone(r.Original.Labels)
	delete(labels, ledger.LabelRun)
	yes := true
	err = r.patch(ctx, pod.Name, map[string]any{
		"labels": labels, "uid": pod.UID, "annotations": map[string]any{annotationOwned: "true"},
		"ownerReferences": []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: kindDaemonSet, Name: r.DaemonSet.Name, UID: r.DaemonSet.UID, Controller: &yes,
		}},
	})
	if err != nil {
		return nil, err
	}
	// Neither the original nor a pod that the controller has created in the meantime may run at the same time as the
	// copy.
	if err := r.gone(ctx, func(p *corev1.Pod) bool { return p.UID != pod.UID }); err != nil {
		return nil, err
	}
	if _, err := pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("%s did not adopt pod %s: %w", Ref(r.DaemonSet.Name), pod.Name, err)
	}
	err = r.patch(ctx, pod.Name, map[string]any{"annotations": map[string]any{
		annotationStart: time.Now().UTC().Format(time.RFC3339Nano),
	}})
	return pod, err
}

const kindDaemonSet = "DaemonSet"

func (r *Replacement) patch(ctx context.Context, name string, metadata map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	_, err = r.Client.CoreV1().Pods(r.DaemonSet.Namespace).Patch(ctx, name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: ledger.ManagedBy})
	if err != nil {
		return fmt.Errorf("change pod %s: %w", name, err)
	}
	return nil
}

// Update replaces one value of the copy's ConfigMap.
func (c Copy) Update(ctx context.Context, key string, value []byte) error {
	body, err := json.Marshal(map[string]any{"binaryData": map[string][]byte{key: value}})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	_, err = c.Client.CoreV1().ConfigMaps(c.Pod.Namespace).Patch(ctx, c.ConfigMap, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: ledger.ManagedBy})
	if err != nil {
		return fmt.Errorf("change configmap %s: %w", c.ConfigMap, err)
	}
	return nil
}

// validate returns an error for data that this tool never writes.
func (u undo) validate(run, node string) error {
	switch {
	case u.Pod != nameOf(run, node):
		return fmt.Errorf("%q is not the pod that the run creates for node %s", u.Pod, node)
	case len(validation.IsDNS1123Label(u.Namespace)) > 0, strings.ContainsAny(u.DaemonSet, "/?%") || u.DaemonSet == "":
		return errors.New("no DaemonSet is specified")
	}
	return nil
}
