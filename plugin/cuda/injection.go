package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// injection loads the shim into a workload and arms it. Unless the fault starts with the first call, the shim is loaded
// disarmed, and armed when the pods are ready. This way, a rolling update succeeds even if the fault would keep new
// pods from becoming ready, and running processes see the fault as they would on hardware.
type injection struct {
	*cudashim.Injection
	fault             cudafault.Fault
	disarmed, atStart bool
	observer          *observer
	timeout           time.Duration
	grace, patience   time.Duration

	armed bool // whether prove has armed it
}

// detail is saved with the step in the ledger. It contains the requested fault, so that the fault can be armed again.
type detail struct {
	Fault cudafault.Fault `json:"fault"`
}

func (in *injecting) injection(cluster *cudashim.Cluster, d *decided, w *observer) *injection {
	i := &injection{
		fault: in.fault, disarmed: in.disarmed, atStart: in.atStart, observer: w, timeout: in.timeout, grace: grace,
		patience: patience,
		Injection: &cudashim.Injection{
			Cluster: cluster, Workload: d.workload, Selection: in.selection, Preloads: d.preload,
			Libraries: d.libraries,
			Recreate:  in.recreate, Wait: in.timeout, MayCrash: in.atStart,
		},
	}
	if in.audit {
		i.Variable = cudashim.AuditVar
	}
	if len(in.pinTo) > 0 {
		i.Pin = &cudashim.Pin{Nodes: in.pinTo, Hard: in.pin == "hard"}
	}
	i.State = func(run ledger.Run) ([]byte, error) { return i.state(run, i.atStart) }
	i.Disarmed = func(run ledger.Run) ([]byte, error) { return i.state(run, false) }
	i.Prove = i.prove
	return i
}

// firstGeneration returns the generation of a run's first state, which is the creation time of the run. Each arming
// uses its own time as the generation.
func firstGeneration(run ledger.Run) uint64 { return uint64(run.Created.UnixNano()) }

// state returns the first state file of a run.
func (i *injection) state(run ledger.Run, armed bool) ([]byte, error) {
	at := time.Time{}
	if armed {
		at = run.Created
	}
	s, err := i.fault.State(run.ID, firstGeneration(run), at, run.Until)
	if err != nil {
		return nil, err
	}
	return s.Encode()
}

// change returns the change for a fault.Plan.
func (i *injection) change(action string) fault.Change {
	change := i.Change(action)
	apply := change.Apply
	change.Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		text, err := json.Marshal(detail{i.fault})
		if err != nil {
			return nil, fmt.Errorf("encode the fault: %w", err)
		}
		evidence, err := apply(ctx, detailing{r, text})
		if err != nil || i.disarmed || i.atStart || i.armed {
			return evidence, err
		}
		_, err = i.arm(ctx, r) // the shim is already armed in pods that start later
		return evidence, err
	}
	return change
}

// detailing is a Recorder that adds the detail to the step each time it is saved.
type detailing struct {
	fault.Recorder
	detail json.RawMessage
}

// Save implements fault.Recorder.
func (d detailing) Save(ctx context.Context, change func(*ledger.Step)) error {
	return d.Recorder.Save(ctx, func(s *ledger.Step) {
		change(s)
		s.Detail = d.detail
	})
}

// prove verifies that the shim is in the pods, arms it, and verifies that it is armed.
func (i *injection) prove(ctx context.Context, r fault.Recorder, _ []corev1.Pod) ([]ledger.Evidence, error) {
	run := r.Run()
	p := &proof{
		observer: i.observer, pods: i.pods(run), run: run.ID, generation: firstGeneration(run), grace: i.grace,
		patience: i.patience,
	}
	if !i.atStart {
		r.Progress("waiting for the pods to be ready")
		i.awaitReady(ctx, run)
	}
	r.Progress("querying the shim in the pods")
	evidence, err := i.gather(ctx, r, p)
	if err != nil || i.disarmed || i.atStart {
		return evidence, err
	}
	r.Progress("arming")
	if p.generation, err = i.arm(ctx, r); err != nil {
		return evidence, err
	}
	p.grace, p.known = armedGrace, true
	r.Progress("waiting for processes to notice the change")
	after, err := i.gather(ctx, r, p)
	return merge(evidence, after), err
}

// armedGrace is the time to wait for processes to notice that they are armed. A process that calls the driver checks
// once a second.
const armedGrace = 3 * time.Second

func (i *injection) gather(ctx context.Context, r fault.Recorder, p *proof) ([]ledger.Evidence, error) {
	evidence, notes, err := p.gather(ctx)
	for _, note := range notes {
		r.Progress(note)
	}
	if len(evidence) == 0 && err == nil { // a workload without pods
		target := i.Workload.Target()
		evidence = append(evidence, ofTemplate(&cudashim.Data{
			Group: i.Workload.Resource.Group, Version: i.Workload.Resource.Version, Kind: target.Kind,
			Name: target.Name,
		}))
	}
	return evidence, err
}

