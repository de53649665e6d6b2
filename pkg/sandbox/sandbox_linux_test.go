package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		t.Skipf("user namespaces are for root only here: set kernel.apparmor_restrict_unprivileged_userns=0 and "+
			"user.max_user_namespaces to more than 0 (%v)", err)
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
		for path, text := range map[string]string{secret: "s3cret", readable + "/agent": "code"} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for command, want := range map[string]string{
			"ls /proc | grep -c '^[0-9]'":                             "", // checked below: its own only
			"cat " + secret:                                           "No such file",
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
			"unshare -Ur true":                                        "ermitted",
			"cat /proc/1/status /proc/1/fd/3":                         "ermission denied",
			"kill -TERM 1; kill -SEGV 1; kill -ABRT 1; kill -INT 1; sleep 0.1; echo survives": "survives",
			"cat /proc/self/oom_score_adj": "1000\n",
			"ulimit -f":                    "2097152\n",
		} {
			result, text := run(t, t.Context(), command, func(p *Program) {
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

// The caller's files and other processes' sockets in a directory to be read are refused, however they are named.
func TestCheckRead(t *testing.T) {
	t.Parallel()
	dir, links := t.TempDir(), t.TempDir()
	hidden := filepath.Join(dir, "a", "kubeconfig")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o755), os.WriteFile(hidden, nil, 0o600),
		os.Symlink(dir, filepath.Join(links, "dir")), os.Symlink(hidden, filepath.Join(links, "file"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{dir, hidden}, {filepath.Join(links, "dir"), hidden}, {dir, filepath.Join(links, "file")},
		{dir + "/a/", hidden},
	} {
		if err := CheckRead(c[0], []string{"/nowhere", c[1]}); err == nil || !strings.Contains(err.Error(), "move") {
			t.Errorf("%q: %v", c, err)
		}
	}
	if err := CheckRead(dir, []string{filepath.Join(links, "other"), "/etc/passwd"}); err != nil {
		t.Error(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "a", "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if err := CheckRead(dir, nil); err == nil || !strings.Contains(err.Error(), "a/socket is a socket") {
		t.Errorf("%v", err)
	}
}

// Descriptors that the caller itself inherited do not reach the program.
func TestInheritedDescriptors(t *testing.T) {
	t.Parallel()
	file, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	if _, text := run(t, t.Context(), "ls /proc/self/fd"); text != "0\n1\n2\n3\n" {
		t.Errorf("%q", text)
	}
}

// Ways to start a program that ptrace does not see are refused: each program is recorded, by its own path.
func TestNothingIsUnseen(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Fatal("install python3")
	}
	result, text := run(t, t.Context(), `python3 -u -c '
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
c.syscall.restype = ctypes.c_long
untraced = c.syscall(ctypes.c_long(NUMBER), ctypes.c_ulong(0x00800000 | 17), 0, 0, 0, 0)
print("untraced", untraced, ctypes.get_errno())
print("vsock", c.socket(40, 1, 0), ctypes.get_errno())
print("keyctl", c.syscall(ctypes.c_long(KEYCTL), 0, -3, 0, 0, 0), ctypes.get_errno())
os.execv("/bin/sh", ["ls", "-c", "exit 4"])
'`, func(p *Program) {
		numbers := strings.NewReplacer("NUMBER", strconv.Itoa(unix.SYS_CLONE), "KEYCTL", strconv.Itoa(unix.SYS_KEYCTL))
		p.Command = numbers.Replace(p.Command)
	})
	if text != "untraced -1 1\nvsock -1 97\nkeyctl -1 1\n" {
		t.Errorf("%q", text)
	}
	last := result.Ran[len(result.Ran)-1]
	if strings.Join(last.Args, " ") != "ls -c exit 4" || !strings.HasSuffix(last.Program, "sh") || last.Exit != 4 {
		t.Errorf("%+v", last)
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
