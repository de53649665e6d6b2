package containerdconfig

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

const config = "/etc/containerd/config.toml"

// fakePod is a node whose dead man does, or does not, what it is asked.
type fakePod struct {
	calls     []string
	change    deadman.Change
	restore   deadman.Restore
	changeErr error
	restored  deadman.Restored
	files     []api.ConfigFile // that containerd loads
	fails     error            // of InspectRuntime
}

func (p *fakePod) InspectRuntime(context.Context) (*api.Runtime, error) {
	p.calls = append(p.calls, "inspect")
	return &api.Runtime{Instance: &api.Instance{Files: p.files}}, p.fails
}

func (p *fakePod) Change(_ context.Context, what deadman.Change, each func(deadman.Status)) (*deadman.Status, error) {
	p.calls, p.change = append(p.calls, "change"), what
	each(deadman.Status{Phase: deadman.PhaseArmed})
	return &deadman.Status{
		Phase: deadman.PhaseApplied, CRI: &cri.Info{Name: "containerd", Version: "2.3.7"},
	}, p.changeErr
}

func (p *fakePod) Restore(_ context.Context, what deadman.Restore) (*deadman.Restored, error) {
	p.calls, p.restore = append(p.calls, "restore"), what
	return &p.restored, nil
}

func (p *fakePod) Close(context.Context) error {
	p.calls = append(p.calls, "close")
	return nil
}

// fakeRecorder keeps what is saved, in the order of the pod's calls.
type fakeRecorder struct {
	pod  *fakePod
	run  ledger.Run
	step ledger.Step
	err  error
}

func (r *fakeRecorder) Run() ledger.Run { return r.run }
func (r *fakeRecorder) Save(_ context.Context, change func(*ledger.Step)) error {
	r.pod.calls = append(r.pod.calls, "save")
	change(&r.step)
	return r.err
}
func (r *fakeRecorder) Progress(string) {}

func decision(landed func(*cri.Info) (string, error)) *Decision {
	return &Decision{
		Change: deadman.Change{
			Files: []deadman.File{{
				Path: config, Before: patch.Sum([]byte("a")), After: patch.Sum([]byte("b")),
				Edits: []patch.Edit{{Old: []byte("a"), New: []byte("b")}},
			}},
			Service: &deadman.Service{Unit: "containerd.service"},
		},
		Landed: landed,
	}
}

func injection(pod *fakePod, d *Decision, err error) *Injection {
	return &Injection{
		Start: func(context.Context, ledger.Run, string, time.Duration, func(string)) (Pod, error) {
			pod.calls = append(pod.calls, "start")
			return pod, nil
		},
		Decide: func(string, api.Runtime) (*Decision, error) { return d, err },
	}
}

func shows(*cri.Info) (string, error) { return "nvidia is gone", nil }

// The undo must be in the ledger before the node is changed, and the pod stays with the fault: to delete it is to heal
// the node.
func TestTheUndoIsSavedBeforeTheChange(t *testing.T) {
	t.Parallel()
	pod := &fakePod{}
	r := &fakeRecorder{pod: pod, run: ledger.Run{ID: "runtime-abc234", Until: time.Now().Add(time.Hour)}}
	evidence, err := injection(pod, decision(shows), nil).Change(ledger.Target{Kind: "Node", Name: "n"},
		"").Apply(t.Context(), r)
	if err != nil || strings.Join(pod.calls, " ") != "start inspect save change" {
		t.Fatalf("%v, calls %v", err, pod.calls)
	}
	var claim Claim
	if err := json.Unmarshal(r.step.Undo.Data, &claim); err != nil || len(claim.Files) != 1 ||
		claim.Files[0].Path != config {
		t.Errorf("saved %s, %v", r.step.Undo.Data, err)
	}
	if pod.change.TTL < 59*time.Minute || pod.change.TTL > time.Hour {
		t.Errorf("the dead man waits %s, not an hour", pod.change.TTL)
	}
	if len(evidence) != 2 || evidence[1].Text != "nvidia is gone" ||
		evidence[1].Source != "CRI Status of containerd 2.3.7" {
		t.Errorf("evidence %+v", evidence)
	}
}

