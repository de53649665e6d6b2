package firewall

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// fakePod is a node that does, or does not, what it is asked.
type fakePod struct {
	calls   []string
	built   api.Firewall
	asked   api.RemoveFirewall
	removed api.RemovedFirewall
	fails   error

	probes   []string
	unprobed int
}

func (p *fakePod) Firewall(_ context.Context, what api.Firewall) (*api.BuiltFirewall, error) {
	p.calls, p.built = append(p.calls, "build"), what
	return &api.BuiltFirewall{
		Rule: "table inet hardening", Expires: what.TTL, Probes: p.probes, Unprobed: p.unprobed,
	}, p.fails
}

func (p *fakePod) RemoveFirewall(_ context.Context, what api.RemoveFirewall) (*api.RemovedFirewall, error) {
	p.calls, p.asked = append(p.calls, "remove"), what
	return &p.removed, p.fails
}

func (p *fakePod) Close(context.Context) error {
	p.calls = append(p.calls, "close")
	return nil
}

func (p *fakePod) start(context.Context, ledger.Run, string, func(string)) (Pod, error) {
	p.calls = append(p.calls, "start")
	return p, nil
}

// recorder keeps what is saved, in the order of the pod's calls.
type recorder struct {
	pod   *fakePod
	run   ledger.Run
	step  ledger.Step
	fails error
}

func (r *recorder) Run() ledger.Run { return r.run }
func (r *recorder) Save(_ context.Context, change func(*ledger.Step)) error {
	r.pod.calls = append(r.pod.calls, "save")
	change(&r.step)
	return r.fails
}
func (r *recorder) Progress(string) {}

var asked = api.Firewall{Table: "hardening", Port: 27000, Drop: api.DropResponses}

func (p *fakePod) apply(t *testing.T, r *recorder) ([]ledger.Evidence, error) {
	in := &Injection{Start: p.start}
	return in.Change("node-b", "drop", asked).Apply(t.Context(), r)
}

// TestTheUndoIsSavedBeforeTheRule: nothing is blocked that the ledger does not know how to free, nothing for ever, and
// the pod is always closed.
func TestTheUndoIsSavedBeforeTheRule(t *testing.T) {
	t.Parallel()
	hour := ledger.Run{ID: "scenario-abc234", Until: time.Now().Add(time.Hour)}
	for name, tc := range map[string]struct {
		run   ledger.Run
		pod   error
		saves error
		calls string
		wrong string
	}{
		"as it should be": {run: hour, calls: "start save build close"},
		"the ledger is full": {
			run: hour, saves: errors.New("etcd is full"), calls: "start save close", wrong: "etcd is full",
		},
		"the node refuses": {
			run: hour, pod: &api.Error{Code: api.CodeNoFilter, Message: "no nftables"},
			calls: "start save build save close", wrong: "no nftables",
		},
		"there is a table": {
			run: hour, pod: &api.Error{Code: api.CodeExists, Message: "somebody's"},
			calls: "start save build save close", wrong: "somebody's",
		},
		"the network bypasses the rule": {
			run: hour, pod: &api.Error{Code: api.CodeBypassed, Message: "no packet reached the rule"},
			calls: "start save build save close", wrong: "no packet reached the rule",
		},
		"a pod has terminated": {
			run: hour, pod: &api.Error{Code: api.CodeNotRunning, Message: "no process of pod ml/a"},
			calls: "start save build save close", wrong: "no process of pod ml/a",
		},
		"nobody knows": {
			run: hour, pod: errors.New("connection lost"), calls: "start save build close", wrong: "connection lost",
		},
		"without an end": {run: ledger.Run{ID: "scenario-abc234"}, calls: "", wrong: "requires a TTL"},
		"its time is up": {
			run: ledger.Run{ID: "scenario-abc234", Until: time.Now().Add(-time.Minute)}, calls: "start close",
			wrong: "before the fault could be injected",
		},
		"longer than allowed": {
			run: ledger.Run{ID: "scenario-abc234", Until: time.Now().Add(1000 * time.Hour)}, calls: "start close",
			wrong: "invalid TTL",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &fakePod{fails: tc.pod}
			r := &recorder{pod: pod, run: tc.run, fails: tc.saves}
			evidence, err := pod.apply(t, r)
			if got := strings.Join(pod.calls, " "); got != tc.calls {
				t.Errorf("the calls were %q, not %q", got, tc.calls)
			}
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) {
					t.Errorf("error %v does not say %q", err, tc.wrong)
				}
				if forgotten := len(r.step.Undo.Data) == 0; nothingMade(tc.pod) && !forgotten ||
					tc.wrong == "connection lost" && forgotten {
					t.Errorf("the undo is %s", r.step.Undo.Data)
				}
				return
			}
			if err != nil || len(evidence) != 1 ||
				!strings.Contains(evidence[0].Text, "the kernel removes the rule in 1h0m0s") {
				t.Errorf("%+v, %v", evidence, err)
			}
			if pod.built.TTL < 59*time.Minute {
				t.Errorf("the kernel was asked for %s, not an hour", pod.built.TTL)
			}
			var saved claim
			if err := json.Unmarshal(r.step.Undo.Data, &saved); err != nil || saved.Firewall != pod.built {
				t.Errorf("saved %s, %v; made %+v", r.step.Undo.Data, err, pod.built)
			}
		})
	}
}

