package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// gpuNode returns a node with eight GPUs.
func gpuNode(name string, ready corev1.ConditionStatus) corev1.Node {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true", "pool": "a"},
		},
		Status: corev1.NodeStatus{
			Capacity: gpus, Allocatable: gpus,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		},
	}
}

// fakeSource has four GPU nodes, of which one is not Ready, and one node without.
type fakeSource struct {
	err     error
	looking []string
}

func (f fakeSource) API(context.Context) (*snapshot.Snapshot, error) {
	plain := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu-1"}}
	return &snapshot.Snapshot{Nodes: []corev1.Node{
		plain, gpuNode("gpu-1", corev1.ConditionTrue), gpuNode("gpu-2", corev1.ConditionTrue),
		gpuNode("gpu-3", corev1.ConditionTrue),
		gpuNode("gpu-4", corev1.ConditionUnknown),
	}}, f.err
}

func (f fakeSource) Suspicious(*snapshot.Snapshot) []string { return slices.Clone(f.looking) }

// fakeReader counts what it is asked.
type fakeReader struct {
	refused, broken error
	cancel          context.CancelCauseFunc

	mu          sync.Mutex
	read        []string
	atOnce, top atomic.Int32
}

func (f *fakeReader) Admitted(context.Context, string) error { return f.refused }
func (f *fakeReader) Prepare(context.Context) (bool, error)  { return true, nil }

func (f *fakeReader) Read(_ context.Context, name string, progress func(string)) (*api.Diagnosis, error) {
	f.top.Store(max(f.top.Load(), f.atOnce.Add(1)))
	defer f.atOnce.Add(-1)
	f.mu.Lock()
	f.read = append(f.read, name)
	f.mu.Unlock()
	progress("reading")
	if f.cancel != nil {
		f.cancel(errors.New("interrupted"))
	}
	if f.broken != nil && name == "gpu-2" {
		return nil, f.broken
	}
	return &api.Diagnosis{}, nil
}

func gatherWith(t *testing.T, change func(*gathering)) (*snapshot.Snapshot, *fakeReader, string, error) {
	t.Helper()
	var talk bytes.Buffer
	r := &fakeReader{}
	g := &gathering{
		options: newOptions(), source: fakeSource{}, reader: r, show: progress.New(&talk), namespace: "gpu-fault",
	}
	change(g)
	s, err := g.gather(t.Context())
	slices.Sort(r.read)
	return s, r, talk.String(), err
}

func whys(s *snapshot.Snapshot) string {
	var all []string
	for _, m := range s.Missing {
		all = append(all, m.What+": "+m.Why)
	}
	return strings.Join(all, "\n")
}

// Which nodes are read, and what is said of the others.
func TestWhichNodesAreRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*gathering)
		read   string
		whys   []string
	}{
		"api only": {func(g *gathering) { g.apiOnly = true }, "", nil},
		"dry run":  {func(g *gathering) { g.fix, g.dryRun, g.allGPUNodes = fixHandler, "client", true }, "", nil},
		"to mend":  {func(g *gathering) { g.fix, g.allGPUNodes = fixHandler, true }, "gpu-1 gpu-2 gpu-3", nil},
		"named": {
			func(g *gathering) { g.nodes = []string{"gpu-2", "node/cpu-1", "gpu-2"} }, "cpu-1 gpu-2",
			[]string{"nodes/gpu-1: not asked for: other nodes were named"},
		},
		"by label": {
			func(g *gathering) { g.selector = "pool=a" }, "gpu-1 gpu-2 gpu-3",
			[]string{"nodes/gpu-4: not inspected: the node is not Ready"},
		},
		"all": {
			func(g *gathering) { g.allGPUNodes = true }, "gpu-1 gpu-2 gpu-3",
			[]string{"nodes/gpu-4: not inspected: the node is not Ready"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r, talk, err := gatherWith(t, test.change)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.read, " "); got != test.read || len(s.Hosts) != len(r.read) {
				t.Errorf("read %q into %d hosts, wanted %q", got, len(s.Hosts), test.read)
			}
			for _, why := range test.whys {
				if !strings.Contains(whys(s), why) {
					t.Errorf("what is missing lacks %q:\n%s", why, whys(s))
				}
			}
			if said := strings.Contains(talk, "privileged pod"); said != (test.read != "") {
				t.Errorf("pods are started (%q), and this is said before:\n%s", test.read, talk)
			}
		})
	}
}