// TestEncrypted holds that the key of an encrypted record is in the ledger before the node gets it, that it is not in
// the record on the node, and that the restore sends it again.
func TestEncrypted(t *testing.T) {
	t.Parallel()
	pod := &fakePod{restored: deadman.Restored{Files: []deadman.RestoredFile{{Path: config}}, SameConfig: true}}
	r := &fakeRecorder{pod: pod, run: ledger.Run{ID: "scenario-abc234", Until: time.Now().Add(time.Hour)}}
	what := decision(shows)
	what.Change.BootRestore = true
	in := injection(pod, what, nil)
	in.Encrypted = true
	target := ledger.Target{Kind: "Node", Name: "n"}
	if _, err := in.Change(target, "").Apply(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	var claim Claim
	if err := json.Unmarshal(r.step.Undo.Data, &claim); err != nil || len(claim.Key) != deadman.KeySize ||
		!bytes.Equal(claim.Key, pod.change.Key) || bytes.Equal(claim.Key, make([]byte, deadman.KeySize)) {
		t.Errorf("saved %s, %v; the node got %x", r.step.Undo.Data, err, pod.change.Key)
	}
	if raw, err := json.Marshal(pod.change); err != nil || pod.change.BootRestore ||
		bytes.Contains(raw, []byte(base64.StdEncoding.EncodeToString(claim.Key))) {
		t.Errorf("the change is %s, %v", raw, err)
	}
	u := Undoer{Start: in.Start}
	step := ledger.Step{Target: target, Undo: ledger.Undo{Kind: UndoKind, Data: r.step.Undo.Data}}
	if _, _, err := u.Undo(t.Context(), r.run, step); err != nil || !bytes.Equal(pod.restore.Key, claim.Key) {
		t.Errorf("restored with %x, %v", pod.restore.Key, err)
	}
	if text := byHand(r.run, claim); strings.Contains(text, "restore.sh") || !strings.Contains(text, "encrypted") {
		t.Error(text)
	}
}

// TestAddedFiles holds that an undo that is to report added files does, and that it says nothing of those from before.
func TestAddedFiles(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]ledger.State{
		config: ledger.StateReverted, "/etc/containerd/conf.d/99-new.toml": ledger.StateSuperseded,
	} {
		pod := &fakePod{
			restored: deadman.Restored{
				Files: []deadman.RestoredFile{{Path: config, Outcome: deadman.OutcomeRestored}}, SameConfig: true,
			},
			files: []api.ConfigFile{{Path: config}},
		}
		u, _ := undoer(pod, nil)
		u.Added = true
		step := saved(t, func(c *Claim) { c.Loaded = []string{config} })
		pod.files = append(pod.files, api.ConfigFile{Path: name})
		state, said, err := u.Undo(t.Context(), ledger.Run{ID: "scenario-abc234"}, step)
		if err != nil || state != want || strings.Contains(said, "is a new file") != (want == ledger.StateSuperseded) {
			t.Errorf("%s: %s, %v: %s", name, state, err, said)
		}
	}
}

// Whatever fails, the pod goes away, which makes a dead man that was armed put everything back.
func TestAFailedChangeClosesThePod(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change  error
		decide  error
		save    error
		landed  func(*cri.Info) (string, error)
		expired bool
		want    string
		calls   string
	}{
		"refused": {
			decide: errors.New("the file is a template"), want: "the file is a template", calls: "start inspect close",
		},
		"not saved":   {save: errors.New("no ledger"), want: "no ledger", calls: "start inspect save close"},
		"not changed": {change: errors.New("disk full"), want: "disk full", calls: "start inspect save change close"},
		"does not show": {
			landed: func(*cri.Info) (string, error) { return "", errors.New("nvidia is there") },
			want:   "has no effect: nvidia is there", calls: "start inspect save change close",
		},
		"time was up": {expired: true, want: "before the fault could be injected", calls: "start inspect close"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &fakePod{changeErr: test.change}
			r := &fakeRecorder{pod: pod, err: test.save, run: ledger.Run{Until: time.Now().Add(time.Hour)}}
			if test.expired {
				r.run.Until = time.Now().Add(-time.Second)
			}
			landed := test.landed
			if landed == nil {
				landed = shows
			}
			_, err := injection(pod, decision(landed),
				test.decide).Change(ledger.Target{Kind: "Node", Name: "n"}, "").Apply(t.Context(), r)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Join(pod.calls, " ") != test.calls {
				t.Errorf("%v, calls %v", err, pod.calls)
			}
		})
	}
}

func undoer(pod *fakePod, fail func(n int) error) (Undoer, *int) {
	starts := 0
	return Undoer{Retry: time.Millisecond,
		Start: func(context.Context, ledger.Run, string, time.Duration, func(string)) (Pod, error) {
			starts++
			if fail != nil {
				if err := fail(starts); err != nil {
					return nil, err
				}
			}
			return pod, nil
		}}, &starts
}

