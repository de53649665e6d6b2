package diagnose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/containerruntime"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/driver"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/inspect"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/kmsg"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// backlogOf is a kernel log with these records, as read(2) gives them.
type backlogOf []string

func (b *backlogOf) Read(p []byte) (int, error) {
	if len(*b) == 0 {
		return 0, io.EOF
	}
	record := (*b)[0]
	*b = (*b)[1:]
	if record == "EPIPE" {
		return 0, kmsg.ErrOverrun
	}
	return copy(p, record), nil
}

func (b *backlogOf) Close() error { return nil }

// testClock: the machine has been up for 1,000 seconds at noon.
func testClock() clock {
	return clock{
		now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), uptime: 1000 * time.Second, awake: 1000 * time.Second,
	}
}

// diagnosisOf returns a Diagnose of a fake node, on which no program runs but those of run.
func diagnosisOf(
	n *nodetest.Node, run func(context.Context, hostexec.Command) (string, error), log ...string,
) *diagnosing {
	n.T.Helper()
	return &diagnosing{
		host: n.Host, root: hostfs.FS(n.Host.Root), clock: testClock(), Sources: Sources{
			Info: func(ctx context.Context, host hostfs.Host) api.Info {
				return inspect.Node(ctx, api.Inspect{}, host)
			},
			Runtime: func(ctx context.Context, host hostfs.Host) (api.Runtime, []process.Process) {
				in := containerruntime.New(host)
				in.Ask, in.Peer, in.Run = n.Ask, n.Peer, n.Run
				return in.Found(ctx)
			},
		},
		run: run,
		kernelLog: func(string) (kernelBacklog, error) {
			records := backlogOf(log)
			return &records, nil
		},
	}
}

func noProgram(_ context.Context, c hostexec.Command) (string, error) {
	return "", fmt.Errorf("%s was run, and is not there", c.Program)
}

func programsOfGPUNode(_ context.Context, c hostexec.Command) (string, error) {
	switch c.Program {
	case "/usr/bin/nvidia-smi":
		return "<?xml version=\"1.0\" ?>\n<nvidia_smi_log>\x01é</nvidia_smi_log>\n", nil
	case "/usr/bin/nv-fabricmanager":
		return "Fabric Manager version is : 570.86.15\n", nil
	case "/usr/bin/nvidia-ctk":
		return "NVIDIA Container Toolkit CLI version 1.17.4\ncommit: x\n", nil
	case "/usr/bin/journalctl":
		return "2026-01-01T11:00:00+0000 gpu-1 " + c.Args[2] + ": hello\n", nil
	}
	return "", errors.New(c.Program)
}