func (i *injection) pods(run ledger.Run) func(context.Context) ([]corev1.Pod, error) {
	return func(ctx context.Context) ([]corev1.Pod, error) {
		return i.Cluster.Pods(ctx, i.Workload.Target().Namespace, run.ID)
	}
}

// arm starts the fault and returns its generation. Pods see the fault as soon as their kubelets refresh the state file.
// If arm fails, undoing the run disarms what was armed.
func (i *injection) arm(ctx context.Context, r fault.Recorder) (uint64, error) {
	if err := mayGoOn(ctx, r); err != nil {
		return 0, fmt.Errorf("not armed: %w", err)
	}
	run, now := r.Run(), time.Now()
	if !run.Until.IsZero() && !now.Before(run.Until) {
		return 0, errTooSlow
	}
	s, err := i.fault.State(run.ID, uint64(now.UnixNano()), now, run.Until)
	if err != nil {
		return 0, err
	}
	list, err := i.pods(run)(ctx)
	if err != nil {
		return 0, err
	}
	late, err := setState(ctx, i.Cluster, i.Workload.Target().Namespace, run.ID, s, list)
	if err != nil {
		return 0, err
	}
	if late != nil {
		r.Progress("the pods receive the change within a minute: " + late.Error())
	}
	if err := mayGoOn(ctx, r); err != nil { // the write may have overwritten a concurrent disarm
		return 0, err
	}
	i.armed = true
	return s.Generation, nil
}

// errTooSlow is returned if the TTL expires before the fault starts.
var errTooSlow = errors.New("the rollout took longer than --ttl: specify a longer TTL")

// mayGoOn returns an error if this client may no longer change the run: the run was taken over, has expired, or has
// been disarmed in the meantime.
func mayGoOn(ctx context.Context, r fault.Recorder) error {
	if err := r.Save(ctx, func(*ledger.Step) {}); err != nil {
		return err
	}
	if run := r.Run(); strings.HasSuffix(run.Summary, disarmedSuffix) {
		return fmt.Errorf("run %s was disarmed while it was being injected", run.ID)
	}
	return nil
}

// setState replaces the state file of a run, and makes the kubelets refresh it in the run's pods immediately. If the
// kubelets will not refresh the file until later, the result late contains the reason.
func setState(
	ctx context.Context, cluster *cudashim.Cluster, namespace, run string, s cudafault.State, pods []corev1.Pod,
) (late, err error) {
	write := cudashim.UpdateState
	if !s.ArmedAt.IsZero() {
		if write = cudashim.Arm; !s.Expires.IsZero() && !time.Now().Before(s.Expires) {
			return nil, fmt.Errorf("not armed: run %s expired at %s", run,
				s.Expires.Local().Format("15:04:05"))
		}
	}
	s.Run = run
	file, err := s.Encode()
	if err != nil {
		return nil, err
	}
	switch err := write(ctx, cluster.Client, namespace, run, file); {
	case errors.Is(err, cudashim.ErrReverting):
		return nil, fmt.Errorf("not armed: run %s is being reverted by another client", run)
	case apierrors.IsNotFound(err) && !s.ArmedAt.IsZero():
		return nil, fmt.Errorf("not armed: run %s was reverted, or its ConfigMap was deleted", run)
	case apierrors.IsNotFound(err):
		return nil, errNoState
	case err != nil:
		return nil, err
	}
	living := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	return cudashim.Refresh(ctx, cluster.Client, living, stamp()), nil
}

// awaitReady waits up to the rollout timeout for the pods with the shim to become ready.
func (i *injection) awaitReady(ctx context.Context, run ledger.Run) {
	_ = wait.PollUntilContextTimeout(ctx, pause, i.timeout, true, func(ctx context.Context) (bool, error) {
		pods, err := i.pods(run)(ctx)
		if err != nil {
			return false, nil // retry
		}
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !readyOrOver(p) }), nil
	})
}

// readyOrOver reports whether the pod is ready, terminated or in a crash loop, in which case there is nothing more to
// wait for.
func readyOrOver(pod corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting != nil && status.State.Waiting.Reason == "CrashLoopBackOff" {
			return true
		}
	}
	return podutils.IsPodReady(&pod)
}

// merge returns the evidence from both slices, sorted by source. If both contain evidence from the same source, the
// evidence in the slice after is used.
func merge(before, after []ledger.Evidence) []ledger.Evidence {
	merged := slices.Clone(after)
	for _, e := range before {
		if !slices.ContainsFunc(after, func(later ledger.Evidence) bool { return later.Source == e.Source }) {
			merged = append(merged, e)
		}
	}
	sorting.StableFunc(merged, func(a, b ledger.Evidence) int {
		switch {
		case a.Source < b.Source:
			return -1
		case a.Source > b.Source:
			return 1
		}
		return 0
	})
	return merged
}
