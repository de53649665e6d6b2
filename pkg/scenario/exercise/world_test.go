package exercise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// noon is the API server's time at first.
var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// world is a cluster in which steps leave marks, and checks say what they are told to.
type world struct {
	*testing.T
	server *ledgertest.Server

	mu    sync.Mutex
	now   time.Time
	marks []string            // of steps that are in place
	false map[string]bool     // names of checks that do not hold
	at    func(action string) // hears of each thing that is about to happen
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	return &world{T: t, server: ledgertest.New(t, objects...), now: noon, false: map[string]bool{}}
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) fails(name string, fails bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.false[name] = fails
}

func (w *world) left() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.marks)
}

// trainer is one who uses a Lab. A dead one changes nothing any more.
type trainer struct {
	*Lab
	world *world
	dead  atomic.Bool
	said  []string
}

var errDead = errors.New("the client is dead")

func (w *world) trainer(host string) *trainer {
	t := &trainer{world: w}
	refuse := func(call ledgertest.Call) error {
		if t.dead.Load() {
			return errDead
		}
		return nil
	}
	client := w.server.Client(ledgertest.Hooks{Before: refuse})
	store := ledger.New(client, ledger.DefaultNamespace)
	store.Clock = w.clock
	t.Lab = &Lab{
		Client: client, LedgerNamespace: ledger.DefaultNamespace, Now: w.clock,
		Progress: func(text string) { t.said = append(t.said, text) },
		Session: &fault.Session{
			Client: client, Ledger: store, From: host, Undoers: map[string]fault.Undoer{"mark": t},
			Heartbeat: 5 * time.Millisecond,
			Retry:     wait.Backoff{Steps: 2, Duration: time.Millisecond},
		},
	}
	t.fake = fakes{
		check: t.look, step: t.mark, rights: func() fault.Change { return t.mark("rights", scenario.Step{}) },
		capture: func(context.Context) (*baseline.Baseline, error) {
			t.happens("capture")
			return &baseline.Baseline{}, nil
		},
		issue: func(until time.Time) (access.Issued, error) {
			t.happens("issue")
			return access.Issued{Kubeconfig: []byte("kubeconfig"), Until: until}, nil
		},
	}
	return t
}

func (t *trainer) happens(what string) {
	t.world.mu.Lock()
	at := t.world.at
	t.world.mu.Unlock()
	if at != nil {
		at(what)
	}
}

// look answers checks by their names.
func (t *trainer) look(ctx context.Context, checks []scenario.Check) ([]check.Result, error) {
	var results []check.Result
	for _, one := range checks {
		t.happens("check " + one.Name)
		t.world.mu.Lock()
		fails := t.world.false[one.Name]
		t.world.mu.Unlock()
		result := check.Result{Name: one.Name, OK: !fails}
		if fails {
			result.Message, result.Saw = one.Message, "0 of 2 pods"
		}
		results = append(results, result)
	}
	if ctx.Err() != nil {
		return results, context.Cause(ctx)
	}
	return results, nil
}

// mark returns a change that leaves a mark.
func (t *trainer) mark(action string, step scenario.Step) fault.Change {
	target := ledger.Target{Kind: "ServiceAccount", Name: t.Session.From}
	if step.Create != nil {
		target = ledger.Target{Kind: "Step", Name: fmt.Sprint(step.Create.Objects[0]["metadata"])}
	}
	return fault.Change{
		Target: target, Action: action, Undo: ledger.Undo{Kind: "mark"},
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			err := r.Save(ctx, func(step *ledger.Step) { step.Undo.Data = fmt.Appendf(nil, "%q", action) })
			if err != nil || t.dead.Load() {
				return nil, errors.Join(err, errDead)
			}
			t.world.mu.Lock()
			t.world.marks = append(t.world.marks, action)
			t.world.mu.Unlock()
			t.happens("made " + action)
			return []ledger.Evidence{{Source: "the world", Text: action}}, ctx.Err()
		},
	}
}

func (t *trainer) Describe(ledger.Step) string { return "takes the mark away" }

func (t *trainer) Undo(_ context.Context, _ ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if t.dead.Load() {
		return "", "", errDead
	}
	t.world.mu.Lock()
	defer t.world.mu.Unlock()
	t.world.marks = slices.DeleteFunc(t.world.marks,
		func(mark string) bool { return fmt.Sprintf("%q", mark) == string(step.Undo.Data) })
	return ledger.StateReverted, "gone", nil
}

// play returns the scenario of testdata as it is played in a world.
func (w *world) play(replacements ...string) *scenario.Resolved {
	w.Helper()
	text, err := os.ReadFile("testdata/settings.yaml")
	if err != nil {
		w.Fatal(err)
	}
	replacements = append(replacements, "[harbour, meadow, orchard, quarry, lagoon, thicket]", "[harbour]",
		"requires: {nodes: 1}", "requires: {}")
	parsed, err := scenario.Parse("settings.yaml", []byte(strings.NewReplacer(replacements...).Replace(string(text))))
	if err != nil {
		w.Fatal(err)
	}
	r, err := parsed.Resolve(1, nil, scenario.Facts{})
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// secrets returns the names of those in the ledger's namespace.
func (w *world) secrets() (names []string) {
	w.Helper()
	list, err := w.server.Client(ledgertest.Hooks{}).CoreV1().Secrets(
		ledger.DefaultNamespace,
	).List(context.Background(),
		metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, secret := range list.Items {
		names = append(names, secret.Name)
	}
	return names
}

// locks returns the targets that are locked.
func (w *world) locks() (names []string) {
	w.Helper()
	list, err := w.server.Client(ledgertest.Hooks{}).CoordinationV1().Leases(ledger.DefaultNamespace).List(
		context.Background(), metav1.ListOptions{},
	)
	if err != nil {
		w.Fatal(err)
	}
	for _, lease := range list.Items {
		names = append(names, lease.Annotations[ledger.AnnotationTarget])
	}
	return names
}

func wants(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, and there should be one about %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
}
