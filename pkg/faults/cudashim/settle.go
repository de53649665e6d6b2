package cudashim

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// reverting is the annotation of a run's ConfigMap with the time at which the undo disarmed it. From then on no client
// may arm it.
const reverting = "gpufault.dev/reverting"

// nudgeTime limits how long the annotation of all pods may take before the workload is restored.
const nudgeTime = 20 * time.Second

// While processes have time to see that they are disarmed, their pods are annotated at the interval nudgeAgain. At the
// interval lookAgain, they are listed: often, the controller has replaced all of them sooner.
const (
	nudgeAgain = 2 * time.Second
	lookAgain  = 400 * time.Millisecond
)

// ending is what the undo knows about the pods that run with the shim.
type ending struct {
	undoer    Undoer
	namespace string
	run       string
	gone      bool               // the ConfigMap does not exist
	disarmed  bool               // the ConfigMap has the disarmed state
	nudged    map[types.UID]bool // pods that were annotated since then
	running   int                // pods that ran when they were last listed
	untold    error              // why some pods were not annotated; nil: all were
}

// disarm disarms running processes. If it fails, the deletion of the ConfigMap disarms them later.
func (u Undoer) disarm(ctx context.Context, run ledger.Run, step ledger.Step, d *Data) *ending {
	e := &ending{undoer: u, namespace: d.Namespace, run: run.ID, nudged: map[types.UID]bool{}}
	err := changeConfigMap(ctx, u.Cluster.Client, d.Namespace, run.ID, func(cm *corev1.ConfigMap) error {
		metav1.SetMetaDataAnnotation(&cm.ObjectMeta, reverting, now().Format(time.RFC3339Nano))
		if len(d.Disarmed) > 0 {
			setState(cm, d.Disarmed)
		}
		return nil
	})
	switch {
	case apierrors.IsNotFound(err):
		e.gone = true
		return e
	case err != nil:
		u.say(step, "running processes are disarmed with a delay: "+err.Error())
		return e
	}
	e.disarmed = len(d.Disarmed) > 0
	ctx, cancel := context.WithTimeout(ctx, nudgeTime)
	defer cancel()
	if e.nudge(ctx); e.untold != nil {
		u.say(step, "running processes are disarmed with a delay: "+e.untold.Error())
	}
	return e
}

// up returns the pods that run with the shim.
func (e *ending) up(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := e.undoer.Cluster.carriers(ctx, e.namespace, metav1.ListOptions{}, e.run)
	if err != nil {
		return nil, err
	}
	up := slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	e.running = len(up)
	return up, nil
}

// nudge finds the pods that run with the shim, whatever their labels, and makes their kubelets refresh the volume.
func (e *ending) nudge(ctx context.Context) {
	up, err := e.up(ctx)
	if e.untold = err; err != nil {
		return
	}
	told, err := refresh(ctx, e.undoer.Cluster.Client, up, "undo-"+now().Format(time.RFC3339Nano))
	for _, pod := range told {
		e.nudged[pod.UID] = true
	}
	for _, pod := range up {
		if !e.nudged[pod.UID] {
			e.untold = err
		}
	}
}

// settle gives running processes the time to see that they are disarmed, and keeps annotating their pods. It returns at
// once if no pod runs with the shim.
func (e *ending) settle(ctx context.Context, step ledger.Step) error {
	if e.gone {
		return nil
	}
	if e.nudge(ctx); e.untold == nil && e.running == 0 {
		return nil
	}
	e.undoer.say(step, "waiting until running processes see that they are disarmed")
	begun := time.Now()
	nudged := begun
	for {
		left := e.undoer.settle() - time.Since(begun)
		if left <= 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(left, lookAgain)):
		}
		var err error
		if time.Since(nudged) >= nudgeAgain {
			e.nudge(ctx)
			nudged, err = time.Now(), e.untold
		} else {
			_, err = e.up(ctx)
		}
		if err == nil && e.running == 0 {
			return nil
		}
	}
}

// close deletes the ConfigMap, unless the kubelets of running pods may not have seen that it is disarmed. It then stays
// until its owner is deleted, and close returns a text about it.
func (e *ending) close(ctx context.Context, d *Data) (string, error) {
	if e.disarmed && e.untold != nil {
		return fmt.Sprintf("\nconfigmap %s was not deleted but disarmed, because running pods mount it and could not be annotated (%v); it is deleted with %s",
			d.ConfigMap, e.untold, d.Ref()), nil
	}
	if err := deleteConfigMap(ctx, e.undoer.Cluster.Client, d.Namespace, e.run); err != nil {
		return "", err
	}
	if !e.gone && !e.disarmed { // the deletion is what disarms
		e.nudge(ctx)
	}
	return "", nil
}

// pods returns what happens to pods that the controller does not replace.
func (e *ending) pods(d *Data) string {
	until := map[Replacement]string{
		OnDelete: "pods keep %s until you delete them", NextJob: "running jobs keep %s",
		Paused:  "pods keep %s until you resume the rollout",
		Unknown: "its controller decides when pods are replaced; until then they keep %s",
	}[d.Replaced]
	idle := e.gone || e.disarmed && e.untold == nil
	const late = "disarmed within a minute or two, when the kubelet refreshes its volume"
	switch {
	case until != "" && idle:
		return "; " + fmt.Sprintf(until, "the idle shim")
	case until != "":
		return "; " + fmt.Sprintf(until, "the shim") + "; it is " + late
	case !idle && e.running > 0:
		return "; the shim in running pods is " + late
	}
	return ""
}
