package diagnose

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/kmsg"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

func TestOpenBacklog(t *testing.T) {
	t.Parallel()
	if _, err := openBacklog(filepath.Join(t.TempDir(), "kmsg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the device: %v", err)
	}
	plain := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(plain, []byte("6,1,5,-;NVRM: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := openBacklog(plain)
	if err != nil {
		t.Fatal(err)
	}
	records, err := readBacklog(t.Context(), log, testClock())
	if err != nil || len(records) != 1 || log.Close() != nil {
		t.Errorf("%+v, %v", records, err)
	}
}

func TestKernelLog(t *testing.T) {
	t.Parallel()
	host := hostfs.Host{Proc: t.TempDir(), Kmsg: filepath.Join(t.TempDir(), "kmsg")}
	if found, err := KernelLog(t.Context(), api.ReadKernelLog{}, host); err == nil || err.Code != api.CodeKmsg {
		t.Errorf("without the device: %+v, %v", found, err)
	}
	if err := os.WriteFile(host.Kmsg, []byte("6,7,5,-;NVRM: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[uint64]int{6: 1, 7: 0} {
		found, err := KernelLog(t.Context(), api.ReadKernelLog{After: &after}, host)
		if err != nil || len(found.Records) != want {
			t.Errorf("after %d: %+v, %v", after, found, err)
		}
	}
}

// TestRealBacklog holds that what was written to this machine's kernel log is found there, with its time.
func TestRealBacklog(t *testing.T) {
	host := nodetest.RealKernelLog(t)
	text := fmt.Sprintf("gpu-fault-test: NVRM: backlog %d", time.Now().UnixNano())
	log, err := kmsg.Open(host.Kmsg)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Write("<4>" + text + "\n"); err != nil {
		t.Fatal(err)
	}
	wrote := time.Now()
	d := &diagnosing{host: host, clock: readClock(host.Proc), kernelLog: openBacklog}
	put, err := d.kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found api.Diagnosis
	put(&found)
	last := found.KernelLog[len(found.KernelLog)-1]
	for _, r := range found.KernelLog {
		if r.Text == text {
			last = r
		}
	}
	if last.Text != text || last.Priority != 1<<3|4 || last.Time.Sub(wrote).Abs() > time.Second {
		t.Errorf("wrote %q at %v, found %+v", text, wrote, last)
	}
}

func TestListens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listener, err := net.Listen("unix", dir+"/a.sock")
	if err != nil {
		t.Fatal(err)
	}
	if got := listens(dir + "/a.sock"); got == nil || !*got {
		t.Error("one that listens is not seen")
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if got := listens(dir + "/a.sock"); got == nil || *got {
		t.Error("one at which nobody listens any more is taken for a live one")
	}
	if listens(dir+"/none.sock") != nil || listens(dir+"/none/none.sock") != nil {
		t.Error("of a socket that is not there something is known")
	}
}

// TestDevicePlugins holds that only sockets count, also those of a kubelet with a root directory of its own.
func TestDevicePlugins(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	n.Process(100, 1, "/usr/bin/kubelet", "/usr/bin/kubelet", "--root-dir=/data/kubelet")
	n.File("/data/kubelet/device-plugins/kubelet_internal_checkpoint", "{}")
	n.File("/data/kubelet/plugins_registry/x", "")
	address := n.Host.Root + "/data/kubelet/device-plugins/nvidia-gpu.sock"
	if len(address) > 107 { // of a socket's address; t.TempDir has the test's name in it
		t.Chdir(filepath.Dir(address))
		address = "nvidia-gpu.sock"
	}
	listener, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	kubelet, problem := process.FindKubelet(process.All(n.Host.Proc), n.Host)
	if problem != "" {
		t.Fatal(problem)
	}
	put, err := diagnosisOf(n, noProgram).devicePlugins(diagnosisOf(n, noProgram).kubeletDir(kubelet))
	var found api.Diagnosis
	put(&found)
	sockets := found.Probe.DevicePlugins
	if err != nil || len(sockets) != 1 || sockets[0].Path != "/data/kubelet/device-plugins/nvidia-gpu.sock" ||
		sockets[0].Listening == nil || !*sockets[0].Listening || sockets[0].Modified.IsZero() {
		t.Errorf("%+v, %v", sockets, err)
	}
}

// TestPipesAreNotRead holds that a pipe in the place of a file does not hold us up.
func TestPipesAreNotRead(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	n.File("/etc/cdi/good.json", `{"kind":"nvidia.com/gpu"}`)
	for _, name := range []string{"/etc/os-release", "/etc/cdi/bad.yaml"} {
		n.File(name+".x", "") // makes the folder
		if err := syscall.Mkfifo(n.Host.Root+name, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hostfs.FS(n.Host.Root).Text("/etc/os-release", 10); err == nil {
		t.Error("a pipe was read")
	}
	if spec := readCDI(hostfs.FS(n.Host.Root), "/etc/cdi/bad.yaml"); !strings.Contains(spec.Error, "not a file") {
		t.Errorf("%+v", spec)
	}
}
