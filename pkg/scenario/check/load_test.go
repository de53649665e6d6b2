package check

import (
	"bufio"
	"context"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// stubs are the programs of an image: what each request prints to a log, and how it ends.
var stubs = map[string]string{
	"answers":  `#!/bin/sh` + "\n" + `for a; do url=$a; done; echo "$@" >>"$LOG"; case $url in */bad) exit 8;; esac` + "\n",
	"crashes":  "#!/bin/sh\nexit 139\n",
	"is ended": "#!/bin/sh\nexit 143\n",
}

// runLoad runs the script in a container with these programs until it has printed some lines or ends.
func runLoad(t *testing.T, l Load, programs map[string]string) (lines []string, log string) {
	t.Helper()
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	command, err := l.Defaults().command()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for name, kind := range programs {
		//nolint:gosec // a program
		if err := os.WriteFile(filepath.Join(folder, name), []byte(stubs[kind]), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sleep, filepath.Join(folder, "sleep")); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(ctx, shell, command[1:]...) //nolint:gosec // the script under test
	logFile := filepath.Join(folder, "log")
	run.Env = []string{"PATH=" + folder, "LOG=" + logFile}
	run.WaitDelay = time.Second
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	for scanner := bufio.NewScanner(out); len(lines) < 3 && scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	stop()
	_ = run.Wait()
	text, err := os.ReadFile(logFile)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return lines, string(text)
}

// The script sends one request after the other, whatever becomes of them, with the program that the image has.
func TestLoadScript(t *testing.T) {
	t.Parallel()
	body := &Completions{Model: "m", Prompt: "it's; $(reboot)"}
	for name, c := range map[string]struct {
		load     Load
		programs map[string]string
		ok       bool
		log      string
		says     string
	}{
		"answered": {
			Load{Name: "x", URL: "http://a/ok"}, map[string]string{"wget": "answers"}, true,
			"-q -T 5 -O /dev/null http://a/ok", "",
		},
		"a bad status": {
			Load{Name: "x", URL: "http://a/bad"}, map[string]string{"wget": "answers"}, false, "http://a/bad", "",
		},
		"a completion": {
			Load{Name: "x", URL: "http://a/v1", Completions: body}, map[string]string{"wget": "answers"}, true,
			`--post-data {"model":"m","prompt":"it's; $(reboot)","max_tokens":16} http://a/v1`, "",
		},
		"another program": {
			Load{Name: "x", URL: "http://a/ok"}, map[string]string{"wget": "crashes", "get": "answers"}, true,
			"-S -T 5 http://a/ok", "",
		},
		"every request is ended": {
			Load{Name: "x", URL: "http://a/ok"}, map[string]string{"wget": "is ended"}, false, "", "",
		},
		"no program": {Load{Name: "x", URL: "http://a/ok"}, nil, false, "", "no wget: exit code 127"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.load.Rate = 20
			lines, log := runLoad(t, c.load, c.programs)
			if !strings.Contains(log, c.log) {
				t.Errorf("the program was called with %q", log)
			}
			if c.says != "" {
				if len(lines) != 1 || lines[0] != c.says {
					t.Errorf("%q", lines)
				}
				return
			}
			if len(lines) != 3 {
				t.Fatalf("%q", lines)
			}
			for _, line := range lines {
				if r, is := readRequest(line, time.Second); !is || r.OK != c.ok || r.Took > 5*time.Second {
					t.Errorf("%q is %+v, %t", line, r, is)
				}
			}
		})
	}
}

// What cannot be sent is an error of the file, with what to write instead.
func TestBadLoads(t *testing.T) {
	t.Parallel()
	for says, l := range map[string]Load{
		"must have a name":           {URL: "http://a"},
		"must be an address":         {Name: "x", URL: "vllm:8000"},
		"rate must be":               {Name: "x", URL: "http://a", Rate: 1000},
		"open requests, at most 200": {Name: "x", URL: "http://a", Rate: 20, Timeout: scenario.Duration(time.Minute)},
		"have a model and a p":       {Name: "x", URL: "http://a", Completions: &Completions{Model: "m"}},
		"rate must be 0.1":           {Name: "x", URL: "http://a", Rate: math.NaN()},
	} {
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// FuzzRequestLines: whatever a container prints, in whatever pieces, each request is counted once, and none is
// invented.
func FuzzRequestLines(f *testing.F) {
	f.Add("1.00 1.10 0\n1.20 ", "1.50 8\n")
	f.Add("no wget: exit code 127\n", "")
	f.Add("NaN 1 0\n1 Inf 0\n2 1 0\n", "x")
	f.Fuzz(func(t *testing.T, first, second string) {
		n := 0
		r := &requestLines{timeout: time.Second, each: func(r Request) {
			n++
			if r.Took < 0 || r.OK && r.Took > 2*time.Second {
				t.Errorf("%+v", r)
			}
		}}
		for _, part := range []string{first, second} {
			if written, err := r.Write([]byte(part)); err != nil || written != len(part) {
				t.Errorf("%d, %v", written, err)
			}
		}
		if most := strings.Count(first+second, "\n"); n > most || len(r.rest) > maxLine {
			t.Errorf("%d requests in %d lines, %d bytes are kept", n, most, len(r.rest))
		}
	})
}
