package debugpod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// script returns an Execer whose helper gives one prepared answer after the other, and keeps what was asked: "upload"
// or the operation.
func script(asked *[]string, answers ...string) execFunc {
	return func(_ context.Context, command []string, s Streams) error {
		what := "upload"
		if !strings.Contains(command[2], "attached") {
			line := make([]byte, 1<<16)
			n, _ := s.In.Read(line)
			for _, operation := range []string{"await", "forget", "restore", "change"} {
				if strings.Contains(string(line[:n]), `"`+operation+`":`) {
					what = operation
					break
				}
			}
		}
		*asked = append(*asked, what)
		answer := answers[min(len(*asked), len(answers))-1]
		_, _ = io.WriteString(s.Out, answer)
		if strings.Contains(answer, `"done"`) {
			return nil
		}
		return errors.New("unable to upgrade connection: rpc error: code = Unavailable desc = connection refused")
	}
}

func says1(format string, args ...any) string {
	return `{"protocol":1,` + fmt.Sprintf(format, args...) + "}\n"
}

func phase(p deadman.Phase) string {
	return says1(`"deadMan":{"run":"x","phase":%q,"time":"2026-01-01T00:00:00Z"}`, p)
}
func last(p deadman.Phase) string {
	return strings.Replace(phase(p), `"protocol":1`, `"protocol":1,"done":true`, 1)
}

// TestChangeSurvivesTheRestart: the connection is cut by the restart, and the dead man is asked until it answers; the
// helper is brought to the pod once.
func TestChangeSurvivesTheRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		session := testSession(t, script(&asked, phase(deadman.PhaseRecorded)+phase(deadman.PhaseWritten), "", "",
			phase(deadman.PhaseApplied)+last(deadman.PhaseApplied)))
		var heard []deadman.Phase
		status, err := session.Change(t.Context(), deadman.Change{},
			func(s deadman.Status) { heard = append(heard, s.Phase) })
		if err != nil || status.Phase != deadman.PhaseApplied {
			t.Fatalf("%+v, %v", status, err)
		}
		if want := []string{"upload", "await", "await", "await"}; !slices.Equal(asked, want) {
			t.Errorf("asked %v, want %v", asked, want)
		}
		if want := []deadman.Phase{
			deadman.PhaseRecorded, deadman.PhaseWritten, deadman.PhaseApplied,
		}; !slices.Equal(heard, want) {
			t.Errorf("heard %v, want %v", heard, want)
		}
	})
}

func TestChangeThatFailed(t *testing.T) {
	var asked []string
	session := testSession(t, script(&asked, last(deadman.PhaseFailed)))
	status, err := session.Change(t.Context(), deadman.Change{}, nil)
	if err == nil || status == nil || status.Phase != deadman.PhaseFailed {
		t.Errorf("%+v, %v", status, err)
	}
	session = testSession(t, says(
		`{"protocol":1,"error":{"code":"changed","message":"config changed between read and write"}}`+"\n",
		exitError(1),
	))
	var failure *api.Error
	if _, err := session.Change(t.Context(), deadman.Change{}, nil); !errors.As(err, &failure) ||
		failure.Code != api.CodeChanged {
		t.Errorf("got %v", err)
	}
}

// TestChangeEnds: nobody waits for ever for a node that does not answer; but its silence is the proof where it is
// wanted.
func TestChangeEnds(t *testing.T) {
	for name, mayFail := range map[string]bool{"silence is a failure": false, "silence is wanted": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked []string
				session := testSession(t, script(&asked, phase(deadman.PhaseWritten), ""))
				start := time.Now()
				status, err := session.Change(t.Context(), deadman.Change{MayFail: mayFail, TTL: time.Hour}, nil)
				if (err == nil) != mayFail || status == nil {
					t.Fatalf("%+v, %v", status, err)
				}
				if mayFail && (status.Phase != deadman.PhaseApplied ||
					!strings.Contains(status.ServiceError, "rpc error: code = Unavailable")) {
					t.Errorf("%+v", status)
				}
				if took := time.Since(start); took > changeTimeout+10*time.Second || mayFail && took > 2*silence {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// TestChangeInAPodThatIsGone does not ask again.
func TestChangeInAPodThatIsGone(t *testing.T) {
	var asked []string
	session := testSession(t, script(&asked, phase(deadman.PhaseWritten), ""))
	session.pod.UID = "another"
	if _, err := session.Change(t.Context(), deadman.Change{}, nil); !errors.Is(err, ErrOutputLost) || len(asked) != 1 {
		t.Errorf("%v after %v", err, asked)
	}
}

// TestRestoreForgetsLast: a result that got lost is asked for again, and only when it is here may the node forget it.
func TestRestoreForgetsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const restored = `"done":true,"restored":{"files":[{"path":"/x","outcome":"restored"}],"sameConfig":true}`
		var asked []string
		session := testSession(t, script(&asked, "", "", says1(restored), says1(restored)))
		session.uploaded = true
		got, err := session.Restore(t.Context(), deadman.Restore{})
		if err != nil || got.Files[0].Outcome != deadman.OutcomeRestored {
			t.Fatalf("%+v, %v", got, err)
		}
		if want := []string{"restore", "restore", "restore", "forget"}; !slices.Equal(asked, want) {
			t.Errorf("asked %v, want %v", asked, want)
		}
	})
}

func TestPodThatStays(t *testing.T) {
	spec := testSpec()
	spec.Stays = true
	pod := Pod(spec)
	if pod.Spec.ActiveDeadlineSeconds != nil ||
		!strings.Contains(pod.Spec.Containers[0].Command[2], "sleep 2147483647") {
		t.Errorf("%+v", pod.Spec)
	}
}
