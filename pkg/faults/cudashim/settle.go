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

// reverting is the annotation on a run's ConfigMap with the time at which the undo disarmed the run. After that, no
// client may arm it.
const reverting = "gpufault.dev/reverting"

// nudgeTime limits the time for annotating all pods before the workload is restored.
const nudgeTime = 20 * time.Second

// While processes are given time to notice that they are disarmed, their pods are annotated at the interval nudgeAgain.
// The pods are listed at the interval lookAgain, because the controller often replaces all of them before that time is
// over.
const (
	nudgeAgain = 2 * time.Second
	lookAgain  = 400 * time.Millisecond
)

// ending is what the undo knows about the pods running with the shim.
type ending struct {
	undoer       Undoer
	namespace    string
	run          string
	gone         bool               // the ConfigMap does not exist
	disarmed     bool               // the ConfigMap contains the disarmed state
	nudged       map[types.UID]bool // pods that have been annotated since then
	running      int                // number of pods that were running when last listed
	notAnnotated error              // reason why some pods were not annotated; nil if all were
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
	if e.nudge(ctx); e.notAnnotated != nil {
		u.say(step, "running processes are disarmed with a delay: "+e.notAnnotated.Error())
	}
	return e
}

// up returns the pods running with the shim.
func (e *ending) up(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := e.undoer.Cluster.carriers(ctx, e.namespace, metav1.ListOptions{}, e.run)
	if err != nil {
		return nil, err
	}
	up := slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	e.running = len(up)
	return up, nil
}

// nudge finds the pods running with the shim, regardless of their labels, and makes their kubelets refresh the volume.
func (e *ending) nudge(ctx context.Context) {
	up, err := e.up(ctx)
	if e.notAnnotated = err; err != nil {
		return
	}
	told, err := refresh(ctx, e.undoer.Cluster.Client, up, "undo-"+now().Format(time.RFC3339Nano))
	for _, pod := range told {
		e.nudged[pod.UID] = true
	}
	for _, pod := range up {
		if !e.nudged[pod.UID] {
			e.notAnnotated = err
		}
	}
}

// settle gives running processes time to notice that they are disarmed, and keeps annotating their pods. It returns
// immediately if no pod is running with the shim.
func (e *ending) settle(ctx context.Context, step ledger.Step) error {
	if e.gone {
		return nil
	}
	if e.nudge(ctx); e.notAnnotated == nil && e.running == 0 {
		return nil
	}
	e.undoer.say(step, "waiting for running processes to notice that they are disarmed")
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
			nudged, err = time.Now(), e.notAnnotated
		} else {
			_, err = e.up(ctx)
		}
		if err == nil && e.running == 0 {
			return nil
		}
	}
}

// close deletes the ConfigMap, unless the kubelets of running pods may not have seen the disarmed state. In that case,
// the ConfigMap remains until its owner is deleted, and close returns a message about it.
func (e *ending) close(ctx context.Context, d *Data) (string, error) {
	if e.disarmed && e.notAnnotated != nil {
		return fmt.Sprintf("\nconfigmap %s was not deleted but disarmed, because running pods mount it and could not "+
			"be annotated (%v); it will be deleted along with %s",
			d.ConfigMap, e.notAnnotated, d.Ref()), nil
	}
	if err := deleteConfigMap(ctx, e.undoer.Cluster.Client, d.Namespace, e.run); err != nil {
		return "", err
	}
	if !e.gone && !e.disarmed { // the deletion disarms the processes
		e.nudge(ctx)
	}
	return "", nil
}

// pods describes what happens to pods that the controller does not replace.
func (e *ending) pods(d *Data) string {
	until := map[Replacement]string{
		OnDelete: "%s stays in pods until you delete them", NextJob: "%s stays in running jobs",
		Paused:  "%s stays in pods until you resume the rollout",
		Unknown: "%s stays in pods until the controller replaces them",
	}[d.Replaced]
	idle := e.gone || e.disarmed && e.notAnnotated == nil
	const late = "disarmed within a minute or two, when the kubelet refreshes the volume"
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
