//go:build e2e

// Package containerd_test holds pkg/containerd against real daemons, of 1.7 and of 2.x: how files are merged, and what
// each fault leads to. The daemons run on a node of the test cluster beside the kubelet's own, which they do not touch:
// each has its namespaces, folders, socket and configuration, and no kubelet; crirun asks it for pod sandboxes.
package containerd_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// A daemon is one of the two releases of containerd that the tests use.
type daemon struct {
	release containerd.Release
	exe     string // on the node; empty: in the folder of shared
	plugin  string // where its dumps have the handlers
	version int    // the schema that is usual with it
}

var (
	old     = daemon{containerd.Release{Major: 1, Minor: 7, Patch: 28}, "", "io.containerd.grpc.v1.cri", 2}
	current = daemon{
		containerd.Release{Major: 2, Minor: 3, Patch: 7}, "/usr/local/bin/containerd", "io.containerd.cri.v1.runtime",
		3,
	}
)

// instance is a daemon with a configuration, and while it runs the process.
type instance struct {
	daemon
	*shared
	dir   string // on the node; holds everything, @DIR@ in files
	files fstest.MapFS
}

const rootFile = "config.toml"

// newInstance writes the files, whose names are relative to the instance's folder. The end of the test removes them.
func newInstance(t *testing.T, d daemon, files map[string]string) *instance {
	t.Helper()
	in := &instance{daemon: d, shared: prepared(t), files: fstest.MapFS{}}
	if in.exe == "" {
		in.exe = path.Join(in.programs, "containerd")
	}
	in.dir = fmt.Sprintf("/tmp/containerd-%d-%d", os.Getpid(), in.count.Add(1))
	t.Cleanup(func() { in.node.Sh(t, "rm", "-rf", in.dir) })
	for name, text := range files {
		in.files[in.path(name)[1:]] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(text, "@DIR@", in.dir))}
	}
	in.write(t)
	return in
}

func (in *instance) path(name string) string { return path.Join(in.dir, name) }

// write brings the files to the node.
func (in *instance) write(t *testing.T) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, f := range in.files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(f.Data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	send(t, in.node, &archive, "tar", "-xf", "-", "-C", "/")
}

// load reads the files as pkg/containerd does.
func (in *instance) load() (*containerd.Config, error) {
	return containerd.Load(in.files, in.path(rootFile), in.release)
}

// dump returns the daemon's own `config dump`; the error has its words.
func (in *instance) dump(t *testing.T) (map[string]any, error) {
	t.Helper()
	out, err := in.node.TrySh(t.Context(), in.exe, "-c", in.path(rootFile), "config", "dump")
	if err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := toml.Unmarshal([]byte(out), &tree); err != nil {
		t.Fatalf("containerd %s dumps what is not TOML: %v\n%s", in.release, err, out)
	}
	return tree, nil
}

// isolated runs a daemon in namespaces of its own. Their PID 1 waits for the end of its stdin, and when it ends, so
// that the tests cannot leave anything behind even when they are killed: the kernel ends daemon, shims and sandboxes,
// and their mounts go.
const isolated = `mount -t tmpfs shims /run/containerd
"$@" >"$LOG" 2>&1 &
cat >/dev/null`

// start starts the daemon, which must come up; the end of the test ends it.
func (in *instance) start(t *testing.T) {
	t.Helper()
	// Beside each containerd lies the shim of its release.
	shims := "PATH=" + path.Dir(in.exe) + ":/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	cmd := in.node.Command(context.Background(), "env", shims, "LOG="+in.path("log"), "unshare", "--mount", "--pid",
		"--fork", "--kill-child", "--mount-proc",
		"sh", "-c", isolated, "sh", in.exe, "-c", in.path(rootFile))
	alive, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = alive.Close()
		_ = cmd.Wait() // 137: PID 1 took the daemon along
		if t.Failed() {
			t.Logf("log of containerd %s:\n%s", in.release, in.node.Sh(t, "tail", "-n", "30", in.path("log")))
		}
	})
	in.node.Sh(t, "timeout", "30", "sh", "-c", `until [ -S "$1" ]; do sleep 0.05; done`, "sh",
		in.path("containerd.sock"))
}

