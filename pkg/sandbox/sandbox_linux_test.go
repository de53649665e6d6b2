package sandbox

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if code, is := First(os.Args, os.Stdout, os.Stderr); is {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// run runs a command in a new sandbox, which must be available.
func run(t *testing.T, ctx context.Context, command string, change ...func(*Program)) (Result, string) {
	t.Helper()
	s, err := New(0)
	if errors.Is(err, ErrUnavailable) && os.Geteuid() != 0 {
		t.Skipf("this machine permits namespaces to root only: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	var text strings.Builder
	program := Program{Command: command, Own: t.TempDir(), Output: &text, Env: []string{"PATH=/usr/bin:/bin"}}
	for _, f := range change {
		f(&program)
	}
	result, err := s.Run(ctx, program)
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	return result, text.String()
}

// The program has no access to the caller's processes, files, users and network, and cannot get any.
func TestIsolated(t *testing.T) {
	t.Parallel()
	asEachUser(t, func(t *testing.T) {
		secret := filepath.Join(t.TempDir(), "secret")
		readable := t.TempDir()
		hidden := filepath.Join(readable, "kubeconfig")
		for path, text := range map[string]string{secret: "s3cret", hidden: "t0ken", readable + "/agent": "code"} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for command, want := range map[string]string{
			"ls /proc | grep -c '^[0-9]'":                             "", // checked below: its own only
			"cat " + secret:                                           "No such file",
			"cat " + hidden + "; echo empty":                          "empty\n",
			"cat " + readable + "/agent":                              "code",
			"echo x >" + readable + "/agent":                          "Read-only file system",
			"echo x >/usr/bin/x":                                      "Read-only file system",
			"ls -A /root /home /run /var/run 2>/dev/null | grep -v :": "",
			"cat /proc/1/environ":                                     "Permission denied",
			"readlink /proc/1/root":                                   "",
			"grep CapEff /proc/self/status":                           "CapEff:\t0000000000000000\n",
			"grep NoNewPrivs /proc/self/status":                       "NoNewPrivs:\t1\n",
			"umount -l /proc && echo unmounted":                       "", // checked below
			"kill -9 1 && sleep 0.1 && echo alive":                    "",
			"cat /proc/net/dev | grep -c :":                           "1\n", // lo
			"cat /proc/net/tcp | wc -l":                               "1\n", // its header: no socket
			"hostname":                                                "sandbox\n",
			"pwd":                                                     Dir + "\n",
			"echo yes >" + Dir + "/mine && cat mine":                  "yes\n",
			"echo t >/tmp/t && cat /tmp/t":                            "t\n",
			"env":                                                     "PATH=/usr/bin:/bin",
			"mknod x b 8 0":                                           "ermitted",
		} {
			result, text := run(t, t.Context(), command, func(p *Program) {
				p.Hidden = []string{hidden}
				if strings.Contains(command, readable) {
					p.Read = []string{readable}
				}
			})
			switch {
			case strings.Contains(command, "unmounted") && strings.Contains(text, "unmounted"),
				strings.HasPrefix(command, "ls -A") && strings.TrimSpace(text) != "",
				strings.HasPrefix(command, "readlink") && text != "",
				want != "" && !strings.Contains(text, want), strings.Contains(text, "s3cret"),
				strings.Contains(text, "t0ken"):
				t.Errorf("%s: %q (exit code %d), want %q", command, text, result.Exit, want)
			case strings.HasPrefix(command, "ls /proc") && (len(strings.TrimSpace(text)) != 1 || text > "5"):
				t.Errorf("the program sees %s processes", strings.TrimSpace(text))
			}
		}
	})
}

// A namespace of its own gives the program no rights over what it should not see.
func TestNestedNamespaces(t *testing.T) {
	t.Parallel()
	readable := t.TempDir()
	hidden := filepath.Join(readable, "kubeconfig")
	if err := os.WriteFile(hidden, []byte("t0ken"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, text := run(t, t.Context(), `unshare -Urm sh -c 'umount "$0"; cat "$0"' `+hidden, func(p *Program) {
		p.Read, p.Hidden = []string{readable}, []string{hidden}
	})
	if strings.Contains(text, "t0ken") || text == "" {
		t.Errorf("%q", text)
	}
}

// The commands of the program are recorded with their exit codes, also those of its children, and of a shell that
// becomes another program.
func TestRan(t *testing.T) {
	t.Parallel()
	result, text := run(t, t.Context(), `cat /nowhere 2>/dev/null; (sleep 0.2; exit 7); sh -c 'kill -9 $$'; exec env -i /bin/echo done`)
	if result.Exit != 0 || text != "done\n" && !strings.HasSuffix(text, "done\n") || result.Unseen != "" {
		t.Fatalf("%+v, %q", result, text)
	}
	find := func(args ...string) *Ran {
		i := slices.IndexFunc(result.Ran, func(r Ran) bool { return slices.Equal(r.Args, args) })
		if i < 0 {
			t.Fatalf("%q is not in %+v", args, result.Ran)
		}
		return &result.Ran[i]
	}
	if r := find("cat", "/nowhere"); r.Exit != 1 || r.Parent == 0 {
		t.Errorf("%+v", r)
	}
	if r := find("sleep", "0.2"); r.Took < 200*time.Millisecond || r.Exit != 0 {
		t.Errorf("%+v", r)
	}
	if r := find("sh", "-c", "kill -9 $$"); r.Exit != 128+9 {
		t.Errorf("%+v", r)
	}
	if r := find("/bin/echo", "done"); r.Exit != 0 {
		t.Errorf("%+v", r)
	}
}

// All processes end with the program, and with its time.
func TestEnds(t *testing.T) {
	t.Parallel()
	began := time.Now()
	result, _ := run(t, t.Context(), `setsid sleep 300 & exit 3`)
	if result.Exit != 3 || time.Since(began) > 20*time.Second {
		t.Errorf("%+v after %s", result, time.Since(began))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	result, _ = run(t, ctx, `trap '' TERM INT; setsid sh -c 'while :; do sleep 1; done' & sleep 300`)
	if result.Exit != -1 || result.Took > 20*time.Second {
		t.Errorf("%+v", result)
	}
	if last := result.Ran[len(result.Ran)-1]; last.Exit != -1 {
		t.Errorf("%+v", last)
	}
}

// Connections from inside reach the caller's listeners, and nothing else.
func TestListeners(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatal("install curl")
	}
	s, err := New(2)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "from outside")
	})}
	go func() { _ = server.Serve(s.Listeners[1]) }()
	defer func() { _ = server.Close() }()
	var text strings.Builder
	result, err := s.Run(t.Context(), Program{
		Own: t.TempDir(), Output: &text,
		Command: "curl -s http://" + s.Listeners[1].Addr().String() +
			"; curl -s -m 2 http://192.0.2.1 || echo unreachable",
	})
	if err != nil || result.Exit != 0 || text.String() != "from outsideunreachable\n" {
		t.Errorf("%+v, %v, %q", result, err, text.String())
	}
}

// asEachUser runs a test as root and as somebody else, where this test runs as root.
func asEachUser(t *testing.T, test func(*testing.T)) {
	t.Helper()
	test(t)
	if os.Geteuid() != 0 {
		return
	}
	dir, err := os.MkdirTemp("", "sandbox-test-") // unlike t.TempDir, everybody may read it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "test")
	text, err := os.ReadFile("/proc/self/exe")
	if err = errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(program, text, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65001, Gid: 65001}}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as another user: %v\n%s", err, text)
	}
}