// Only nodes that look wrong are read when none is named; checks that need no node start no pod at all.
func TestSuspiciousNodesAreRead(t *testing.T) {
	t.Parallel()
	needs := slices.ContainsFunc(doctor.Checks(),
		func(c engine.Check) bool { return slices.Contains(c.Needs, engine.NeedNode) })
	if !needs {
		t.Fatal("no check needs a node")
	}
	s, r, _, err := gatherWith(t, func(g *gathering) { g.source = fakeSource{looking: []string{"gpu-3"}} })
	if err != nil || strings.Join(r.read, " ") != "gpu-3" ||
		!strings.Contains(whys(s), "nodes/gpu-1: not asked for: according to the API, it looks healthy") {
		t.Errorf("read %v (%v); missing:\n%s", r.read, err, whys(s))
	}
	for _, c := range doctor.Checks() {
		if !slices.Contains(c.Needs, engine.NeedNode) {
			if _, r, _, err = gatherWith(
				t, func(g *gathering) { g.source, g.checks = fakeSource{looking: []string{"gpu-3"}}, []string{c.ID} },
			); err != nil || len(r.read) > 0 {
				t.Errorf("%s needs no node, and %v were read (%v)", c.ID, r.read, err)
			}
			break
		}
	}
}

// Who may not make privileged pods is told so once, and gets the rest; a node that dies while it is read stops no
// other.
func TestWhatCannotBeReadIsMissing(t *testing.T) {
	t.Parallel()
	s, r, talk, err := gatherWith(t, func(g *gathering) {
		g.allGPUNodes, g.reader = true,
			&fakeReader{refused: errors.New(`pods "x" is forbidden: violates PodSecurity "restricted"`)}
	})
	if err != nil || len(r.read) > 0 || len(s.Hosts) > 0 ||
		!strings.Contains(whys(s), "nodes/gpu-2: not inspected: privileged pods are not allowed") {
		t.Errorf("without the right to make pods: %v, read %v, missing:\n%s", err, r.read, whys(s))
	}
	if strings.Count(talk, "violates PodSecurity") != 1 || !strings.Contains(talk, "unknown") {
		t.Errorf("it says:\n%s", talk)
	}
	dead := &fakeReader{broken: errors.New("the node went away")}
	s, _, talk, err = gatherWith(t, func(g *gathering) { g.allGPUNodes, g.reader = true, dead })
	if err != nil || len(s.Hosts) != 2 || !strings.Contains(whys(s), "gpu-2: not inspected: the node went away") ||
		!strings.Contains(talk, "went away") {
		t.Errorf("with a node that dies: %v, %d hosts, missing:\n%s\nsaid:\n%s", err, len(s.Hosts), whys(s), talk)
	}
}