// TestDiagnoseWhole holds that every part finds its way from the node's files into the answer.
func TestDiagnoseWhole(t *testing.T) {
	t.Parallel()
	n := nodetest.GPU(t)
	found := diagnosisOf(n, programsOfGPUNode,
		"4,17,900000000,-;NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n").
		diagnose(t.Context(), api.Diagnose{Units: []string{"nvidia-persistenced.service"}})
	p := found.Probe
	want := api.Probe{
		Time: testClock().now, Uptime: 1000 * time.Second,
		OS: map[string]string{"ID": "ubuntu", "VERSION_ID": "24.04"}, Cmdline: "root=/dev/sda pci=realloc",
		Modules: []api.Module{{Name: "nvidia", Version: "570.86.15", Taint: "OE"}},
		Driver: api.DriverFiles{Root: "/", Kernel: "570.86.15", Open: true,
			Libraries: []string{
				"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15",
				"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.560.35.03",
			},
			Built: []string{"/lib/modules/6.8.0-50-generic/updates/dkms/nvidia.ko.zst",
				"/lib/modules/6.8.0-50-generic/kernel/nvidia-570/bits/nvidia-uvm.ko",
				"/lib/modules/6.8.0-51-generic/kernel/drivers/video/fbdev/nvidia/nvidiafb.ko"},
			Kernels: []string{"6.8.0-50-generic", "6.8.0-51-generic"}},
		Devices: []api.DeviceNode{{Path: "/dev/nvidiactl", Mode: "0644"}}, DevChar: map[string]bool{},
		Processes:     map[string][]int{"nvidia-persistenced": {70}},
		FabricManager: "570.86.15", Validations: []string{"driver-ready"},
		ToolkitConfig: "disable-require = false\n", ToolkitConfigPath: "/etc/nvidia-container-runtime/config.toml",
		ToolkitVersion: "NVIDIA Container Toolkit CLI version 1.17.4",
		KubeletConfig:  map[string]string{"cgroupDriver": "systemd"}, CgroupVersion: 2,
		Sysctls:    map[string]string{"fs.inotify.max_user_instances": "128"},
		SecureBoot: "enabled", SELinux: "enforcing",
		Units: []api.Unit{
			{Name: "containerd.service", PID: 50},
			{Name: "kubelet.service", PID: 100, Started: time.Date(2026, 1, 1, 11, 51, 40, 0, time.UTC)},
		},
	}
	ignored := p
	ignored.Filesystems, ignored.Unread = nil, nil // this machine's own
	if diff := cmp.Diff(want, ignored); diff != "" {
		t.Errorf("the probe differs (-want +got):\n%s", diff)
	}
	if len(p.Filesystems) == 0 || p.Filesystems[0].Path != "/" {
		t.Errorf("file systems: %+v", p.Filesystems)
	}
	if p.Unread["pci"] == "" || strings.Contains(fmt.Sprint(p.Unread), n.Host.Root) {
		t.Errorf("the fake node has no PCI bus, and reasons have the node's paths: %v", p.Unread)
	}
	if found.Runtime.Instance == nil || found.Runtime.Instance.PID != 50 || found.Info.DriverVersion != "570.86.15" {
		t.Errorf("runtime %+v, info %+v", found.Runtime, found.Info)
	}
	if !strings.Contains(found.SMI, "<nvidia_smi_log>\uFFFDé<") || p.SMIError != "" {
		t.Errorf("nvidia-smi: %q, %q", found.SMI, p.SMIError)
	}
	record := api.KernelRecord{
		Sequence: 17, Uptime: 900 * time.Second, Time: time.Date(2026, 1, 1, 11, 58, 20, 0, time.UTC), Priority: 4,
		Text: "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.",
	}
	if diff := cmp.Diff([]api.KernelRecord{record}, found.KernelLog); diff != "" {
		t.Errorf("the kernel log: %s", diff)
	}
	for _, unit := range []string{"kubelet.service", "containerd.service", "nvidia-persistenced.service"} {
		if found.Journals[unit] != "2026-01-01T11:00:00+0000 gpu-1 "+unit+": hello\n" {
			t.Errorf("the journal of %s: %q", unit, found.Journals[unit])
		}
	}
}

// TestDiagnoseNothing holds that a node of which nothing can be read is an answer, with reasons.
func TestDiagnoseNothing(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	d := diagnosisOf(n, noProgram)
	d.host.Root, d.root = n.Host.Root+"/nowhere", hostfs.FS(n.Host.Root+"/nowhere")
	d.kernelLog = func(string) (kernelBacklog, error) { return nil, errors.New("no kernel log") }
	found := d.diagnose(t.Context(), api.Diagnose{})
	for _, field := range []string{
		"pci", "modules", "devices", "os", "kernelLog", "journals", "kubeletConfig", "devicePlugins", "cgroupVersion",
		"secureBoot", "selinux", "sysctls",
	} {
		if found.Probe.Unread[field] == "" {
			t.Errorf("nothing says why %s could not be read: %v", field, found.Probe.Unread)
		}
	}
	if found.Probe.SMIError == "" {
		t.Error("nothing says why nvidia-smi was not run")
	}
}