func saved(t *testing.T, change func(*Claim)) ledger.Step {
	t.Helper()
	claim := Claim{Files: []ClaimedFile{{Path: config, Before: patch.Sum([]byte("a")), After: patch.Sum([]byte("b"))}}}
	if change != nil {
		change(&claim)
	}
	raw, err := json.Marshal(claim)
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Step{Target: ledger.Target{Kind: "Node", Name: "n"}, Undo: ledger.Undo{Kind: UndoKind, Data: raw}}
}

func TestUndoSaysWhatBecameOfEachFile(t *testing.T) {
	t.Parallel()
	now := []byte("a\n# anonymous\n")
	for name, test := range map[string]struct {
		restored deadman.Restored
		state    ledger.State
		want     []string // in the message or the error
	}{
		"restored": {
			deadman.Restored{
				Files: []deadman.RestoredFile{{Path: config, Outcome: deadman.OutcomeRestored}}, CRI: &cri.Info{},
				SameConfig: true,
			},
			ledger.StateReverted,
			[]string{"content, mode, owner", "the container runtime has the same configuration as before"},
		},
		"by the dead man": {deadman.Restored{
			Files:      []deadman.RestoredFile{{Path: config, Outcome: deadman.OutcomeAlready, SameMeta: true}},
			SameConfig: true, ByDeadMan: &deadman.Status{Cause: "TTL"},
		}, ledger.StateReverted, []string{"times were restored", "dead man", "TTL"}},
		"by somebody": {
			deadman.Restored{
				Files: []deadman.RestoredFile{{Path: config, Outcome: deadman.OutcomeAlready}}, SameConfig: true,
			},
			ledger.StateReverted, []string{"another client has restored the content"},
		},
		"superseded": {deadman.Restored{Files: []deadman.RestoredFile{{
			Path: config, Outcome: deadman.OutcomeSuperseded, Now: now, Ours: []byte("b\n"),
			Edits: []patch.Edit{{Old: []byte("a"), New: []byte("b")}},
		}}}, ledger.StateSuperseded,
			[]string{
				"another client has changed the file since", "removed by the fault, and now in the file",
				"added by the fault, and now not in the file",
			}},
		"deleted": {
			deadman.Restored{
				Files: []deadman.RestoredFile{{Path: config, Outcome: deadman.OutcomeSuperseded, Deleted: true}},
			},
			ledger.StateSuperseded, []string{"another client has deleted the file"},
		},
		"other config": {
			deadman.Restored{
				Files: []deadman.RestoredFile{{Path: config, Outcome: deadman.OutcomeRestored}}, CRI: &cri.Info{},
			},
			ledger.StateReverted,
			[]string{"because another change was made in the meantime"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, _ := undoer(&fakePod{restored: test.restored}, nil)
			var shown []string
			u.Show = func(text string) { shown = append(shown, text) }
			state, said, err := u.Undo(t.Context(), ledger.Run{ID: "runtime-abc234"}, saved(t, nil))
			if err != nil {
				said = err.Error()
			}
			if state != test.state || (err == nil) == (test.state == "") {
				t.Errorf("state %q, %v", state, err)
			}
			// What they wrote may hold credentials: it is for the eyes, not for the ledger.
			if strings.Contains(said, "anonymous") ||
				name == "superseded" && !strings.Contains(strings.Join(shown, ""), "  +# anonymous") {
				t.Errorf("said %q, shown %q", said, shown)
			}
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("%q lacks %q", said, want)
				}
			}
		})
	}
}

// A record can be written by anyone with rights on ConfigMaps: whatever it names, the node is asked to undo the run,
// and told nothing else.
func TestTheNodeIsToldNothingOfTheRecord(t *testing.T) {
	t.Parallel()
	pod := &fakePod{restored: deadman.Restored{RecordMissing: true, SameConfig: true}}
	u, _ := undoer(pod, nil)
	step := saved(t, func(c *Claim) {
		c.Files, c.Image, c.Key = []ClaimedFile{{Path: "/etc/shadow", After: "x"}}, "evil", []byte("short")
	})
	if _, _, err := u.Undo(t.Context(), ledger.Run{ID: "runtime-abc234"}, step); err != nil {
		t.Fatal(err)
	}
	if pod.restore.Overwrite || pod.restore.Forget || pod.restore.Key != nil {
		t.Errorf("the node was asked %+v", pod.restore)
	}
}

