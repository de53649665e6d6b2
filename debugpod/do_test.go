package debugpod

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// execFunc is an Execer for tests. It gets what is in the standard input at first, and the rest as it comes.
type execFunc func(ctx context.Context, command []string, s Streams) error

func (f execFunc) Exec(ctx context.Context, _ *corev1.Pod, _ string, command []string, s Streams) error {
	return f(ctx, command, s)
}

type exitError int

func (e exitError) Error() string   { return fmt.Sprintf("command terminated with exit code %d", int(e)) }
func (e exitError) ExitStatus() int { return int(e) }

func testSession(t *testing.T, exec execFunc) *Session {
	t.Helper()
	s := newSite(nil)
	s.runner.Execer = exec
	pod := Pod(testSpec())
	pod.Status = running()
	if err := s.Tracker().Create(pods, pod, pod.Namespace); err != nil {
		t.Fatal(err)
	}
	helper := []byte("\x7fELF and so on")
	return &Session{runner: s.runner, pod: pod, node: "gpu-1", helper: helper,
		sum: func() hash.Cloner { return api.Sum(helper) }}
}

// says returns an Execer whose helper says that, whatever it is asked.
func says(out string, ended error) execFunc {
	return func(_ context.Context, _ []string, s Streams) error {
		_, _ = io.WriteString(s.Out, out)
		_, _ = io.WriteString(s.Err, "to stderr")
		return ended
	}
}

// realHelper runs the helper's own code in place of the one on a node.
func realHelper(t *testing.T, commands *[]string) execFunc {
	host := hostfs.Host{Root: t.TempDir(), Proc: t.TempDir()}
	return func(ctx context.Context, command []string, s Streams) error {
		*commands = append(*commands, command[len(command)-1])
		if strings.Contains(command[2], "attached") {
			var size int
			if _, err := fmt.Sscanf(
				command[2][strings.Index(command[2], "head -c "):], "head -c %d", &size,
			); err != nil {
				return err
			}
			exe := make([]byte, size)
			if _, err := io.ReadFull(s.In, exe); err != nil {
				return err
			}
			return node.ServeAttached(ctx, bytes.NewReader(exe), int64(size), s.In, s.Out, host)
		}
		return node.Serve(ctx, s.In, s.Out, host)
	}
}

func TestDoUploadsOnce(t *testing.T) {
	var commands []string
	session := testSession(t, nil)
	session.runner.Execer = realHelper(t, &commands)
	for range 3 {
		if _, err := session.Inspect(t.Context(), api.Inspect{}); err != nil {
			t.Fatal(err)
		}
	}
	var how []bool
	for _, c := range commands {
		how = append(how, strings.Contains(c, "attached"))
	}
	if !slices.Equal(how, []bool{true, false, false}) {
		t.Errorf("uploads: %v", how)
	}
}

// To an image of ours nothing is streamed, and its helper is told which one it must be.
func TestDoWithHelperInImage(t *testing.T) {
	session := testSession(t, nil)
	session.inside = true
	sum := sha256.Sum256(session.helper)
	session.runner.Execer = execFunc(func(ctx context.Context, command []string, s Streams) error {
		if want := []string{"/gpu-fault-node", "stdin", hex.EncodeToString(sum[:])}; !slices.Equal(command, want) {
			t.Errorf("command %q, wanted %q", command, want)
		}
		return node.Serve(ctx, s.In, s.Out, hostfs.Host{Root: t.TempDir(), Proc: t.TempDir()})
	})
	for range 2 {
		if _, err := session.Inspect(t.Context(), api.Inspect{}); err != nil {
			t.Fatal(err)
		}
	}
	session.any = true
	session.runner.Execer = execFunc(func(ctx context.Context, command []string, s Streams) error {
		if !slices.Equal(command, []string{"/gpu-fault-node", "stdin"}) {
			t.Errorf("to undo another build's run: command %q", command)
		}
		return node.Serve(ctx, s.In, s.Out, hostfs.Host{Root: t.TempDir(), Proc: t.TempDir()})
	})
	if _, err := session.Inspect(t.Context(), api.Inspect{}); err != nil {
		t.Error(err)
	}
}

func TestDoUploadsAgainAfterTruncation(t *testing.T) {
	var commands []string
	session := testSession(t, nil)
	good := realHelper(t, &commands)
	first := true
	session.runner.Execer = execFunc(func(ctx context.Context, command []string, s Streams) error {
		if first {
			first = false
			return says(`{"protocol":1,"error":{"code":"truncated","message":"5 of 6 bytes"}}`+"\n",
				exitError(1))(ctx, command, s)
		}
		return good(ctx, command, s)
	})
	_, err := session.Inspect(t.Context(), api.Inspect{})
	var failure *api.Error
	if !errors.As(err, &failure) || failure.Code != api.CodeTruncated ||
		!strings.Contains(err.Error(), "5 of 6 bytes") {
		t.Errorf("got %v", err)
	}
	if _, err := session.Inspect(t.Context(), api.Inspect{}); err != nil ||
		!strings.Contains(commands[0], "attached") {
		t.Errorf("%v, %v", err, commands)
	}
}

