package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

const (
	uidA = "0a1b2c3d-1111-2222-3333-444455556666"
	uidB = "1b2c3d4e-1111-2222-3333-444455556666"
)

const checkpointText = `{"Data":{"PodDeviceEntries":[
 {"PodUID":"` + uidA + `","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"1":["GPU-b"],"-1":["GPU-a"]},"AllocResp":"CkIK"},
 {"PodUID":"` + uidA + `","ContainerName":"side","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-a"]},"AllocResp":""},
 {"PodUID":"` + uidA + `","ContainerName":"main","ResourceName":"rdma/hca","DeviceIDs":{"0":["mlx5_0"]},"AllocResp":""},
 {"PodUID":"` + uidB + `","ContainerName":"main","ResourceName":"nvidia.com/gpu.shared","DeviceIDs":["GPU-c::7"],"AllocResp":""},
 {"PodUID":"mig","ContainerName":"main","ResourceName":"nvidia.com/mig-1g.10gb","DeviceIDs":{"0":["MIG-x"]},"AllocResp":""},
 {"PodUID":"none","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":null,"AllocResp":""}
],"RegisteredDevices":{"nvidia.com/gpu":["GPU-a","GPU-b"]}},"Checksum":1234567890}`

func TestDevicesOf(t *testing.T) {
	got, err := devicesOf([]byte(checkpointText))
	want := map[string][]string{uidA: {"GPU-a", "GPU-b"}, uidB: {"GPU-c"}, "mig": {"MIG-x"}, "none": nil}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for _, bad := range []string{
		"", "[]", `{"Data":{"PodDeviceEntries":[{"ResourceName":"nvidia.com/gpu","DeviceIDs":7}]}}`,
	} {
		if _, err := devicesOf([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestUUIDs(t *testing.T) {
	gpus := []api.GPU{{Index: 0, Minor: 1, UUID: "GPU-a"}, {Index: 1, Minor: 0, UUID: "GPU-b"}, {Index: 2, Minor: 2}}
	for want, ids := range map[string][]string{
		"GPU-x MIG-y":         {"GPU-x", "MIG-y"},
		"GPU-b":               {"1"},
		"GPU-a":               {"nvidia1"},
		"GPU-b GPU-a":         {"nvidia0/vgpu0", "nvidia0/vgpu1", "nvidia1/gi2"},
		"nvidia2 2 9 nvidia9": {"nvidia2", "2", "9", "nvidia9"},
		"card0":               {"card0"},
		"":                    nil,
	} {
		if got := strings.Join(uuids(ids, gpus), " "); got != want {
			t.Errorf("%v: got %q, want %q", ids, got, want)
		}
	}
}

func stat(pid int, name string, started int) string {
	return fmt.Sprintf("%d (%s) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %d 1 1 1", pid, name, started)
}

func TestReadPods(t *testing.T) {
	systemd := "0::/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uidA, "-", "_") +
		".slice/cri-containerd-aaaa.scope\n"
	cgroupfs := "12:devices:/kubepods/besteffort/pod" + uidB + "/bbbb\n1:name=systemd:/kubepods/besteffort/pod" + uidB +
		"/bbbb\n"
	proc := nodetest.Tree(t, map[string]string{
		"10/cgroup": systemd, "10/stat": stat(10, "pause", 50),
		"11/cgroup": systemd, "11/stat": stat(11, "sh", 100),
		"12/cgroup": systemd, "12/stat": stat(12, "python3", 300), "12/fd/7": "-> /dev/nvidia0",
		"12/fd/8":   "-> /dev/nvidiactl",
		"13/cgroup": systemd, "13/stat": stat(13, "worker", 400), "13/fd/7": "-> /dev/nvidia0",
		"20/cgroup": cgroupfs, "20/stat": stat(20, "a) S (b", 900), "20/fd/3": "-> /dev/nvidiactl",
		"21/cgroup": cgroupfs, "21/stat": stat(21, "child", 901),
		"22/cgroup": cgroupfs, "22/stat": "garbage",
		"30/cgroup": "0::/init.scope\n", "30/stat": stat(30, "systemd", 1),
		"31/comm": "vanished", "self": "-> 30", "cpuinfo": "",
	})
	root := nodetest.Tree(t,
		map[string]string{"var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": checkpointText})
	warn := func(f string, args ...any) { t.Errorf(f, args...) }
	got := Node(t.Context(), api.Inspect{PodUIDs: []string{uidA, uidB, "gone"}},
		hostfs.Host{Root: root, Proc: proc}).Pods
	want := map[string]api.PodUse{
		uidA:   {GPUs: []string{"GPU-a", "GPU-b"}, PID: 12, Process: "python3"},
		uidB:   {GPUs: []string{"GPU-c"}, PID: 20, Process: "a) S (b"},
		"gone": {},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := readPods(nil, nil, nil, nil, warn); got != nil {
		t.Errorf("asked for nothing: %v", got)
	}
	var warned int
	bad := mapFS(map[string]string{"var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": "x"})
	if got := readPods([]string{uidA}, bad, mapFS(nil), nil, func(string, ...any) { warned++ }); warned != 1 ||
		len(got) != 1 {
		t.Errorf("%d warnings, %v", warned, got)
	}
}

// TestProcessesOf holds that a pod has a process as long as its sandbox has one, and that a container's is preferred.
func TestProcessesOf(t *testing.T) {
	t.Parallel()
	in := func(uid string) string { return "0::/kubepods/pod" + uid + "/0123\n" }
	proc := nodetest.Tree(t, map[string]string{
		"10/cgroup": in(uidA), "10/stat": stat(10, "pause", 50),
		"11/cgroup": in(uidA), "11/stat": stat(11, "sh", 100),
		"20/cgroup": in(uidB), "20/stat": stat(20, "pause", 50),
	})
	got := ProcessesOf([]string{uidA, uidB, "gone"}, hostfs.Host{Proc: proc})
	if diff := cmp.Diff(map[string]int{uidA: 11, uidB: 20}, got); diff != "" {
		t.Error(diff)
	}
}

func TestPodOf(t *testing.T) {
	for cgroup, want := range map[string]string{
		"0::/../../kubepods-besteffort-pod" + strings.ReplaceAll(uidB, "-", "_") + ".slice/crio-1.scope": uidB,
		"3:cpu:/kubetest/node-b/kubepods/pod" + uidA + "/0123":                                           uidA,
		"0::/kubepods/pod" + uidA: uidA,
		"0::/system.slice":        "",
		"":                        "",
	} {
		if got := podOf(cgroup, []string{"", uidA, uidB}); got != want {
			t.Errorf("%q: got %q, want %q", cgroup, got, want)
		}
	}
}

func FuzzDevicesOf(f *testing.F) {
	f.Add([]byte(checkpointText))
	f.Fuzz(func(t *testing.T, raw []byte) {
		devices, err := devicesOf(raw)
		if err != nil {
			return
		}
		for uid, ids := range devices {
			for _, id := range ids {
				if strings.Contains(id, "::") {
					t.Errorf("%s: %q", uid, id)
				}
			}
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add(stat(1, "a) (b", 7))
	f.Fuzz(func(_ *testing.T, s string) { _, _, _ = parseStat(s) })
}