// TestDiagnoseBroken holds that programs that fail are evidence: their words reach the answer.
func TestDiagnoseBroken(t *testing.T) {
	t.Parallel()
	const lost = "Unable to determine the device handle for GPU0000:B3:00.0: Unknown Error"
	for name, tc := range map[string]struct {
		out, said string
		err       error
		wantSMI   bool
		want      string
	}{
		"on standard output": {
			out:  "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
			err:  errors.New("exit status 9"),
			want: "couldn't communicate with the NVIDIA driver.\n(/usr/bin/nvidia-smi: exit status 9)",
		},
		"with half an answer": {
			out: "<nvidia_smi_log><gpu>", said: lost, err: errors.New("exit status 255"), wantSMI: true, want: lost,
		},
		"no XML":    {out: "hello\n", want: "is not XML: hello"},
		"too much":  {out: "<nvidia_smi_log>" + strings.Repeat("x", maxSMI), want: "wrote more than"},
		"not UTF-8": {out: "<nvidia_smi_log>\xff</nvidia_smi_log>", wantSMI: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodetest.New(t)
			n.Program("/usr/bin/nvidia-smi")
			n.File(driver.Loaded, "")
			d := diagnosisOf(n, func(_ context.Context, c hostexec.Command) (string, error) {
				if tc.err == nil {
					return tc.out, nil
				}
				return tc.out, &hostexec.ExitError{Program: c.Program, Err: tc.err, Said: tc.said}
			})
			put, err := d.smi(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var found api.Diagnosis
			put(&found)
			if (found.SMI != "") != tc.wantSMI || !strings.Contains(found.Probe.SMIError, tc.want) ||
				!utf8.ValidString(found.SMI) || tc.want == "" && found.Probe.SMIError != "" {
				t.Errorf("got %d bytes and %q, want %q", len(found.SMI), found.Probe.SMIError, tc.want)
			}
		})
	}
	n := nodetest.New(t)
	n.Program("/usr/bin/nvidia-smi")
	n.File(driver.Loaded, "")
	put, _ := diagnosisOf(n, func(context.Context, hostexec.Command) (string, error) {
		return "", errors.New("/usr/bin/nvidia-smi did not answer within 20s")
	}).smi(t.Context())
	var found api.Diagnosis
	put(&found)
	if !strings.Contains(found.Probe.SMIError, "did not answer within 20s") {
		t.Errorf("of one that hangs: %q", found.Probe.SMIError)
	}
}

// TestDiagnoseLoadsNothing holds that nvidia-smi, which loads a driver that is not loaded, is not run then.
func TestDiagnoseLoadsNothing(t *testing.T) {
	t.Parallel()
	n := nodetest.GPU(t)
	if err := os.Remove(n.Host.Root + driver.Loaded); err != nil {
		t.Fatal(err)
	}
	found := diagnosisOf(n, func(ctx context.Context, c hostexec.Command) (string, error) {
		if strings.Contains(c.Program, "nvidia-smi") {
			t.Error("nvidia-smi was run without a loaded driver")
		}
		return programsOfGPUNode(ctx, c)
	}).diagnose(t.Context(), api.Diagnose{})
	if found.SMI != "" || !strings.Contains(found.Probe.SMIError, "was not run: the driver is not loaded") {
		t.Errorf("nothing says why nvidia-smi was not run: %q", found.Probe.SMIError)
	}
}

// TestDiagnoseLooksFirst holds that modules, driver and devices are read before a program of NVIDIA's may change them.
func TestDiagnoseLooksFirst(t *testing.T) {
	t.Parallel()
	n := nodetest.GPU(t)
	found := diagnosisOf(n, func(ctx context.Context, c hostexec.Command) (string, error) {
		n.Write(n.Host.Root+"/dev/nvidia0", "", 0o644) // as root's nvidia-smi does
		n.Write(n.Host.Proc+"/modules", "nvidia 1 1 - Live 0x0\nnvidia_uvm 1 1 - Live 0x0\n", 0o644)
		return programsOfGPUNode(ctx, c)
	}).diagnose(t.Context(), api.Diagnose{})
	if len(found.Probe.Devices) != 1 || len(found.Probe.Modules) != 1 {
		t.Errorf("what was read is what nvidia-smi made: %+v, %+v", found.Probe.Devices, found.Probe.Modules)
	}
}

// TestPartHangs holds that a part that never ends, or crashes, takes nothing with it.
func TestPartHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan struct{})
		var found api.Diagnosis
		slow := part{"pci", time.Second, func(context.Context) (func(*api.Diagnosis), error) {
			<-forever
			return func(d *api.Diagnosis) { d.Probe.PCI = []api.PCIDevice{{}} }, nil
		}}.start(t.Context())
		crashed := part{
			"os", time.Second, func(context.Context) (func(*api.Diagnosis), error) { panic("ouch") },
		}.start(t.Context())
		half := part{"cdi", time.Second, func(context.Context) (func(*api.Diagnosis), error) {
			return func(d *api.Diagnosis) { d.Probe.CDI = []api.CDISpec{{Path: "/x"}} }, errors.New("the other folder")
		}}.start(t.Context())
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := part{"smi", time.Hour, slow.read}.start(ctx)
		begin := time.Now()
		for _, p := range []*pending{slow, crashed, half} {
			p.wait(t.Context(), &found)
		}
		cancel(errors.New("the client is gone"))
		gone.wait(ctx, &found)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("waited %v for a part with a patience of a second", took)
		}
		close(forever)
		synctest.Wait()
		u := found.Probe.Unread
		if found.Probe.PCI != nil || !strings.Contains(u["pci"], "within 1s") || !strings.Contains(u["os"], "ouch") ||
			!strings.Contains(u["smi"], "gone") {
			t.Errorf("%+v", found.Probe)
		}
		if len(found.Probe.CDI) != 1 || u["cdi"] != "the other folder" {
			t.Errorf("of a part with a piece missing: %+v", found.Probe)
		}
	})
}

