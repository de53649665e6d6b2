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

// validID is the form of the IDs of runs; others than cuda's are told of when they are looked up.
var validID = regexp.MustCompile(`^[a-z]+-[a-z0-9]+$`)

// parseRun reads a run's ID, also as `-o name` prints it.
func parseRun(text string) (string, error) {
	id := strings.TrimPrefix(text, "run/")
	if !validID.MatchString(id) {
		return "", fmt.Errorf("%q is no run ID: they look like cuda-7k3f9q (`kubectl gpu-fault list` shows them)", text)
	}
	return id, nil
}

// inPlace is a cuda run whose shim is in a workload.
type inPlace struct {
	run   ledger.Run
	step  *ledger.Step
	data  *cudashim.Data
	state cudafault.State // as the run's ConfigMap has it
	// unread reports whether that could not be read.
	unread bool
	// asked is the fault as it was asked for; nil where a version without it made the record.
	asked *cudafault.Fault
}

// find reads a run and its state. The errors say what to do instead where nothing of the run is in place.
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

// placeOf returns what the ledger knows of a run's place.
func placeOf(store *ledger.Store, run ledger.Run) (*inPlace, error) {
	step := ofRun(run, cudashim.UndoKind)
	switch {
	case run.Fault != "cuda" && step == nil:
		return nil, fmt.Errorf("run %s is no CUDA fault (%s): see %s", run.ID, run.Summary, store.Command("list"))
	case run.IsClosed():
		return nil, fmt.Errorf("run %s is closed since %s (%s): its shim is not in place any more; inject it anew",
			run.ID, run.Closed.Local().Format(time.DateTime), run.Phase)
	case step == nil || !step.InPlace():
		return nil, fmt.Errorf("run %s has nothing in place: it came as far as %s", run.ID, run.Phase)
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

// errNoState says that a run's ConfigMap is gone.
var errNoState = errors.New("its ConfigMap is gone: somebody deleted it, or the workload")

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
		err = fmt.Errorf("the state in its ConfigMap is of run %q", state.Run)
	}
	if err != nil {
		p.unread = true
		return fmt.Errorf("run %s: %w", p.run.ID, err)
	}
	p.state = state
	return nil
}

// healthy returns the state file in which the run is disarmed: what is there, or what the record knows where that
// cannot be read.
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

// pods lists those that have the shim now.
func (p *inPlace) pods(cluster *cudashim.Cluster) func(context.Context) ([]corev1.Pod, error) {
	return func(ctx context.Context) ([]corev1.Pod, error) { return cluster.Pods(ctx, p.data.Namespace, p.run.ID) }
}

// phase reports whether the fault is on: "armed since 14:00:05", "disarmed", "over since 14:30:00".
func (p *inPlace) phase(now time.Time) string {
	at := func(t time.Time) string { return t.Local().Format("15:04:05") }
	switch {
	case p.unread:
		return "its state cannot be read"
	case p.state.Run == "":
		return "its ConfigMap is gone, so that it cannot be armed or disarmed"
	case !p.state.Expires.IsZero() && !now.Before(p.state.Expires):
		return fmt.Sprintf(
			"its time is up since %s: all calls pass through, and the pod template has the idle shim until it is reverted",
			at(p.state.Expires),
		)
	case p.state.ArmedAt.IsZero():
		return "disarmed"
	default:
		return "armed since " + at(p.state.ArmedAt)
	}
}

// tryState asks the API server whether it would take a state file: with the verbs that the roles allow.
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
		return fmt.Errorf("configmap %s/%s is not of run %s", namespace, cm.Name, run)
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
