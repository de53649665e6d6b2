package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// validID matches the IDs of all runs. Runs that are not CUDA faults are reported when they are looked up.
var validID = regexp.MustCompile(`^[a-z]+-[a-z0-9]+$`)

// parseRun parses the ID of a run, with or without the prefix that `-o name` prints.
func parseRun(text string) (string, error) {
	id := strings.TrimPrefix(text, "run/")
	if !validID.MatchString(id) {
		return "", fmt.Errorf(
			"invalid run ID %q: must be of the form cuda-7k3f9q (`kubectl gpu-fault list` shows the IDs)", text,
		)
	}
	return id, nil
}

// inPlace is a CUDA run whose shim is in a workload.
type inPlace struct {
	run   ledger.Run
	step  *ledger.Step
	data  *cudashim.Data
	state cudafault.State // from the run's ConfigMap
	// unread reports whether the state could not be read.
	unread bool
	// asked is the requested fault; nil if the record does not contain it.
	asked *cudafault.Fault
}

// find reads a run and its state.
func find(ctx context.Context, cluster *cudashim.Cluster, store *ledger.Store, id string) (*inPlace, error) {
	run, err := store.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := placeOf(store, run)
	if err != nil {
		return nil, err
	}
	return p, p.read(ctx, cluster)
}

// placeOf returns a run that is in place, without its state.
func placeOf(store *ledger.Store, run ledger.Run) (*inPlace, error) {
	step := ofRun(run, cudashim.UndoKind)
	switch {
	case run.Fault != "cuda" && step == nil:
		return nil, fmt.Errorf("run %s is not a CUDA fault (%s): see %s", run.ID, run.Summary, store.Command("list"))
	case run.IsClosed():
		return nil, fmt.Errorf("run %s was closed at %s (%s): its shim is no longer in place; inject the fault again",
			run.ID, run.Closed.Local().Format(time.DateTime), run.Phase)
	case step == nil || !step.InPlace():
		return nil, fmt.Errorf("run %s has not changed the workload (phase %s)", run.ID, run.Phase)
	}
	data, err := cudashim.ReadData(*step)
	switch {
	case err != nil:
		return nil, fmt.Errorf("run %s: %w", run.ID, err)
	case data == nil:
		return nil, fmt.Errorf("run %s has not changed its workload yet", run.ID)
	}
	p := &inPlace{run: run, step: step, data: data}
	var kept detail
	if len(step.Detail) > 0 && json.Unmarshal(step.Detail, &kept) == nil {
		p.asked = &kept.Fault
	}
	return p, nil
}

// errNoState is the error for a run without its ConfigMap.
var errNoState = errors.New("the run's ConfigMap was not found: the ConfigMap or the workload was deleted")

// read reads the state in the run's ConfigMap.
func (p *inPlace) read(ctx context.Context, cluster *cudashim.Cluster) error {
	file, err := cudashim.ReadState(ctx, cluster.Client, p.data.Namespace, p.run.ID)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("run %s: %w", p.run.ID, errNoState)
	}
	var state cudafault.State
	if err == nil {
		state, err = cudafault.DecodeState(file)
	}
	if err == nil && state.Run != p.run.ID {
		err = fmt.Errorf("the state in the ConfigMap belongs to run %q", state.Run)
	}
	if err != nil {
		p.unread = true
		return fmt.Errorf("run %s: %w", p.run.ID, err)
	}
	p.state = state
	return nil
}

// healthy returns the disarmed state of the run, derived from the current state or, if it cannot be read, from the
// record.
func (p *inPlace) healthy() cudafault.State {
	now := uint64(time.Now().UnixNano())
	if !p.unread {
		state := p.state
		state.ArmedAt = time.Time{}
		return state
	}
	if state, err := cudafault.DecodeState(p.data.Disarmed); err == nil && state.Run == p.run.ID {
		state.ArmedAt, state.Generation = time.Time{}, now
		return state
	}
	if p.asked != nil {
		if state, err := p.asked.State(p.run.ID, now, time.Time{}, p.run.Until); err == nil {
			return state
		}
	}
	return cudafault.State{Run: p.run.ID, Generation: now, Expires: p.run.Until, Rank: cudafault.AllRanks}
}

// pods returns a function that lists the pods that have the shim.
func (p *inPlace) pods(cluster *cudashim.Cluster) func(context.Context) ([]corev1.Pod, error) {
	return func(ctx context.Context) ([]corev1.Pod, error) { return cluster.Pods(ctx, p.data.Namespace, p.run.ID) }
}

// phase returns a description of the fault's state, such as "armed since 14:00:05", "disarmed" or "expired at 14:30:00:
// ...".
func (p *inPlace) phase(now time.Time) string {
	at := func(t time.Time) string { return t.Local().Format("15:04:05") }
	switch {
	case p.unread:
		return "state cannot be read"
	case p.state.Run == "":
		return "cannot be armed or disarmed, because its ConfigMap was not found"
	case !p.state.Expires.IsZero() && !now.Before(p.state.Expires):
		return fmt.Sprintf(
			"expired at %s: all calls pass through, and the idle shim stays in the pod template until the run is reverted",
			at(p.state.Expires),
		)
	case p.state.ArmedAt.IsZero():
		return "disarmed"
	default:
		return "armed since " + at(p.state.ArmedAt)
	}
}

// tryState checks with a dry run whether the API server accepts a state file, using only verbs that the roles allow.
func tryState(ctx context.Context, cluster *cudashim.Cluster, namespace, run string, s cudafault.State) error {
	s.Run = run
	file, err := s.Encode()
	if err != nil {
		return err
	}
	configMaps := cluster.Client.CoreV1().ConfigMaps(namespace)
	cm, err := configMaps.Get(ctx, cudashim.Name(run), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get configmap %s: %w", cudashim.Name(run), err)
	}
	if cm.Labels[ledger.LabelManagedBy] != ledger.ManagedBy || cm.Labels[ledger.LabelRun] != run {
		return fmt.Errorf("configmap %s/%s does not belong to run %s", namespace, cm.Name, run)
	}
	cm.BinaryData = maps.Clone(cm.BinaryData)
	if cm.BinaryData == nil {
		cm.BinaryData = map[string][]byte{}
	}
	cm.BinaryData[cudashim.StateKey] = file
	_, err = configMaps.Update(ctx, cm,
		metav1.UpdateOptions{FieldManager: cudashim.FieldManager, DryRun: []string{metav1.DryRunAll}})
	return err
}