// The image of a record is not used; when no pod starts, the user hears of it, quoted.
func TestAnotherImageIsShown(t *testing.T) {
	t.Parallel()
	u, _ := undoer(&fakePod{}, func(int) error { return errors.New("no such image") })
	u.Image = "busybox"
	for image, want := range map[string]string{
		"mirror/busybox\x1b[2J": `injected with image "mirror/busybox\x1b[2J": if you trust it, pass --image`,
		"busybox":               "", "": "",
	} {
		_, _, err := u.Undo(t.Context(), ledger.Run{ID: "runtime-abc234"}, saved(t, func(c *Claim) { c.Image = image }))
		if err == nil || !strings.Contains(err.Error(), want) ||
			want == "" && strings.Contains(err.Error(), "--image") {
			t.Errorf("%q: %v", image, err)
		}
	}
}

// A node without a record of the run restores nothing. Whether that is well is read from its files, not guessed.
func TestANodeWithoutARecord(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		now   string // the file's content; empty: it is not there
		told  bool
		state ledger.State
		want  string
	}{
		"as before":    {"a", false, ledger.StateReverted, "its dead man's switch has restored the files"},
		"told":         {"a", true, ledger.StateReverted, "was still running and restored the files"},
		"still ours":   {"b", false, "", "matches the run's changes according to the ledger"},
		"another":      {"c", false, ledger.StateSuperseded, "neither its original content"},
		"not there":    {"", false, ledger.StateSuperseded, "no container runtime currently loads it"},
		"cannot check": {"error", false, "", "cannot be compared"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &fakePod{restored: deadman.Restored{RecordMissing: true, Told: test.told, SameConfig: true}}
			switch test.now {
			case "error":
				pod.fails = errors.New("no kubelet")
			case "":
			default:
				pod.files = []api.ConfigFile{{Path: config, Data: []byte(test.now)}}
			}
			u, _ := undoer(pod, nil)
			state, said, err := u.Undo(t.Context(), ledger.Run{ID: "runtime-abc234"}, saved(t, nil))
			if err != nil {
				said = err.Error()
			}
			if state != test.state || (err == nil) != (test.state != "") || !strings.Contains(said, test.want) {
				t.Errorf("%q, %q, %v", state, said, err)
			}
		})
	}
}

// A record may claim that its node is lost for years. The revert of others must not wait for that.
func TestUndoDoesNotWaitForYears(t *testing.T) {
	t.Parallel()
	u, starts := undoer(&fakePod{}, func(int) error { return errors.New("node n is not Ready") })
	run := ledger.Run{ID: "runtime-abc234", Until: time.Now().AddDate(4, 0, 0)}
	_, _, err := u.Undo(t.Context(), run, saved(t, func(c *Claim) { c.NodeLoss = true }))
	if err == nil || *starts != 1 || !strings.Contains(err.Error(), "revert the run after that") {
		t.Errorf("%v after %d starts", err, *starts)
	}
}

func TestNothingSavedIsNothingChanged(t *testing.T) {
	t.Parallel()
	u, starts := undoer(&fakePod{}, nil)
	state, _, err := u.Undo(t.Context(), ledger.Run{}, ledger.Step{})
	if state != ledger.StateReverted || err != nil || *starts != 0 {
		t.Errorf("%s, %v, %d pods", state, err, *starts)
	}
}

// A node without a container runtime starts no pod: the dead man comes first, and the revert confirms it.
func TestUndoWaitsForTheDeadManOfALostNode(t *testing.T) {
	t.Parallel()
	pod := &fakePod{restored: deadman.Restored{
		Files: []deadman.RestoredFile{{Path: config, Outcome: deadman.OutcomeAlready}}, SameConfig: true,
	}}
	u, starts := undoer(pod, func(n int) error {
		if n < 3 {
			return errors.New("node n is not Ready")
		}
		return nil
	})
	run := ledger.Run{ID: "runtime-abc234", Until: time.Now().Add(20 * time.Millisecond)}
	state, _, err := u.Undo(t.Context(), run, saved(t, func(c *Claim) { c.NodeLoss = true }))
	if state != ledger.StateReverted || err != nil || *starts != 3 {
		t.Errorf("%s, %v, %d starts", state, err, *starts)
	}
	u, starts = undoer(pod, func(int) error { return errors.New("node n is not Ready") })
	if _, _, err := u.Undo(t.Context(), run, saved(t, nil)); err == nil || *starts != 1 {
		t.Errorf("a node that is not lost by us: %v after %d starts", err, *starts)
	}
}