func TestDoIsNeverSilentSuccess(t *testing.T) {
	const done = `{"protocol":1,"done":true}` + "\n"
	for name, tc := range map[string]struct {
		out   string
		ended error
		want  string // part of the error; empty for none
		lost  bool
	}{
		"done":                        {done, nil, "", false},
		"done, the connection broke":  {done, errors.New("connection reset"), "", false},
		"nothing":                     {"", nil, "to stderr", true},
		"only a part":                 {`{"protocol":1,"written":[{"record":0}]}` + "\n", nil, "was not received", true},
		"cut":                         {`{"protocol":1,"done":tr`, nil, "truncated", true},
		"no newline":                  {strings.TrimSpace(done), nil, "truncated", true},
		"exit code":                   {"", exitError(137), "exit code 137: to stderr", true},
		"not executable":              {"", exitError(126), "architecture", true},
		"a syntax error of the shell": {"", exitError(2), "architecture", true},
		"connection":                  {"", errors.New("websocket: close 1006"), "close 1006", true},
		"no permission": {
			"",
			forbidden(`User "jane" cannot create resource "pods/exec" in API group "" in the namespace "gpu-fault"`),
			"permission to create pods/exec", false,
		},
		"no JSON":             {"hello\n" + done, nil, `"hello"`, true},
		"another protocol":    {`{"protocol":2,"done":true,"new":1}` + "\n", nil, "uses protocol version 2", true},
		"no protocol":         {`{"done":true}` + "\n", nil, "uses protocol version 0", true},
		"unknown field":       {`{"protocol":1,"done":true,"new":1}` + "\n", nil, "decode a response from the helper", true},
		"more after the last": {done + done, nil, "continued after", true},
		"refused": {
			`{"protocol":1,"error":{"code":"bad-request","message":"no"}}` + "\n", exitError(1), "no", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			session := testSession(t, says(tc.out, tc.ended))
			_, err := session.Do(t.Context(), api.Request{Inspect: &api.Inspect{}}, nil)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if errors.Is(err, ErrOutputLost) != tc.lost {
				t.Errorf("got %v; lost %v", err, tc.lost)
			}
		})
	}
}

// TestDoLeavesAnEndlessAnswer: a helper that sends no answers, or one that never ends, does not keep the client.
func TestDoLeavesAnEndlessAnswer(t *testing.T) {
	for name, chunk := range map[string]string{
		"one line": strings.Repeat("x", 1<<20), "many lines": strings.Repeat("x\n", 1<<19),
	} {
		t.Run(name, func(t *testing.T) {
			sent := 0
			session := testSession(t, func(ctx context.Context, _ []string, s Streams) error {
				for ; ctx.Err() == nil && sent < 4*maxLine; sent += len(chunk) {
					_, _ = io.WriteString(s.Out, chunk)
				}
				return context.Cause(ctx)
			})
			if _, err := session.Inspect(t.Context(), api.Inspect{}); !errors.Is(err, ErrOutputLost) {
				t.Errorf("got %v", err)
			}
			if sent > maxLine+2*len(chunk) {
				t.Errorf("%d bytes were read, and an answer has at most %d", sent, maxLine)
			}
		})
	}
}

func TestDoSaysWhereThePodWent(t *testing.T) {
	broken := errors.New("websocket: close 1006")
	session := testSession(t, says("", broken))
	session.pod.UID = "another" // than the one in the cluster
	_, err := session.Inspect(t.Context(), api.Inspect{})
	if !errors.Is(err, broken) || !errors.Is(err, ErrOutputLost) || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("got %v", err)
	}
}

