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

// TestLayersAddUp verifies that the numbers in the table of layers add up, that unrequested checks count as not read
// (neither passed nor unknown), and that checks passed if they found no problem on the nodes that were read.
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

// TestFindingsNameTheirPods verifies that a finding lists the pods that are waiting for a handler, for users who ask
// about a pod.
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

// TestYoungPodsSaySo verifies that a finding about a new pod says that the pod is new, unless time cannot resolve the
// problem, such as a wrong name.
func TestYoungPodsSaySo(t *testing.T) {
	t.Parallel()
	young := func(p *corev1.Pod) { p.CreationTimestamp = benchAgo(3 * time.Second) }
	r := Examine(&newBench().node("a", 2).pod("h", "a", 2).pod("p", "", 1, young).Snapshot,
		Options{Checks: []string{"sched.*"}})
	for _, f := range r.Items {
		if f.ID == "sched.all-in-use" && f.Severity == finding.Info &&
			strings.HasSuffix(f.Title, " (the pod is new; this becomes a warning if the pod is still waiting "+
				"after 30s)") {
			return
		}
	}
	t.Errorf("a new pod does not say so: %+v", r.Items)
}
