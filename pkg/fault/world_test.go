package fault_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

var start = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// world is what faults change in these tests: a file on each node, which holds the ID of the run that broke it.
type world struct {
	server *ledgertest.Server

	mu    sync.Mutex
	files map[string]string
}

func newWorld(t testing.TB, objects ...runtime.Object) *world {
	t.Helper()
	for i := range 4 {
		objects = append(objects, gpuNode(fmt.Sprintf("gpu-%d", i+1)))
	}
	return &world{server: ledgertest.New(t, objects...), files: map[string]string{}}
}

func (w *world) file(node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.files[node]
}

func (w *world) set(node, content string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files[node] = content
}

// broken returns the nodes whose file is not as it was.
func (w *world) broken() (nodes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, content := range w.files {
		if content != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// client is one use of the tool in the world. A dead one changes nothing any more.
type client struct {
	*fault.Session
	world *world
	dead  func() bool
	seen  []string // of the observer
}

func (w *world) client(hooks ledgertest.Hooks) *client {
	c := &client{world: w, dead: func() bool { return false }}
	api := w.server.Client(hooks)
	store := ledger.New(api, ledger.DefaultNamespace)
	store.Clock = func() time.Time { return start }
	c.Session = &fault.Session{
		Client: api, Ledger: store, Undoers: map[string]fault.Undoer{"file": c},
		Heartbeat: 10 * time.Millisecond,
		Retry:     wait.Backoff{Steps: 3, Duration: time.Millisecond}, From: "laptop",
		Observer: fault.Observer{
			RunChanged: func(run ledger.Run) { c.seen = append(c.seen, "run "+string(run.Phase)) },
			StepChanged: func(_ ledger.Run, step ledger.Step) {
				c.seen = append(c.seen, step.Target.Name+" "+string(step.State))
			},
			Progress: func(step ledger.Step, text string) { c.seen = append(c.seen, step.Target.Name+": "+text) },
			Warning:  func(text string) { c.seen = append(c.seen, "warning: "+text) },
		},
	}
	return c
}

func (c *client) later(d time.Duration) *client {
	c.Ledger.Clock = func() time.Time { return start.Add(d) }
	c.Ledger.Random = rand.NewChaCha8([32]byte{byte(d)})
	return c
}

func (c *client) warnings() (all []string) {
	for _, line := range c.seen {
		if strings.HasPrefix(line, "warning: ") {
			all = append(all, line)
		}
	}
	return all
}

// plan breaks the file on each node.
func (c *client) plan(nodes ...string) fault.Plan {
	plan := fault.Plan{Fault: "runtime", Summary: "a broken file"}
	for _, node := range nodes {
		plan.Changes = append(plan.Changes, fault.Change{
			Target: ledger.Target{Kind: "Node", Name: node}, Action: "break the file",
			Undo: ledger.Undo{Kind: "file"},
			Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
				return c.apply(ctx, r, node)
			},
		})
	}
	return plan
}

func (c *client) apply(ctx context.Context, r fault.Recorder, node string) ([]ledger.Evidence, error) {
	old, _ := json.Marshal(c.world.file(node))
	if err := r.Save(ctx, func(s *ledger.Step) { s.Undo.Data = old }); err != nil {
		return nil, err
	}
	if c.dead() {
		return nil, errors.New("dead")
	}
	r.Progress("breaking it")
	c.world.set(node, r.Run().ID)
	return []ledger.Evidence{{Source: "the file", Time: start, Text: r.Run().ID}}, nil
}

func (c *client) Describe(ledger.Step) string { return "puts the file back" }

func (c *client) Undo(_ context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if c.dead() {
		return "", "", errors.New("dead")
	}
	switch c.world.file(step.Target.Name) {
	case run.ID:
		c.world.set(step.Target.Name, "")
	case "":
	default:
		return ledger.StateSuperseded, "somebody else changed the file", nil
	}
	return ledger.StateReverted, "the file is back", nil
}

func gpuNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
			},
		},
	}
	for _, c := range change {
		c(node)
	}
	return node
}

// state is what the ledger holds.
type state struct {
	runs   []ledger.Run
	leases []string
	events []corev1.Event
}

func (w *world) state(t *testing.T) state {
	t.Helper()
	api := w.server.Client(ledgertest.Hooks{})
	listing, err := ledger.New(api, ledger.DefaultNamespace).List(t.Context(), ledger.All)
	if err != nil || len(listing.Unreadable) > 0 {
		t.Fatalf("%+v, %v", listing.Unreadable, err)
	}
	found := state{runs: listing.Runs}
	leases, err := api.CoordinationV1().Leases(ledger.DefaultNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range leases.Items {
		found.leases = append(found.leases, lease.Annotations[ledger.AnnotationTarget])
	}
	events, err := api.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found.events = events.Items
	return found
}

func states(run *ledger.Run) string {
	var all []string
	for _, step := range run.Steps {
		all = append(all, string(step.State))
	}
	return strings.Join(all, " ")
}

func wantText(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
}

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}