// importPause gives the daemon the image of sandboxes.
func (in *instance) importPause(t *testing.T) {
	t.Helper()
	in.node.Sh(t, "ctr", "-a", in.path("containerd.sock"), "-n", "k8s.io", "images", "import", "--local",
		"--all-platforms", "/opt/gpu-fault-cluster/images/pause.tar")
}

// complaint starts a daemon that must end by itself, and returns what it said.
func (in *instance) complaint(t *testing.T) string {
	t.Helper()
	out, err := in.node.TrySh(t.Context(), "timeout", "10", "unshare", "--mount", "sh", "-c", `exec "$@" 2>&1`, "sh",
		in.exe, "-c", in.path(rootFile))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("containerd %s should not start, and end with 1: %.500v", in.release, err)
	}
	return out
}

// sandbox runs a pod sandbox with the handler: "ok", or what the daemon says.
func (in *instance) sandbox(t *testing.T, handler string) string {
	t.Helper()
	return in.crirun(t, "-image", pause, "-cgroup", in.cgroup, in.path("containerd.sock"), handler)
}

// config returns the configuration in memory, or what the daemon says.
func (in *instance) config(t *testing.T) string {
	t.Helper()
	return in.crirun(t, "-config", in.path("containerd.sock"))
}

func (in *instance) crirun(t *testing.T, args ...string) string {
	t.Helper()
	out, err := in.node.TrySh(t.Context(), append([]string{path.Join(in.programs, "crirun")}, args...)...)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("crirun %q: %v", args, err)
	}
	return strings.TrimSpace(out)
}

// log returns what the daemon has said since its start.
func (in *instance) log(t *testing.T) string {
	t.Helper()
	return in.node.Sh(t, "cat", in.path("log"))
}

// shared is what all instances need on the node: containerd 1.7 and crirun. It is brought there once per test process.
type shared struct {
	once     sync.Once
	count    atomic.Int32 // of instances
	err      error
	node     cluster.Node
	programs string // folder on the node
	cgroup   string // parent for sandboxes
}

var theShared shared

func TestMain(m *testing.M) {
	code := m.Run()
	if dir := theShared.programs; dir != "" {
		if _, err := theShared.node.TrySh(context.Background(), "rm", "-rf", dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func prepared(t *testing.T) *shared {
	t.Helper()
	c := cluster.Require(t)
	theShared.once.Do(func() {
		theShared.node = c.Workers()[0]
		theShared.err = theShared.prepare(t)
	})
	if theShared.err != nil {
		t.Fatal(theShared.err)
	}
	return &theShared
}

func (s *shared) prepare(t *testing.T) error {
	var complaint bytes.Buffer
	build := exec.CommandContext(t.Context(), filepath.Join("..", "cluster", "build"), "containerd17")
	build.Stderr = &complaint
	built, err := build.Output()
	if err != nil {
		return fmt.Errorf("build containerd 1.7: %w\n%s", err, complaint.String())
	}
	s.programs = strings.TrimSpace(s.node.Sh(t, "mktemp", "-d", "/tmp/containerd17-XXXXXX"))
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "crirun"} {
		f, err := os.Open(filepath.Join(strings.TrimSpace(string(built)), name))
		if err != nil {
			return err
		}
		send(t, s.node, f, "sh", "-c", `cat >"$1" && chmod 755 "$1"`, "sh", path.Join(s.programs, name))
		_ = f.Close()
	}
	s.cgroup = strings.TrimSpace(
		s.node.Sh(t, "sed", "-n", `s/^cgroupRoot: *"\([^"]*\)".*/\1/p`, "/var/lib/kubelet/config.yaml"),
	)
	if s.cgroup == "" {
		return errors.New("the kubelet's configuration on the node has no cgroupRoot")
	}
	return nil
}

// send runs a command on the node with a stdin; it must succeed.
func send(t *testing.T, n cluster.Node, stdin io.Reader, args ...string) {
	t.Helper()
	cmd := n.Command(t.Context(), args...)
	cmd.Stdin = stdin
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("on %s, %q: %v\n%s", n.Name, args, err, out)
	}
}