func TestDoStopsTheHelper(t *testing.T) {
	const stopped = `{"protocol":1,"written":[{"record":0,"sequence":7}]}` + "\n" +
		`{"protocol":1,"error":{"code":"interrupted","message":"stopped after 1"}}` + "\n"
	for name, tc := range map[string]struct {
		exec   func(ctx context.Context, s Streams) error
		proven int
		lost   bool
		took   time.Duration
	}{
		"it says how far it got": {func(_ context.Context, s Streams) error {
			_, _ = io.Copy(io.Discard, s.In) // until the end: the client is gone
			time.Sleep(time.Second)
			_, _ = io.WriteString(s.Out, stopped)
			return exitError(1)
		}, 1, false, 6 * time.Second},
		"it does not hear": {func(ctx context.Context, s Streams) error {
			<-ctx.Done()
			// client-go's copying goes on after the command was left.
			time.AfterFunc(time.Millisecond, func() { _, _ = io.WriteString(s.Out, stopped) })
			return ctx.Err()
		}, 0, true, 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				session := testSession(t,
					func(ctx context.Context, _ []string, s Streams) error { return tc.exec(ctx, s) })
				interrupted := errors.New("interrupted")
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(5*time.Second, func() { cancel(interrupted) })
				start := time.Now()
				heard := 0
				proven, err := session.WriteKmsg(ctx, api.WriteKmsg{Records: make([]api.KmsgRecord, 2)},
					func(w []api.WrittenKmsg) { heard += len(w) })
				if !errors.Is(err, interrupted) || errors.Is(err, ErrOutputLost) != tc.lost ||
					len(proven) != tc.proven {
					t.Errorf("got %v, %v", proven, err)
				}
				if took := time.Since(start); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
				time.Sleep(time.Second)
				if heard != tc.proven {
					t.Errorf("heard of %d, also after the return", heard)
				}
			})
		})
	}
}

func TestDoWithoutTime(t *testing.T) {
	session := testSession(t,
		func(context.Context, []string, Streams) error { t.Error("something was run"); return nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := session.Inspect(ctx, api.Inspect{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	_, err := session.Do(t.Context(),
		api.Request{Inspect: &api.Inspect{PodUIDs: []string{strings.Repeat("x", api.MaxRequest)}}}, nil)
	var failure *api.Error
	if !errors.As(err, &failure) || failure.Code != api.CodeBadRequest {
		t.Errorf("got %v", err)
	}
}

func TestInspectWithoutInfo(t *testing.T) {
	session := testSession(t, says(`{"protocol":1,"done":true}`+"\n", nil))
	if info, err := session.Inspect(t.Context(), api.Inspect{}); !errors.Is(err, ErrOutputLost) {
		t.Errorf("got %v, %v", info, err)
	}
}

func TestWriteKmsgWantsEveryProof(t *testing.T) {
	written := func(rows ...string) string {
		return `{"protocol":1,"written":[` + strings.Join(rows, ",") + "]}\n" + `{"protocol":1,"done":true}` + "\n"
	}
	for name, tc := range map[string]struct {
		out    string
		proven int
		ok     bool
	}{
		"all":              {written(`{"record":0,"sequence":5}`, `{"record":1,"sequence":7}`), 2, true},
		"none":             {written(), 0, false},
		"one missing":      {written(`{"record":0,"sequence":5}`), 1, false},
		"one twice":        {written(`{"record":0,"sequence":5}`, `{"record":0,"sequence":6}`), 1, false},
		"sequence repeats": {written(`{"record":0,"sequence":5}`, `{"record":1,"sequence":5}`), 1, false},
		"one too many": {
			written(`{"record":0,"sequence":5}`, `{"record":1,"sequence":6}`, `{"record":2,"sequence":7}`), 3, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			session := testSession(t, says(tc.out, nil))
			heard := 0
			proven, err := session.WriteKmsg(t.Context(), api.WriteKmsg{Records: make([]api.KmsgRecord, 2)},
				func(w []api.WrittenKmsg) { heard += len(w) })
			if (err == nil) != tc.ok || len(proven) != tc.proven || tc.ok && heard != 2 {
				t.Errorf("got %v, %v, heard of %d", proven, err, heard)
			}
		})
	}
}

// TestAnswersInPieces: streams cut lines anywhere.
func TestAnswersInPieces(t *testing.T) {
	const out = `{"protocol":1,"written":[{"record":0,"sequence":7}]}` + "\n" +
		`{"protocol":1,"written":[{"record":1,"sequence":8}]}` + "\n" + `{"protocol":1,"done":true}` + "\n"
	for size := 1; size < len(out); size += 7 {
		var heard int
		a := &answers{each: func(api.Answer) { heard++ }}
		for piece := range slices.Chunk([]byte(out), size) {
			if n, err := a.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if final, broken := a.close(); heard != 3 || final == nil || !final.Done || broken != nil {
			t.Errorf("pieces of %d: heard %d, %+v, %v", size, heard, final, broken)
		}
	}
}

func TestAnswerWithoutEnd(t *testing.T) {
	a := &answers{}
	for range maxLine>>20 + 1 {
		_, _ = a.Write(make([]byte, 1<<20))
	}
	if _, broken := a.close(); broken == nil || len(a.line) > maxLine+1<<20 {
		t.Errorf("%d bytes are kept, %v", len(a.line), broken)
	}
}

func TestTail(t *testing.T) {
	var b tail
	for range 1000 {
		_, _ = b.Write([]byte("0123456789"))
	}
	if got := b.String(); len(got) != maxTail || !strings.HasSuffix(got, "0123456789") {
		t.Errorf("%d bytes", len(got))
	}
}
