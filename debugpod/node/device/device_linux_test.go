package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// The test program is also the program of a fault's processes.
const testDir = "GPU_FAULT_TEST_DEVICES"

func TestMain(m *testing.M) {
	if dir := os.Getenv(testDir); dir != "" && len(os.Args) == 3 {
		if err := nodeIn(dir).main(os.Args[1], os.Args[2], os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func nodeIn(dir string) node {
	return node{
		plugins: dir, podResources: filepath.Join(dir, podResources), state: filepath.Join(dir, "state"),
		proc: "/proc", program: "/proc/self/exe", env: []string{testDir + "=" + dir},
		leaveCgroups: func() error { return nil },
	}
}

// world is a node with a kubelet and a plugin of the devices GPU-a and GPU-b.
func world(t *testing.T) (node, *fakeKubelet, *fakePlugin) {
	t.Helper()
	dir, err := os.MkdirTemp("", "dev") // t.TempDir is too long for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	kubelet := startKubelet(t, dir)
	plugin := startPlugin(t, dir, "GPU-a", "GPU-b")
	kubelet.sees("GPU-a", "GPU-b")
	kubelet.mu.Lock()
	kubelet.always = []string{"GPU-b"}
	kubelet.mu.Unlock()
	return nodeIn(dir), kubelet, plugin
}

// run returns the run of a test's fault. Processes are found by it on the whole machine.
func (n node) run() string { return filepath.Base(n.plugins) }

// failed fails GPU-a, and returns once the kubelet knows it.
func failed(t *testing.T, n node, kubelet *fakeKubelet, ttl time.Duration) {
	t.Helper()
	got, failure := n.fail(t.Context(), n.run(),
		api.FailDevices{Resource: resource, Devices: []string{"GPU-a"}, TTL: ttl})
	if failure != nil {
		t.Fatal(failure)
	}
	if got.Endpoint != pluginSocket || got.Healthy != 1 || !slices.Equal(got.Pods, []string{"pod-1"}) {
		t.Errorf("%+v", got)
	}
	kubelet.sees("GPU-b")
	t.Cleanup(func() { _, _ = n.recover(context.Background(), n.run()) })
}

// recovered ends the fault, and returns its cause. Nothing of it may be left.
func recovered(t *testing.T, n node, kubelet *fakeKubelet) string {
	t.Helper()
	got, failure := n.recover(t.Context(), n.run())
	if failure != nil {
		t.Fatal(failure)
	}
	if !got.Found || got.Healthy != 2 {
		t.Errorf("%+v", got)
	}
	kubelet.sees("GPU-a", "GPU-b")
	kubelet.mu.Lock()
	defer kubelet.mu.Unlock()
	if kubelet.registered != pluginSocket {
		t.Errorf("the kubelet's plugin is %q", kubelet.registered)
	}
	if _, err := os.Lstat(n.socket(n.run())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if left := n.running(n.run()); len(left) > 0 {
		t.Errorf("processes are still running: %v", left)
	}
	if all := n.records(); len(all) > 0 {
		t.Errorf("records are left: %v", all)
	}
	return got.Cause
}

// The faulted device is unhealthy, the other one healthy at every moment, and everything is as before afterwards.
func TestFailAndRecover(t *testing.T) {
	t.Parallel()
	n, kubelet, _ := world(t)
	for range 3 {
		failed(t, n, kubelet, time.Hour)
		list := n.list(t.Context())
		if len(list.Resources) != 1 || list.Resources[0].Failed["GPU-a"] != n.run() ||
			!slices.Equal(list.Resources[0].Unhealthy, []string{"GPU-a"}) {
			t.Errorf("during the fault: %+v", list)
		}
		if cause := recovered(t, n, kubelet); cause != "requested" {
			t.Errorf("ended because of %q", cause)
		}
	}
	kubelet.mu.Lock()
	if len(kubelet.missed) > 0 {
		t.Errorf("a healthy device was missing: %v", kubelet.missed)
	}
	kubelet.mu.Unlock()
	failed(t, n, kubelet, time.Hour)
	for _, test := range []struct {
		clean   bool
		keep    []string
		removed bool
	}{{}, {clean: true, keep: []string{n.run()}}, {clean: true, removed: true}} {
		left := n.left(t.Context(), test.clean, test.keep)
		if len(left) != 1 || left[0].Run != n.run() || left[0].Removed != test.removed {
			t.Errorf("%+v: left %+v", test, left)
		}
	}
	kubelet.sees("GPU-a", "GPU-b")
	if again, failure := n.recover(t.Context(), n.run()); failure != nil || again.Found {
		t.Errorf("a second time: %+v %v", again, failure)
	}
}

// What the plugin itself reports during the fault is kept.
func TestThePluginsOwnReports(t *testing.T) {
	t.Parallel()
	n, kubelet, plugin := world(t)
	failed(t, n, kubelet, time.Hour)
	plugin.set("GPU-b", false)
	kubelet.sees()
	plugin.set("GPU-b", true)
	kubelet.sees("GPU-b")
	plugin.set("GPU-c", true)
	kubelet.sees("GPU-b", "GPU-c")
	plugin.set("GPU-c", false)
	kubelet.sees("GPU-b")
	recovered(t, n, kubelet)
}

// A device that really fails during the fault stays unhealthy, and the fault still ends.
func TestTheFailedDeviceReallyFails(t *testing.T) {
	t.Parallel()
	n, kubelet, plugin := world(t)
	failed(t, n, kubelet, time.Hour)
	plugin.set("GPU-a", false)
	got, failure := n.recover(t.Context(), n.run())
	if failure != nil || got.Healthy != 1 || got.Cause != "requested" {
		t.Errorf("%+v %v", got, failure)
	}
	kubelet.sees("GPU-b")
}

// A fault whose record was deleted still ends on request: its processes know what they need.
func TestDeletedRecord(t *testing.T) {
	t.Parallel()
	n, kubelet, _ := world(t)
	failed(t, n, kubelet, time.Hour)
	if err := os.RemoveAll(n.dir(n.run())); err != nil {
		t.Fatal(err)
	}
	got, failure := n.recover(t.Context(), n.run())
	if failure != nil || !got.Found || got.Resource != "" {
		t.Errorf("%+v %v", got, failure)
	}
	kubelet.sees("GPU-a", "GPU-b")
	if left := n.running(n.run()); len(left) > 0 {
		t.Errorf("processes are still running: %v", left)
	}
}

// A kubelet that notices late that the injector has left disconnects the real plugin, which is then registered again.
func TestABusyKubelet(t *testing.T) {
	t.Parallel()
	n, kubelet, _ := world(t)
	r, failure := n.prepare(t.Context(), n.run(),
		api.FailDevices{Resource: resource, Devices: []string{"GPU-a"}, TTL: time.Hour})
	if failure != nil {
		t.Fatal(failure)
	}
	kubelet.mu.Lock()
	kubelet.disconnects = 2
	kubelet.mu.Unlock()
	if err := n.giveBack(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	kubelet.sees("GPU-a", "GPU-b")
	kubelet.mu.Lock()
	defer kubelet.mu.Unlock()
	if kubelet.disconnects > 0 || len(kubelet.missed) == 0 || kubelet.registered != pluginSocket {
		t.Errorf("%d disconnects were left, and %q is registered", kubelet.disconnects, kubelet.registered)
	}
}

func TestTTL(t *testing.T) {
	t.Parallel()
	n, kubelet, _ := world(t)
	failed(t, n, kubelet, 2*time.Second)
	kubelet.sees("GPU-a", "GPU-b")
	eventually(t, "the switch exits", func() bool { return len(n.running(n.run())) == 0 })
	if cause := recovered(t, n, kubelet); cause != "TTL" {
		t.Errorf("ended because of %q", cause)
	}
}

// Whatever is killed or restarted, the plugin is in charge afterwards.
func TestKilledAndRestarted(t *testing.T) {
	t.Parallel()
	kill := func(t *testing.T, n node, argument string) {
		t.Helper()
		for pid, is := range n.running(n.run()) {
			if is == argument || argument == "" {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					t.Fatal(err)
				}
			}
		}
	}
	for name, test := range map[string]struct {
		do    func(t *testing.T, n node, k *fakeKubelet, p *fakePlugin)
		cause string
	}{
		"injector": {
			func(t *testing.T, n node, _ *fakeKubelet, _ *fakePlugin) { kill(t, n, InjectorArgument) },
			"the process that made the devices unhealthy was killed",
		},
		"switch": {
			func(t *testing.T, n node, _ *fakeKubelet, _ *fakePlugin) { kill(t, n, SwitchArgument) },
			"the fault's other process was killed",
		},
		"plugin": {
			func(_ *testing.T, _ node, _ *fakeKubelet, p *fakePlugin) { p.stop(); p.serve() }, errPlugin.Error(),
		},
		"kubelet": {
			func(t *testing.T, n node, k *fakeKubelet, p *fakePlugin) {
				k.stop()
				sockets, _ := filepath.Glob(filepath.Join(n.plugins, "*.sock"))
				for _, s := range sockets {
					_ = os.Remove(s)
				}
				k.serve()
				p.stop()
				p.serve()
			}, errKubelet.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, kubelet, plugin := world(t)
			failed(t, n, kubelet, time.Hour)
			test.do(t, n, kubelet, plugin)
			eventually(t, "the processes exit", func() bool { return len(n.running(n.run())) == 0 })
			kubelet.sees("GPU-a", "GPU-b")
			if cause := recovered(t, n, kubelet); !strings.Contains(cause, test.cause) {
				t.Errorf("ended because of %q, wanted %q", cause, test.cause)
			}
		})
	}
	t.Run("both processes", func(t *testing.T) {
		t.Parallel()
		n, kubelet, _ := world(t)
		failed(t, n, kubelet, time.Hour)
		running := n.running(n.run())
		for pid := range running { // at once, so that neither can end the fault
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		for pid := range running {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		eventually(t, "the processes exit", func() bool { return len(n.running(n.run())) == 0 })
		recovered(t, n, kubelet)
	})
}

// TestStoppedProcesses: somebody has stopped the processes, as with a debugger. The fault ends when it is asked to.
func TestStoppedProcesses(t *testing.T) {
	t.Parallel()
	for name, stopped := range map[string][]string{
		"injector": {InjectorArgument}, "switch": {SwitchArgument}, "both": {InjectorArgument, SwitchArgument},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, kubelet, _ := world(t)
			failed(t, n, kubelet, time.Hour)
			for pid, argument := range n.running(n.run()) {
				if !slices.Contains(stopped, argument) {
					continue
				}
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			if cause := recovered(t, n, kubelet); cause != "requested" {
				t.Errorf("ended because of %q", cause)
			}
			if took := time.Since(began); took > leaveTimeout {
				t.Errorf("it took %v", took)
			}
			kubelet.sees("GPU-a", "GPU-b")
		})
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	n, kubelet, plugin := world(t)
	for name, test := range map[string]struct {
		f    api.FailDevices
		want string
	}{
		"resource": {api.FailDevices{Resource: "amd.com/gpu", Devices: []string{"GPU-a"}},
			"the node has no resource amd.com/gpu; its resources are: nvidia.com/gpu"},
		"device": {api.FailDevices{Resource: resource, Devices: []string{"GPU-x"}},
			"no healthy device GPU-x; the healthy devices are: GPU-a, GPU-b"},
	} {
		test.f.TTL = time.Hour
		_, failure := n.fail(t.Context(), n.run(), test.f)
		if failure == nil || failure.Code != api.CodeRefused || !strings.Contains(failure.Message, test.want) {
			t.Errorf("%s: %v", name, failure)
		}
	}
	failed(t, n, kubelet, time.Hour)
	_, failure := n.fail(t.Context(), "device-second",
		api.FailDevices{Resource: resource, Devices: []string{"GPU-b"}, TTL: time.Hour})
	if failure == nil || failure.Code != api.CodeExists {
		t.Errorf("a second run: %v", failure)
	}
	recovered(t, n, kubelet)
	plugin.stop()
	_, failure = n.fail(t.Context(), n.run(),
		api.FailDevices{Resource: resource, Devices: []string{"GPU-b"}, TTL: time.Hour})
	if failure == nil || failure.Code != api.CodeRefused {
		t.Errorf("without a plugin: %v", failure)
	}
}

func TestEndpointOf(t *testing.T) {
	t.Parallel()
	nvidia := []string{"nvidia-gpu.sock", "nvidia-mig-1g.10gb.sock"}
	both := []string{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}
	toy := []string{"example.com/toy"}
	withToy := []string{"nvidia.com/gpu", "example.com/toy"}
	for _, test := range []struct {
		resource  string
		sockets   []string
		resources []string
		want      string
	}{
		{"nvidia.com/gpu", nvidia, both, "nvidia-gpu.sock"},
		{"nvidia.com/mig-1g.10gb", nvidia, both, "nvidia-mig-1g.10gb.sock"},
		{"amd.com/gpu", []string{"amd.com_gpu", "nvidia-gpu.sock"}, []string{"amd.com/gpu", both[0]}, "amd.com_gpu"},
		{"gpu.intel.com/i915", []string{"gpu.intel.com-i915.sock", "x.sock"}, toy, "gpu.intel.com-i915.sock"},
		{"example.com/toy", []string{"nvidiaGPU-1700000000.sock"}, toy, "nvidiaGPU-1700000000.sock"},
		{"example.com/toy", []string{"nvidia-gpu.sock", "toy.sock"}, withToy, "toy.sock"},
		{"example.com/toy", []string{"toy.sock"}, withToy, ""}, // it may be that of the GPUs
		{"example.com/toy", []string{"nvidia-gpu.sock"}, withToy, ""},
		{"example.com/toy", []string{"nvidia-gpu.sock", "a.sock", "b.sock"}, withToy, ""},
		{"example.com/toy", []string{"a.sock", "b.sock"}, toy, ""},
		{"example.com/toy", nil, toy, ""},
		{"example.com/gpu", []string{"gpu.sock", "example.sock"}, []string{"example.com/gpu", "example.com/toy"}, ""},
	} {
		got, err := endpointOf(test.resource, test.sockets, test.resources)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s in %v: %q %v", test.resource, test.sockets, got, err)
		}
	}
}