// TestPartitionEvidence holds that the table of a partition has the name by which its run is found, that the evidence
// distinguishes rules that a packet has verified from those that were only read back, and that an error of the undo
// names the table.
func TestPartitionEvidence(t *testing.T) {
	t.Parallel()
	pod := &fakePod{probes: []string{"1", "2", "3", "4", "5"}, unprobed: 1}
	run := ledger.Run{ID: "network-abc234", Until: time.Now().Add(time.Hour)}
	r := &recorder{pod: pod, run: run}
	what := api.Firewall{Partition: &api.Partition{
		Pods: []api.PartitionedPod{
			{Name: "ml/a", UID: "u", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}},
		},
		Matches: []api.Match{{}, {Received: true}},
	}}
	evidence, err := (&Injection{Start: pod.start}).Change("node-b", "partition", what).Apply(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, e := range evidence {
		texts = append(texts, e.Source+": "+e.Text)
	}
	want := "nftables: table inet hardening; the kernel removes the rule in 1h0m0s | probe: dropped: 1, 2, 3, 4, and 1 more | " +
		"probe: 1 rule could only be read back, because no selected pod on the node can send a matching packet"
	if got := strings.Join(texts, " | "); got != want {
		t.Errorf("%s, wanted %s", got, want)
	}
	if pod.built.Table != api.PartitionTable(run.ID) {
		t.Errorf("the table is %q", pod.built.Table)
	}
	pod.fails = errors.New("no route")
	_, _, err = Undoer{Start: pod.start}.Undo(t.Context(), run, r.step)
	if err == nil || !strings.Contains(err.Error(), "delete the table inet "+api.PartitionTable(run.ID)) {
		t.Errorf("%v", err)
	}
}

// TestUndo: what became of the table is reported as it was, and what others have put into it stays. The node is asked
// about the run, and told nothing of what the record says, which anyone with rights on ConfigMaps may have written.
func TestUndo(t *testing.T) {
	t.Parallel()
	good := json.RawMessage(`{"firewall": {"table": "hardening", "port": 27000, "drop": "responses", "ttl": 1}}`)
	for name, tc := range map[string]struct {
		data    json.RawMessage
		removed api.RemovedFirewall
		fails   error
		state   ledger.State
		says    string
		calls   string
	}{
		"removed": {
			good, api.RemovedFirewall{Table: "hardening", Removed: true, Dropped: 12}, nil, ledger.StateReverted,
			"inet hardening was removed; the rule had dropped 12 packets", "start remove close",
		},
		"slow": {
			json.RawMessage(`{"firewall": {"partition": {"slow": {"rate": 8000}}}}`),
			api.RemovedFirewall{Table: "gpu-fault-1", Removed: true, Dropped: 12, Links: 2}, nil, ledger.StateReverted,
			"the rule had slowed down 12 packets; the queueing disciplines of 2 pod links were removed", "start remove close",
		},
		"after its time": {
			good, api.RemovedFirewall{Table: "hardening", Removed: true, Expired: true}, nil, ledger.StateReverted,
			"its rule had already expired", "start remove close",
		},
		"gone": {
			good, api.RemovedFirewall{}, nil, ledger.StateReverted, "has no table from this run", "start remove close",
		},
		"others' rules": {
			good, api.RemovedFirewall{Table: "hardening", Removed: true, Left: []string{"chain input"}}, nil,
			ledger.StateSuperseded,
			"another client has added to it: chain input; to delete the table: nft delete table inet hardening",
			"start remove close",
		},
		"no nftables": {
			good, api.RemovedFirewall{}, &api.Error{Code: api.CodeNoFilter}, ledger.StateReverted,
			"has no table from this run", "start remove close",
		},
		"the node is away": {
			good, api.RemovedFirewall{}, errors.New("no route"), "",
			"the table with the set ports-", "start remove close",
		},
		"never made": {nil, api.RemovedFirewall{}, nil, ledger.StateReverted, "nothing had been changed", ""},
		"forged": {
			json.RawMessage(`{"firewall": {"table": "; flush ruleset"}, "settings": {"image": "evil"}}`),
			api.RemovedFirewall{}, nil, ledger.StateReverted, "has no table from this run", "start remove close",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &fakePod{removed: tc.removed, fails: tc.fails}
			step := ledger.Step{
				Target: ledger.Target{Kind: "Node", Name: "node-b"}, Undo: ledger.Undo{Kind: UndoKind, Data: tc.data},
			}
			state, said, err := Undoer{Start: pod.start, Overwrite: true}.Undo(t.Context(),
				ledger.Run{ID: "scenario-abc234"}, step)
			if err != nil {
				said = err.Error()
			}
			if state != tc.state || (err == nil) != (tc.state != "") || !strings.Contains(said, tc.says) {
				t.Errorf("%q, %q, %v; wanted %q and %q", state, said, err, tc.state, tc.says)
			}
			if got := strings.Join(pod.calls, " "); got != tc.calls {
				t.Errorf("the calls were %q, not %q", got, tc.calls)
			}
			if tc.calls != "" && pod.asked != (api.RemoveFirewall{Overwrite: true}) {
				t.Errorf("the node was asked %+v", pod.asked)
			}
		})
	}
}
