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
	nested := "0::/docker/" + strings.Repeat("d", 64)
	pod := nested + "/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uidA, "-", "_") + ".slice/cri-containerd-"
	in := func(container string) string { return pod + container + ".scope\n" }
	mounts := "30 29 0:1 / /proc rw - proc proc rw\n" +
		"31 29 0:1 / /usr/bin/nvidia-smi rw - ext4 /dev/sda rw\n" +
		"29 28 0:2 / / rw,relatime - overlay overlay rw,lowerdir=2/fs:1/fs,upperdir=/snapshots/3/fs,workdir=/w\n"
	empty := strings.ReplaceAll(mounts, "snapshots/3", "snapshots/4")
	proc := nodetest.Tree(t, map[string]string{
		// A shell, what it starts, and what came by exec: a daemon whose parent is the container's program.
		"100/cgroup": in(one), "100/stat": inSession(100, "sh", 100, 50), "100/mountinfo": mounts,
		"101/cgroup": in(one), "101/stat": inSession(101, "httpd", 100, 60),
		"102/cgroup": in(one), "102/stat": inSession(102, "nc) S (", 102, 70),
		// Another container: its program is older than that of the first, and alone.
		"90/cgroup": in(other), "90/stat": inSession(90, "pause", 90, 40), "90/mountinfo": empty,
		// CRI-O's monitor, and a process of the node.
		"80/cgroup": strings.Replace(in(one), "cri-containerd-", "crio-conmon-", 1),
		"80/stat":   inSession(80, "conmon", 80, 10),
		"81/cgroup": in(one), "81/stat": inSession(81, "helper", 81, 11), "81/ns/mnt": "-> mnt:[1]",
		"1/cgroup": "0::/init.scope\n", "1/stat": inSession(1, "systemd", 1, 1), "1/ns/mnt": "-> mnt:[1]",
	})
	root := nodetest.Tree(t, map[string]string{
		"snapshots/1/fs/usr/bin/sleep": "image", "snapshots/2/fs/app/run": "image", "snapshots/1/fs/app/data": "image",
		"snapshots/1/fs/usr/bin/own": "image", "snapshots/1/fs/usr/bin/python3": "image",
		"snapshots/1/fs/usr/bin/check": "x",
		"snapshots/3/fs/usr/bin/sleep": "other", "snapshots/3/fs/app/run": "other", "snapshots/3/fs/app/data": "other",
		"snapshots/3/fs/usr/bin/own": "image", "snapshots/3/fs/usr/bin/python3": "-> /tmp/tool",
		"snapshots/3/fs/usr/bin/check": "", "snapshots/3/fs/usr/local/bin/ls": "new", "snapshots/3/fs/tmp/tool": "new",
		"snapshots/3/fs/usr/bin/nvidia-smi": "", "snapshots/3/fs/etc/ld.so.preload": "/tmp/x.so",
		"snapshots/3/fs/usr/local/bin/link": "-> /tmp/tool", "snapshots/4/fs/tmp/x": "",
	})
	for _, program := range []string{
		"1/fs/usr/bin/sleep", "2/fs/app/run", "1/fs/usr/bin/own", "1/fs/usr/bin/python3", "1/fs/usr/bin/check",
		"3/fs/usr/bin/sleep", "3/fs/app/run", "3/fs/usr/bin/own", "3/fs/usr/bin/check", "3/fs/usr/local/bin/ls",
		"3/fs/usr/bin/nvidia-smi", "3/fs/tmp/tool",
	} {
		if err := os.Chmod(filepath.Join(root, "snapshots", program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host := hostfs.Host{Root: root, Proc: proc}
	got := Node(t.Context(), api.Inspect{PodUIDs: []string{uidA, uidB}, Strangers: true}, host).Pods
	want := []string{`process "nc) S (" was not started by the container's program`}
	files := []string{
		"/app/run", "/etc/ld.so.preload", "/usr/bin/check", "/usr/bin/python3", "/usr/bin/sleep",
		"/usr/local/bin/link", "/usr/local/bin/ls",
	}
	for _, file := range files {
		want = append(want, fmt.Sprintf("the program %q was replaced", file))
	}
	if diff := cmp.Diff(want, got[uidA].Strangers); diff != "" || got[uidA].Unseen != "" {
		t.Error(diff, got[uidA].Unseen)
	}
	if got := got[uidB]; got.Strangers != nil || got.Unseen == "" {
		t.Errorf("a pod without processes: %+v", got)
	}
	calm := Node(t.Context(), api.Inspect{PodUIDs: []string{uidA}, Strangers: true, OwnSessions: true}, host).Pods[uidA]
	if len(calm.Strangers) != len(files) {
		t.Errorf("with sessions of its own: %q", calm.Strangers)
	}
	if got := Node(t.Context(), api.Inspect{PodUIDs: []string{uidA}}, host).Pods[uidA].Strangers; got != nil {
		t.Errorf("not asked for: %q", got)
	}
}

// What cannot be looked at is not clean: another file system, a sandbox, and a container that hides its programs behind
// too many files.
func TestUnseenStrangers(t *testing.T) {
	t.Parallel()
	cgroup := "0::/kubepods/pod" + uidA + "/" + strings.Repeat("c", 64) + "\n"
	for name, test := range map[string]struct{ process, mounts, want string }{
		"another file system": {"app", "29 28 0:2 / / rw - btrfs /dev/sda rw\n", errNoOverlay.Error()},
		"no mounts":           {"app", "", errNoOverlay.Error()},
		"gVisor":              {"runsc-sandbox", "", "a sandbox"},
		"too many files": {
			"app", "29 28 0:2 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u/3/fs\n", errTooMany.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proc := nodetest.Tree(t, map[string]string{
				"7/cgroup": cgroup, "7/stat": inSession(7, test.process, 7, 1), "7/mountinfo": test.mounts,
			})
			tree := map[string]string{"l/usr/bin/x": ""}
			if name == "too many files" {
				for i := range mostFiles + 1 {
					tree[fmt.Sprintf("u/3/fs/a/%d", i)] = ""
				}
				tree["u/3/fs/usr/bin/evil"] = "new"
			}
			root := nodetest.Tree(t, tree)
			if name == "too many files" {
				if err := os.Chmod(filepath.Join(root, "u/3/fs/usr/bin/evil"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			got := Node(t.Context(), api.Inspect{PodUIDs: []string{uidA}, Strangers: true},
				hostfs.Host{Root: root, Proc: proc}).Pods[uidA]
			if !strings.Contains(got.Unseen, test.want) {
				t.Errorf("%+v, expected %q", got, test.want)
			}
			if name == "too many files" && len(got.Strangers) != 1 {
				t.Errorf("the program behind the files is not seen: %q", got.Strangers)
			}
		})
	}
}

func FuzzLayers(f *testing.F) {
	f.Add("29 28 0:2 / / rw - overlay overlay rw,lowerdir=a:b,upperdir=/c/d/fs")
	f.Add("29 28 0:2 / / rw - overlay overlay rw,lowerdir+=a,lowerdir+=/b,upperdir=/c/d/fs")
	f.Fuzz(func(t *testing.T, mountinfo string) {
		found := layers(mountinfo)
		if found.upper == "" {
			return
		}
		for _, layer := range found.lower {
			if !filepath.IsAbs(layer) {
				t.Errorf("relative layer %q", layer)
			}
		}
	})
}
