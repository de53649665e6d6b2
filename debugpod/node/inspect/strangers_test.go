package inspect

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

// inSession is the stat of a process that belongs to a session.
func inSession(pid int, name string, session, started int) string {
	return fmt.Sprintf("%d (%s) S 1 1 %d 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %d 1 1 1", pid, name, session, started)
}

// Processes of kubectl exec, daemons that they leave behind, and programs that they replace do not come from the
// workload, and a candidate could make a broken one look repaired with them.
func TestStrangers(t *testing.T) {
	t.Parallel()
	one, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	pod := "0::/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uidA, "-", "_") + ".slice/cri-containerd-"
	in := func(container string) string { return pod + container + ".scope\n" }
	mounts := func(lower string) string {
		return "30 29 0:1 / /proc rw - proc proc rw\n" +
			"29 28 0:2 / / rw,relatime - overlay overlay rw,lowerdir=" + lower +
			",upperdir=/snapshots/3/fs,workdir=/snapshots/3/work\n"
	}
	proc := nodetest.Tree(t, map[string]string{
		// A shell, what it starts, and what came by exec: a daemon whose parent is the container's program.
		"100/cgroup": in(one), "100/stat": inSession(100, "sh", 100, 50),
		"100/mountinfo": mounts("/snapshots/2/fs:/snapshots/1/fs"),
		"101/cgroup":    in(one), "101/stat": inSession(101, "httpd", 100, 60),
		"102/cgroup": in(one), "102/stat": inSession(102, "nc) S (", 102, 70),
		// Another container: its program is older than that of the first, and alone.
		"90/cgroup": in(other), "90/stat": inSession(90, "pause", 90, 40), "90/mountinfo": mounts("2/fs:1/fs"),
		"1/cgroup": "0::/init.scope\n", "1/stat": inSession(1, "systemd", 1, 1),
	})
	root := nodetest.Tree(t, map[string]string{
		"snapshots/1/fs/usr/bin/sleep": "image", "snapshots/2/fs/app/run": "image", "snapshots/1/fs/app/data": "image",
		"snapshots/3/fs/usr/bin/sleep": "other", "snapshots/3/fs/app/run": "other", "snapshots/3/fs/app/data": "other",
		"snapshots/3/fs/usr/local/bin/ls": "new", "snapshots/3/fs/tmp/tool": "new",
		"snapshots/3/fs/usr/bin/nvidia-smi": "",
		"snapshots/3/fs/etc/ld.so.preload":  "/tmp/x.so",
	})
	for _, program := range []string{"usr/bin/sleep", "app/run", "usr/local/bin/ls", "usr/bin/nvidia-smi", "tmp/tool"} {
		if err := os.Chmod(filepath.Join(root, "snapshots/3/fs", program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host := hostfs.Host{Root: root, Proc: proc}
	got := Node(t.Context(), api.Inspect{PodUIDs: []string{uidA, uidB}, Strangers: true}, host).Pods
	want := []string{
		`process "nc) S (" was not started by the container's program`,
		"the program /app/run was replaced", "the program /etc/ld.so.preload was replaced",
		"the program /usr/bin/sleep was replaced", "the program /usr/local/bin/ls was replaced",
	}
	if diff := cmp.Diff(want, got[uidA].Strangers); diff != "" {
		t.Error(diff)
	}
	if got[uidB].Strangers != nil {
		t.Errorf("a pod without processes has %q", got[uidB].Strangers)
	}
	if got := Node(t.Context(), api.Inspect{PodUIDs: []string{uidA}}, host).Pods[uidA].Strangers; got != nil {
		t.Errorf("not asked for: %q", got)
	}
}

func FuzzLayers(f *testing.F) {
	f.Add("29 28 0:2 / / rw - overlay overlay rw,lowerdir=a:b,upperdir=/c/d/fs")
	f.Fuzz(func(t *testing.T, mountinfo string) {
		upper, lower := layers(mountinfo)
		if upper == "" {
			return
		}
		for _, layer := range lower {
			if !filepath.IsAbs(layer) {
				t.Errorf("relative layer %q", layer)
			}
		}
	})
}
