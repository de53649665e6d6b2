package hoststate

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

// files reads the state of the files below a directory.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	readFiles(hostfs.FS(root), found, func(format string, args ...any) { t.Errorf(format, args...) })
	return found
}

// Whatever somebody changes in a file that the node obeys later must be seen: its content, its mode, the target of a
// link, a new one. Tokens that the CNI plugin rewrites are no change.
func TestStateOfFiles(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(root string) error{
		"file /etc/crontab": func(root string) error {
			return os.WriteFile(root+"/etc/crontab", []byte("* * * * * root true"), 0o600)
		},
		"file /etc/cron.d/new": func(root string) error { return os.WriteFile(root+"/etc/cron.d/new", nil, 0o600) },
		"file /etc/passwd":     func(root string) error { return os.Chmod(root+"/etc/passwd", 0o666) },
		"file /etc/systemd/system/a.service": func(root string) error {
			return os.Symlink("/tmp/a.service", root+"/etc/systemd/system/a.service")
		},
		"file /usr/local/nvidia/toolkit/nvidia-container-runtime": func(root string) error {
			name := root + "/usr/local/nvidia/toolkit/nvidia-container-runtime"
			return errors.Join(os.Remove(name), os.Symlink("/run/nvidia-container-runtime", name))
		},
		"": func(root string) error {
			return os.WriteFile(root+"/etc/cni/net.d/calico-kubeconfig", []byte("new token"), 0o600)
		},
	} {
		root := nodetest.Tree(t, map[string]string{
			"etc/crontab": "", "etc/cron.d/old": "x", "etc/passwd": "root", "etc/systemd/system/b.service": "",
			"etc/cni/net.d/calico-kubeconfig": "token", "etc/unrelated": "",
			"usr/local/nvidia/toolkit/nvidia-container-runtime": "program",
		})
		before := files(t, root)
		if err := change(root); err != nil {
			t.Fatal(err)
		}
		after := files(t, root)
		var differ []string
		for item := range after {
			if before[item] != after[item] {
				differ = append(differ, item)
			}
		}
		if got := strings.Join(differ, ", "); got != what {
			t.Errorf("%q differs, not %q", got, what)
		}
	}
}

// Links of the node are resolved below its root, and a tree without end ends the list with a warning.
func TestStateOfHostileFiles(t *testing.T) {
	t.Parallel()
	root := nodetest.Tree(t, map[string]string{"real/cron.d/job": "x"})
	if err := os.MkdirAll(root+"/etc", 0o750); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"/etc/cron.d": "/real/cron.d", "/etc/ssh": "/etc/ssh"} {
		if err := os.Symlink(to, root+from); err != nil {
			t.Fatal(err)
		}
	}
	found := files(t, root)
	if len(found) != 2 || found["file /etc/cron.d"] == "" || found["file /etc/ssh"] == "" {
		t.Errorf("links are listed as links: %v", found)
	}
	for i := range mostFiles {
		if err := os.MkdirAll(filepath.Join(root, "etc/default", fmt.Sprint(i)), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	var warned []string
	readFiles(hostfs.FS(root), map[string]string{},
		func(format string, args ...any) { warned = append(warned, fmt.Sprintf(format, args...)) })
	if len(warned) == 0 || !strings.Contains(warned[0], "too many files") {
		t.Errorf("no warning: %v", warned)
	}
}

// A daemon that left its pod's control group is listed. Services, sessions, pods, shims, kernel threads and what they
// start are not.
func TestStateOfProcesses(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for pid, p := range map[string]struct{ parent, cgroup, command string }{
		"1":  {"0", "0::/init.scope", "/sbin/init"},
		"10": {"1", "0::/", "sleep\x005400\x00"},
		"11": {"1", "0::/system.slice/cron.service", "cron\x00-f\x00"},
		"12": {"1", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope", "python\x00"},
		"13": {"1", "0::/", "/bin/containerd-shim-runc-v2\x00-id\x001\x00"},
		"14": {"2", "0::/", ""},
		"15": {"10", "0::/", "child\x00"},
		"16": {"1", "0::/user.slice/user-0.slice/session-1.scope", "bash\x00"},
	} {
		for name, text := range map[string]string{
			"stat": pid + " (a) b) S " + p.parent + " 1 1", "cgroup": p.cgroup, "cmdline": p.command,
		} {
			if err := os.MkdirAll(filepath.Join(proc, pid), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, pid, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	found := map[string]string{}
	readProcesses(os.DirFS(proc), found)
	if want := map[string]string{api.StateProcess + " sleep 5400": ""}; !maps.Equal(found, want) {
		t.Errorf("%v, not %v", found, want)
	}
}

// A mount over a configuration file hides what is on disk, and a module that is gone takes the GPUs with it.
func TestStateOfMountsAndModules(t *testing.T) {
	t.Parallel()
	proc := os.DirFS(nodetest.Tree(t, map[string]string{
		"1/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" +
			"30 22 8:1 /tmp/x /etc/containerd/config.toml rw - ext4 /dev/sda1 rw\n" +
			"31 22 0:5 / /var/lib/kubelet/pods/1/volumes rw - tmpfs tmpfs rw\n",
		"modules": "nvidia 1 0 - Live 0x0\n",
	}))
	found := map[string]string{}
	readMounts(proc, found)
	readModules(proc, found)
	if want := map[string]string{
		api.StateMount + " /etc/containerd/config.toml": "/tmp/x", api.StateModule + " nvidia": "",
	}; !maps.Equal(found, want) {
		t.Errorf("%v, not %v", found, want)
	}
}

// Only what somebody has looked at is removed: a file that has changed since, one outside the directories for
// configuration, and a directory stay.
func TestRemove(t *testing.T) {
	t.Parallel()
	root := nodetest.Tree(t, map[string]string{
		"etc/containerd/conf.d/new.toml": "a", "etc/containerd/conf.d/changed.toml": "b", "etc/unrelated": "c",
		"root/.ssh/key": "d",
	})
	digests := map[string]string{
		"/etc/unrelated": "", "/etc/../root/x": "", "/etc/containerd/conf.d": "", "/etc/cron.d/gone": "",
	}
	for item, digest := range files(t, root) {
		digests[strings.TrimPrefix(item, "file ")] = digest
	}
	if err := os.WriteFile(root+"/etc/containerd/conf.d/changed.toml", []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := Remove(hostfs.FS(root), digests)
	if got := strings.Join(done.Removed, " "); got != "/etc/containerd/conf.d/new.toml /root/.ssh/key" {
		t.Errorf("removed %q", got)
	}
	if len(done.Kept) != 5 || done.Kept["/etc/containerd/conf.d/changed.toml"] != "changed in the meantime" {
		t.Errorf("kept %v", done.Kept)
	}
	if left := files(t, root); len(left) != 1 {
		t.Errorf("left %v", left)
	}
}
