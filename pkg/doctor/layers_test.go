package doctor

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// The table of layers says what was learnt: its numbers add up, what nobody asked for is not looked at (and neither
// passed nor unknown), and what was found fine on the nodes that were read has passed.
func TestLayersAddUp(t *testing.T) {
	t.Parallel()
	two := func() *snapshot.Snapshot {
		s := newBench().node("a", 2).node("b", 2).Snapshot
		s.Missing = append(s.Missing,
			snapshot.Missing{What: "nodes/b", Why: engine.NotAsked + ": it looks healthy by what the API says"})
		return &s
	}
	hardware := func(s *snapshot.Snapshot, o Options) LayerResult {
		r := Examine(s, o)
		for _, l := range r.Layers {
			if sum := l.Passed + l.Errors + l.Warnings + l.Infos + l.NotRead + l.Unknown; sum != l.Checks {
				t.Errorf("%s: %+v does not add up", l.Layer, l)
			}
		}
		return r.Layers[0]
	}
	none := two()
	none.Missing = append(none.Missing,
		snapshot.Missing{What: "nodes/a", Why: engine.NotAsked + ": it looks healthy by what the API says"})
	if l := hardware(none, Options{}); l.Layer != finding.LayerHardware || l.NotRead == 0 || l.Unknown != 0 {
		t.Errorf("no node was asked for, and the hardware is %+v", l)
	}
	none.Meta.APIOnly, none.Missing = true, nil
	if l := hardware(none, Options{}); l.NotRead == 0 || l.Unknown != 0 {
		t.Errorf("with --api-only the hardware is %+v", l)
	}
	one := two()
	one.Hosts = map[string]*api.Diagnosis{"a": {}}
	if l := hardware(one, Options{Checks: []string{"hw.ecc-dbe", "hw.row-remap"}}); l.NotRead != 0 {
		t.Errorf("one node was read, and the hardware is %+v", l)
	}
	broken := two()
	broken.Missing = append(broken.Missing,
		snapshot.Missing{What: "nodes/a", Why: "not read: the node does not start pods"})
	if l := hardware(broken, Options{}); l.Unknown == 0 {
		t.Errorf("a node that was to be read was not, and the hardware is %+v: missing evidence never passes", l)
	}
	for _, found := range []*snapshot.Snapshot{
		{Meta: snapshot.Meta{Created: benchNow()}, Runs: []snapshot.Run{{
			ID: "r", Fault: "runtime", Phase: "Active", Created: benchNow(),
			Targets: []snapshot.Target{{Kind: "Node", Name: "a"}},
		}}},
		&newBench().node("a", 2).pod("p", "", 4).Snapshot,
	} {
		hardware(found, Options{})
	}
}

// Whose pods wait for a handler is known to the finding itself, for who asks about a pod.
func TestFindingsNameTheirPods(t *testing.T) {
	t.Parallel()
	r := Examine(&newBench().node("a", 2).pod("p", "", 4).pod("q", "", 4).Snapshot,
		Options{Checks: []string{"sched.*"}})
	for _, f := range r.Items {
		if f.ID == "sched.bigger-than-any-node" && strings.Join(f.Pods, " ") == "team/p team/q" {
			return
		}
	}
	t.Errorf("no finding has both pods: %+v", r.Items)
}

// Time heals no wrong name; of all else a pod that is new says that it is.
func TestYoungPodsSaySo(t *testing.T) {
	t.Parallel()
	young := func(p *corev1.Pod) { p.CreationTimestamp = benchAgo(3 * time.Second) }
	r := Examine(&newBench().node("a", 2).pod("h", "a", 2).pod("p", "", 1, young).Snapshot,
		Options{Checks: []string{"sched.*"}})
	for _, f := range r.Items {
		if f.ID == "sched.all-in-use" && f.Severity == finding.Info &&
			strings.HasSuffix(f.Title, " (the pod is new; this becomes a warning if the pod still waits after 30s)") {
			return
		}
	}
	t.Errorf("a new pod does not say so: %+v", r.Items)
}
