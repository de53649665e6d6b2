package cudashim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// reverting is the annotation that a run's ConfigMap has from the moment it is disarmed to be taken away: nobody may
// arm it again. Its value is when.
const reverting = "gpufault.dev/reverting"

// nudgeTime bounds how long the kubelets of all pods may take to be told before the workload is restored.
const nudgeTime = 20 * time.Second

// nudgeAgain is how often kubelets are told while processes have time to see that they are disarmed.
const nudgeAgain = 2 * time.Second

// ending is what the undo knows of the pods that run with the shim.
type ending struct {
	undoer    Undoer
	namespace string
	run       string
	gone      bool               // there is no ConfigMap
	disarmed  bool               // it says so
	nudged    map[types.UID]bool // pods whose kubelets were told since
	running   int                // pods that ran at the last look
	untold    error              // why not all kubelets are known to have been told; nil: they have
}

// disarm tells processes that go on. It is best effort: where it fails the ConfigMap goes away, which disarms as well.
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
		u.say(step, "running processes are disarmed late: "+err.Error())
		return e
	}
	e.disarmed = len(d.Disarmed) > 0
	ctx, cancel := context.WithTimeout(ctx, nudgeTime)
	defer cancel()
	if e.nudge(ctx); e.untold != nil {
		u.say(step, "running processes are disarmed late: "+e.untold.Error())
	}
	return e
}

// nudge looks which pods run with the shim, whatever their labels, and tells their kubelets.
func (e *ending) nudge(ctx context.Context) {
	pods, err := e.undoer.Cluster.carriers(ctx, e.namespace, metav1.ListOptions{}, e.run)
	if e.untold = err; err != nil {
		return
	}
	var up []corev1.Pod
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodRunning {
			up = append(up, pod)
		}
	}
	e.running = len(up)
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

// settle gives processes that go on the time to see that they are disarmed, and tells their kubelets again and again
// meanwhile. It ends at once when no pod runs with the shim.
func (e *ending) settle(ctx context.Context, step ledger.Step) error {
	if e.gone {
		return nil
	}
	if e.nudge(ctx); e.untold == nil && e.running == 0 {
		return nil
	}
	e.undoer.say(step, "waiting until running processes see that they are disarmed")
	for left := e.undoer.settle(); left > 0; left -= nudgeAgain {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(left, nudgeAgain)):
		}
		if e.nudge(ctx); e.untold == nil && e.running == 0 {
			return nil
		}
	}
	return nil
}

// close deletes the ConfigMap, unless pods run whose kubelets may not have seen yet that it is disarmed: for those it
// stays, and goes with its owner. It returns what is to be said of it.
func (e *ending) close(ctx context.Context, d *Data) (string, error) {
	if e.disarmed && e.untold != nil {
		return fmt.Sprintf("\nconfigmap %s was left, disarmed: pods that run mount it, and their kubelets could not be told (%v); it goes with %s",
			d.ConfigMap, e.untold, d.Ref()), nil
	}
	if err := deleteConfigMap(ctx, e.undoer.Cluster.Client, d.Namespace, e.run); err != nil {
		return "", err
	}
	if !e.gone && !e.disarmed { // that it is gone is what disarms
		e.nudge(ctx)
	}
	return "", nil
}

// pods returns what becomes of pods that the controller does not replace.
func (e *ending) pods(d *Data) string {
	until := map[Replacement]string{
		OnDelete: "pods keep %s until somebody deletes them", NextJob: "jobs that run keep %s",
		Paused:  "pods keep %s until somebody resumes the rollout",
		Unknown: "its controller decides when pods are replaced, and until then they keep %s",
	}[d.Replaced]
	idle := e.gone || e.disarmed && e.untold == nil
	const late = "disarmed within a minute or two, when the kubelet refreshes its volume"
	switch {
	case until != "" && idle:
		return "; " + fmt.Sprintf(until, "the idle shim")
	case until != "":
		return "; " + fmt.Sprintf(until, "the shim") + "; it is " + late
	case !idle && e.running > 0:
		return "; the shim in pods that run still is " + late
	}
	return ""
}