// TestFit holds that no answer is longer than the client takes, and that what was left out is told.
func TestFit(t *testing.T) {
	t.Parallel()
	const most = 100 << 10
	nasty := strings.Repeat("\x01\"\\<\u2028\xff\n", 3000)
	found := api.Diagnosis{
		SMI: nasty, Journals: map[string]string{"kubelet.service": nasty}, KernelLog: []api.KernelRecord{{Text: nasty}},
		Probe: api.Probe{Cmdline: "x"},
	}
	if size := jsonSize(t, found); size > sizeOfAll(&found) {
		t.Errorf("the estimate of %d bytes is below the real %d", sizeOfAll(&found), size)
	}
	fit(&found, most)
	if size := jsonSize(t, found); size > most {
		t.Errorf("the answer has %d bytes", size)
	}
	if found.SMI != "" || found.Probe.Unread["smi"] == "" || found.Journals != nil || found.KernelLog == nil ||
		found.Probe.Cmdline != "x" {
		t.Errorf("left out: %v", found.Probe.Unread)
	}
	small := api.Diagnosis{SMI: "x"}
	if fit(&small, most); small.SMI != "x" || small.Probe.Unread != nil {
		t.Error("something is left out of a small answer")
	}
}

func jsonSize(t *testing.T, found api.Diagnosis) int {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(api.Answer{Protocol: api.Protocol, Diagnosis: &found, Done: true}); err != nil {
		t.Fatal(err)
	}
	return out.Len()
}

func FuzzSizeOf(f *testing.F) {
	f.Add("a\"\\\n\x00\x7f\u2028\xff<é")
	f.Fuzz(func(t *testing.T, text string) {
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(text); err != nil {
			t.Fatal(err)
		}
		if out.Len() > sizeOf(text) {
			t.Errorf("%q has %d bytes in JSON, not %d at most", text, out.Len(), sizeOf(text))
		}
	})
}

// TestLastLines holds the limits of a journal: lines, bytes, and long lines.
func TestLastLines(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("line\n", 1000)
	if got := lastLines(many, 200, 1<<20); got != strings.Repeat("line\n", 200) {
		t.Errorf("%d bytes", len(got))
	}
	if got := lastLines(strings.Repeat("x", 1<<20)+"\nend\n", 200, 128<<10); len(got) > api.MaxLineText+20 ||
		!strings.HasSuffix(got, "x…\nend\n") {
		t.Errorf("a line of 1 MiB: %d bytes", len(got))
	}
	if got := lastLines(strings.Repeat(strings.Repeat("y", 4000)+"\n", 200), 200, 128<<10); len(got) > 128<<10 ||
		len(got) < 120<<10 {
		t.Errorf("%d bytes", len(got))
	}
	if got := lastLines("a\xffb", 1, 100); got != "a\uFFFDb\n" {
		t.Errorf("not UTF-8: %q", got)
	}
	for _, empty := range []string{"", "\n", "\n\n"} {
		if got := lastLines(empty, 10, 100); got != "" {
			t.Errorf("%q: %q", empty, got)
		}
	}
}

func TestStartOf(t *testing.T) {
	t.Parallel()
	line := func(ticks string) string { return "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 " + ticks + " 0 0" }
	if got := testClock().startOf(line("99000")); !got.Equal(testClock().now.Add(-10 * time.Second)) {
		t.Errorf("got %v", got)
	}
	for _, bad := range []string{"", "7 (x", "7 (x) S 1", line("x"), line("-1"), line("99999999999999999999")} {
		if got := testClock().startOf(bad); !got.IsZero() {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