// Never more nodes at a time than --parallel, and none after Ctrl-C, whose cause is the error.
func TestReadingIsBounded(t *testing.T) {
	t.Parallel()
	one := &fakeReader{}
	if _, _, _, err := gatherWith(
		t, func(g *gathering) { g.allGPUNodes, g.parallel, g.reader = true, 1, one },
	); err != nil ||
		one.top.Load() != 1 {
		t.Errorf("%d nodes at a time, with --parallel 1 (%v)", one.top.Load(), err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := &fakeReader{cancel: cancel}
	g := &gathering{
		options: newOptions(), source: fakeSource{}, reader: stopped, show: progress.New(&bytes.Buffer{}),
		namespace: "x",
	}
	g.allGPUNodes, g.parallel = true, 1
	if _, err := g.gather(ctx); err == nil || err.Error() != "interrupted" || len(stopped.read) != 1 {
		t.Errorf("after Ctrl-C in the first node: read %v, error %v", stopped.read, err)
	}
}

func TestNamesOfNodesThatAreNotThere(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"gpu-11": "did you mean gpu-1", "explian": "or the explain subcommand",
	} {
		if _, r, _, err := gatherWith(t, func(g *gathering) { g.nodes = []string{name} }); err == nil ||
			!strings.Contains(err.Error(), want) || len(r.read) > 0 {
			t.Errorf("doctor %s: %v; wanted %q", name, err, want)
		}
	}
	if _, _, _, err := gatherWith(t, func(g *gathering) { g.selector = "pool=b" }); err == nil ||
		!strings.Contains(err.Error(), "no node matches the selector") {
		t.Errorf("-l pool=b: %v", err)
	}
	if _, _, _, err := gatherWith(
		t, func(g *gathering) { g.source = fakeSource{err: errors.New("unreachable")} },
	); err == nil || err.Error() != "unreachable" {
		t.Errorf("an API server that is away: %v", err)
	}
}

// Of many nodes that look wrong in the same way only some are read, the worst first.
func TestSuspiciousAreFew(t *testing.T) {
	t.Parallel()
	r := doctor.Report{}
	same := finding.Finding{ID: "dp.capacity-zero", Root: true, Severity: finding.Error}
	for i := range 500 {
		name := fmt.Sprintf("gpu-%03d", i)
		r.Nodes = append(r.Nodes, doctor.NodeResult{Node: name})
		same.Nodes = append(same.Nodes, name)
	}
	odd := finding.Finding{ID: "node.not-ready", Root: true, Severity: finding.Error, Nodes: []string{"gpu-499"}}
	idle := finding.Finding{ID: "wl.idle-holder", Root: true, Severity: finding.Info, Nodes: []string{"gpu-300"}}
	r.Items = []finding.Finding{same, odd, idle}
	if got := strings.Join(suspicious(r), " "); got != "gpu-499 gpu-000 gpu-001 gpu-002" {
		t.Errorf("to be read: %s", got)
	}
	r.Items = []finding.Finding{{ID: "sched.none-advertised", Root: true, Severity: finding.Error}}
	if got := strings.Join(suspicious(r), " "); got != "gpu-000 gpu-001 gpu-002" {
		t.Errorf("something is wrong, and no node is named: %s", got)
	}
	r.Items = []finding.Finding{idle}
	if got := suspicious(r); len(got) > 0 {
		t.Errorf("nothing is wrong, and %v are read", got)
	}
}

// What a node says is shown on the terminal, in JSON and on pages: no secret of it may come so far.
func TestWhatNodesSayIsRedacted(t *testing.T) {
	t.Parallel()
	s, _, _, err := gatherWith(t, func(g *gathering) {
		g.reader, g.nodes = &leakingReader{}, []string{"gpu-1", "gpu-2"}
	})
	if err != nil {
		t.Fatal(err)
	}
	if host := s.Hosts["gpu-1"]; host == nil || strings.Contains(fmt.Sprintf("%+v", *host), "hush") {
		t.Errorf("a secret of a node is in the snapshot: %+v", host)
	}
	if strings.Contains(whys(s), "hush") {
		t.Errorf("a secret is in the reasons: %s", whys(s))
	}
}

// leakingReader reads a node with secrets, and of another only an error that has one.
type leakingReader struct{ fakeReader }

func (l *leakingReader) Read(_ context.Context, name string, _ func(string)) (*api.Diagnosis, error) {
	if name == "gpu-2" {
		return nil, errors.New("GET https://me:hush@api/: 500")
	}
	return &api.Diagnosis{
		Journals: map[string]string{"k": "--token hush"}, Probe: api.Probe{
			Cmdline: "x.password=hush", SMIError: "token=hush", Unread: map[string]string{"pci": "token=hush"},
		},
	}, nil
}

// A namespace that is not there is a mistake, and no health.
func TestANamespaceThatIsNotThere(t *testing.T) {
	t.Parallel()
	s := &snapshot.Snapshot{Namespaces: []corev1.Namespace{
		{ObjectMeta: metav1.ObjectMeta{Name: "training"}}, {ObjectMeta: metav1.ObjectMeta{Name: "default"}},
	}}
	if err := namespaceExists(s, "trainnig"); err == nil || !strings.Contains(err.Error(), "did you mean training?") {
		t.Errorf("-n trainnig: %v", err)
	}
	if err := namespaceExists(
		s,
		"zzzzzzzz",
	); err == nil ||
		!strings.Contains(err.Error(), `namespace "zzzzzzzz" not found`) {
		t.Errorf("-n zzzzzzzz: %v", err)
	}
	for _, name := range []string{"", "default"} {
		if err := namespaceExists(s, name); err != nil {
			t.Errorf("-n %q: %v", name, err)
		}
	}
	if err := namespaceExists(&snapshot.Snapshot{}, "any"); err != nil { // who may not list them
		t.Errorf("when namespaces are not known: %v", err)
	}
}

// A pod of ours that a node does not start is evidence, unless the image or a policy is why.
func TestNotStarted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"sandbox": {
			&debugpod.StartError{
				Reason: debugpod.ReasonTimeout, Message: "did not run (events: FailedCreatePodSandBox: x)",
			},
			"did not run (events: FailedCreatePodSandBox: x)",
		},
		"image":  {&debugpod.StartError{Reason: "ErrImagePull", Message: "x"}, ""},
		"slow":   {&debugpod.StartError{Reason: debugpod.ReasonTimeout, Message: "x", Pulls: true}, ""},
		"policy": {&debugpod.StartError{Reason: debugpod.ReasonPolicy, Message: "x"}, ""},
		"other":  {errors.New("connection refused"), ""},
	} {
		broken := &fakeReader{broken: fmt.Errorf("start the debug pod: %w", test.err)}
		s, _, _, err := gatherWith(t, func(g *gathering) { g.allGPUNodes, g.reader = true, broken })
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range s.Missing {
			if m.What == "nodes/gpu-2" && m.NotStarted != test.want {
				t.Errorf("%s: %q is taken for evidence of the node, want %q", name, m.NotStarted, test.want)
			}
		}
	}
}
