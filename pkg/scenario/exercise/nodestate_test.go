package exercise

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// hosts are Faults that only know the state of nodes.
type hosts struct {
	Faults
	state  map[string]map[string]string
	unread []string
}

func (h *hosts) NodeState(_ context.Context, node string) (map[string]string, []string, error) {
	if h.state[node] == nil {
		return nil, nil, errors.New("no pod can run there")
	}
	return maps.Clone(h.state[node]), h.unread, nil
}

func (h *hosts) RemoveFiles(_ context.Context, node string, digests map[string]string) (*api.RemovedFiles, error) {
	done := &api.RemovedFiles{}
	for path, digest := range digests {
		if h.state[node]["file "+path] == digest {
			delete(h.state[node], "file "+path)
			done.Removed = append(done.Removed, path)
		}
	}
	return done, nil
}

// A drop-in file that the candidate added where the scenario lets them work goes with the exercise; a file that was
// there before, or is elsewhere, stays.
func TestAddedFilesAreRemoved(t *testing.T) {
	t.Parallel()
	h := &hosts{state: map[string]map[string]string{"a": {"file /etc/containerd/config.toml": "1"}}}
	lab := labWithNodes(t, h, "a")
	r := withNodeShell(true)
	r.Sealed.Grade.Collateral.Nodes = []string{"/etc/containerd"}
	before := &baseline.Baseline{}
	if err := lab.addNodes(t.Context(), r, before); err != nil {
		t.Fatal(err)
	}
	h.state["a"] = map[string]string{
		"file /etc/containerd/config.toml": "2", "file /etc/containerd/conf.d/x.toml": "3", "file /etc/cron.d/y": "4",
	}
	ending := &Ending{}
	lab.removeAdded(t.Context(), r, before, ending)
	if _, left := h.state["a"]["file /etc/containerd/conf.d/x.toml"]; left || len(h.state["a"]) != 2 ||
		len(ending.Restored) != 1 {
		t.Errorf("%v, %+v", h.state, ending.Restored)
	}
}

func labWithNodes(t *testing.T, faults Faults, names ...string) *Lab {
	t.Helper()
	var nodes []runtime.Object
	for _, name := range names {
		nodes = append(nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	return &Lab{Client: fake.NewSimpleClientset(nodes...), Faults: faults}
}

func withNodeShell(shell bool) *scenario.Resolved {
	r := &scenario.Resolved{}
	r.Public.Access.NodeShell = shell
	r.Inject = []scenario.Step{{XID: &scenario.XID{Node: "a"}}}
	return r
}

// What a candidate with root leaves on a node fails the grade, and is told at the end with the command that removes it.
func TestWhatStaysOnNodes(t *testing.T) {
	t.Parallel()
	h := &hosts{state: map[string]map[string]string{"a": {"file /etc/crontab": "1"}, "b": {}}}
	lab := labWithNodes(t, h, "a", "b")
	begin := &baseline.Baseline{}
	if err := lab.addNodes(t.Context(), withNodeShell(true), begin); err != nil || len(begin.Nodes) != 2 {
		t.Fatalf("%v, %v", begin.Nodes, err)
	}
	h.state["a"]["file /etc/crontab"] = "2"
	h.state["b"]["file /etc/cron.d/it's mine"] = "1"
	h.state["b"]["nftables table inet $(reboot)"] = "1"
	g := &grading{lab: lab, r: withNodeShell(true)}
	damage, err := g.onNodes(t.Context(), begin)
	if err != nil || len(damage) != 3 || damage[0].String() != "Node a: the file /etc/crontab was changed" {
		t.Fatalf("%v, %v", damage, err)
	}
	ending := &Ending{}
	lab.leftOnNodes(t.Context(), withNodeShell(true), begin, ending)
	var commands []string
	for _, left := range ending.Left {
		_, command, _ := strings.Cut(left.ByHand, " -- ")
		commands = append(commands, command)
	}
	if got, want := strings.Join(commands, "; "), `; chroot /host rm '/etc/cron.d/it'\''s mine'`+
		`; chroot /host nft delete table inet '$(reboot)'`; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	if ending.Clean() || len(ending.NotCompared) != 0 {
		t.Errorf("%+v", ending)
	}
}

// A node of the exercise that cannot be read at the start would be compared with nothing, so the exercise does not
// start. Another one, and one that cannot be read later, is not the candidate's fault, and is told.
func TestNodesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	h := &hosts{state: map[string]map[string]string{"b": {}}}
	lab := labWithNodes(t, h, "a", "b")
	if err := lab.addNodes(t.Context(), withNodeShell(true), &baseline.Baseline{}); err == nil ||
		!strings.Contains(err.Error(), "node a: no pod can run there") {
		t.Errorf("%v", err)
	}
	h.state = map[string]map[string]string{"a": {}}
	known := &baseline.Baseline{}
	if err := lab.addNodes(t.Context(), withNodeShell(true), known); err != nil || len(known.Nodes) != 1 {
		t.Errorf("%v, %v", known.Nodes, err)
	}
	told := &Ending{}
	lab.leftOnNodes(t.Context(), withNodeShell(true), known, told)
	if len(told.NotCompared) != 1 || !strings.Contains(told.NotCompared[0], "node b, whose state before") {
		t.Errorf("%v", told.NotCompared)
	}
	before := &baseline.Baseline{Nodes: map[string]map[string]string{"a": {}, "b": {}}}
	g := &grading{lab: lab, r: withNodeShell(true)}
	damage, err := g.onNodes(t.Context(), before)
	if err != nil || len(damage) != 0 || len(g.report.NotCompared) != 1 {
		t.Errorf("%v, %v, %v", damage, err, g.report.NotCompared)
	}
	h.state, h.unread = map[string]map[string]string{"a": {"file /new": "1"}}, []string{"the firewall cannot be read"}
	partly := &baseline.Baseline{Nodes: map[string]map[string]string{"a": {"nftables table inet x": "1"}}}
	if damage, err := g.onNodes(t.Context(), partly); err != nil || len(damage) != 1 { // the table may still be there
		t.Errorf("%v, %v", damage, err)
	}
	h.unread = nil
	ending := &Ending{}
	lab.leftOnNodes(t.Context(), withNodeShell(true), &baseline.Baseline{}, ending)
	if len(ending.NotCompared) != 1 || !strings.Contains(ending.NotCompared[0], "unknown") {
		t.Errorf("%+v", ending)
	}
}

// Only where the candidate can become root are nodes read, and in a large cluster only those of the exercise.
func TestWhichNodesAreCompared(t *testing.T) {
	t.Parallel()
	names := strings.Split("a b c d e f g h i", " ")
	lab := labWithNodes(t, &hosts{state: map[string]map[string]string{"a": {}}}, names...)
	snapshot := &baseline.Baseline{}
	if err := lab.addNodes(t.Context(), withNodeShell(false), snapshot); err != nil || snapshot.Nodes != nil {
		t.Errorf("without root: %v, %v", snapshot.Nodes, err)
	}
	if err := lab.addNodes(t.Context(), withNodeShell(true), snapshot); err != nil || len(snapshot.Nodes) != 1 {
		t.Errorf("%v, %v", snapshot.Nodes, err)
	}
	ending := &Ending{}
	lab.leftOnNodes(t.Context(), withNodeShell(true), snapshot, ending)
	if len(ending.NotCompared) != 1 || ending.NotCompared[0] != "8 nodes that the exercise did not use" {
		t.Errorf("%+v", ending)
	}
}
