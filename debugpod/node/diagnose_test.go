package node

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
		return 0, errOverrun
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

// diagnosis returns a Diagnose of a fake node, on which no program runs but those of run.
func (n *fakeNode) diagnosis(run func(context.Context, command) (string, error), log ...string) *diagnosing {
	n.t.Helper()
	return &diagnosing{
		host: n.host, root: rootFS(n.host.Root), clock: testClock(), newInspection: n.inspection,
		run: run,
		kernelLog: func(string) (kernelBacklog, error) {
			records := backlogOf(log)
			return &records, nil
		},
	}
}

func noProgram(_ context.Context, c command) (string, error) {
	return "", fmt.Errorf("%s was run, and is not there", c.program)
}

// gpuNode returns a node of kubeadm with a GPU, its driver, and NVIDIA's toolkit.
func gpuNode(t *testing.T) *fakeNode {
	t.Helper()
	n := kubeadm(t)
	n.write(n.host.Proc+"/100/stat", "100 (kube (let)) S 1 100 100 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 50000 0 0", 0o644)
	n.write(n.host.Proc+"/100/cgroup", "0::/system.slice/kubelet.service\n", 0o644)
	n.write(n.host.Proc+"/50/cgroup", "0::/system.slice/containerd.service\n", 0o644)
	n.process(70, 1, "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-persistenced", "--verbose")
	n.write(n.host.Proc+"/70/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-x.scope\n", 0o644)
	n.write(n.host.Proc+"/modules", "nvidia 9891840 2 nvidia_uvm, Live 0x0 (POE)\next4 1 1 - Live 0x0\n", 0o644)
	n.write(n.host.Proc+"/cmdline", "root=/dev/sda pci=realloc\n", 0o644)
	n.write(n.host.Proc+"/sys/fs/inotify/max_user_instances", "128\n", 0o644)
	n.file("/etc/os-release", "ID=ubuntu\nVERSION_ID=\"24.04\"\nHOME_URL=x\n")
	n.file("/proc/driver/nvidia/version",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
	n.file("/sys/module/nvidia/version", "570.86.15\n")
	n.file("/sys/module/nvidia/taint", "OE\n")
	n.file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15", "")
	n.file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.560.35.03", "")
	n.link(n.host.Root+"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.570.86.15")
	n.file("/usr/lib/modules/6.8.0-50-generic/updates/dkms/nvidia.ko.zst", "")
	n.file("/usr/lib/modules/6.8.0-50-generic/kernel/nvidia-570/bits/nvidia-uvm.ko", "")
	n.file("/usr/lib/modules/6.8.0-51-generic/kernel/drivers/video/fbdev/nvidia/nvidiafb.ko", "")
	n.link(n.host.Root+"/lib", "/usr/lib")
	n.file("/dev/nvidiactl", "")
	n.file("/sys/fs/cgroup/cgroup.controllers", "cpu\n")
	n.file("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\x06\x00\x00\x00\x01")
	n.file("/sys/fs/selinux/enforce", "1")
	n.file("/run/nvidia/validations/driver-ready", "")
	n.file("/etc/nvidia-container-runtime/config.toml", "disable-require = false\n")
	n.program("/usr/bin/nvidia-smi")
	n.program("/usr/bin/nv-fabricmanager")
	n.program("/usr/bin/nvidia-ctk")
	n.program("/usr/bin/journalctl")
	n.units["containerd.service"] = 50
	return n
}

func programsOfGPUNode(_ context.Context, c command) (string, error) {
	switch c.program {
	case "/usr/bin/nvidia-smi":
		return "<?xml version=\"1.0\" ?>\n<nvidia_smi_log>\x01é</nvidia_smi_log>\n", nil
	case "/usr/bin/nv-fabricmanager":
		return "Fabric Manager version is : 570.86.15\n", nil
	case "/usr/bin/nvidia-ctk":
		return "NVIDIA Container Toolkit CLI version 1.17.4\ncommit: x\n", nil
	case "/usr/bin/journalctl":
		return "2026-01-01T11:00:00+0000 gpu-1 " + c.args[2] + ": hello\n", nil
	}
	return "", errors.New(c.program)
}

// TestDiagnoseWhole holds that every part finds its way from the node's files into the answer.
func TestDiagnoseWhole(t *testing.T) {
	t.Parallel()
	n := gpuNode(t)
	found := n.diagnosis(programsOfGPUNode,
		"4,17,900000000,-;NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n").
		diagnose(t.Context(), Diagnose{Units: []string{"nvidia-persistenced.service"}})
	p := found.Probe
	want := Probe{
		Time: testClock().now, Uptime: 1000 * time.Second,
		OS: map[string]string{"ID": "ubuntu", "VERSION_ID": "24.04"}, Cmdline: "root=/dev/sda pci=realloc",
		Modules: []Module{{Name: "nvidia", Version: "570.86.15", Taint: "OE"}},
		Driver: DriverFiles{Root: "/", Kernel: "570.86.15", Open: true,
			Libraries: []string{
				"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15",
				"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.560.35.03",
			},
			Built: []string{"/lib/modules/6.8.0-50-generic/updates/dkms/nvidia.ko.zst",
				"/lib/modules/6.8.0-50-generic/kernel/nvidia-570/bits/nvidia-uvm.ko",
				"/lib/modules/6.8.0-51-generic/kernel/drivers/video/fbdev/nvidia/nvidiafb.ko"},
			Kernels: []string{"6.8.0-50-generic", "6.8.0-51-generic"}},
		Devices: []DeviceNode{{Path: "/dev/nvidiactl", Mode: "0644"}}, DevChar: map[string]bool{},
		Processes:     map[string][]int{"nvidia-persistenced": {70}},
		FabricManager: "570.86.15", Validations: []string{"driver-ready"},
		ToolkitConfig: "disable-require = false\n", ToolkitConfigPath: "/etc/nvidia-container-runtime/config.toml",
		ToolkitVersion: "NVIDIA Container Toolkit CLI version 1.17.4",
		KubeletConfig:  map[string]string{"cgroupDriver": "systemd"}, CgroupVersion: 2,
		Sysctls:    map[string]string{"fs.inotify.max_user_instances": "128"},
		SecureBoot: "enabled", SELinux: "enforcing",
		Units: []Unit{
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
	if p.Unread["pci"] == "" || strings.Contains(fmt.Sprint(p.Unread), n.host.Root) {
		t.Errorf("the fake node has no PCI bus, and reasons have the node's paths: %v", p.Unread)
	}
	if found.Runtime.Instance == nil || found.Runtime.Instance.PID != 50 || found.Info.DriverVersion != "570.86.15" {
		t.Errorf("runtime %+v, info %+v", found.Runtime, found.Info)
	}
	if !strings.Contains(found.SMI, "<nvidia_smi_log>\uFFFDé<") || p.SMIError != "" {
		t.Errorf("nvidia-smi: %q, %q", found.SMI, p.SMIError)
	}
	record := KernelRecord{
		Sequence: 17, Uptime: 900 * time.Second, Time: time.Date(2026, 1, 1, 11, 58, 20, 0, time.UTC), Priority: 4,
		Text: "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.",
	}
	if diff := cmp.Diff([]KernelRecord{record}, found.KernelLog); diff != "" {
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
	n := newFakeNode(t)
	d := n.diagnosis(noProgram)
	d.host.Root, d.root = n.host.Root+"/nowhere", rootFS(n.host.Root+"/nowhere")
	d.kernelLog = func(string) (kernelBacklog, error) { return nil, errors.New("no kernel log") }
	found := d.diagnose(t.Context(), Diagnose{})
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
		"no XML":    {out: "hello\n", want: "wrote no XML: hello"},
		"too much":  {out: "<nvidia_smi_log>" + strings.Repeat("x", maxSMI), want: "wrote more than"},
		"not UTF-8": {out: "<nvidia_smi_log>\xff</nvidia_smi_log>", wantSMI: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t)
			n.program("/usr/bin/nvidia-smi")
			n.file(loadedDriver, "")
			d := n.diagnosis(func(_ context.Context, c command) (string, error) {
				if tc.err == nil {
					return tc.out, nil
				}
				return tc.out, &exitError{c.program, tc.err, tc.said}
			})
			put, err := d.smi(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var found Diagnosis
			put(&found)
			if (found.SMI != "") != tc.wantSMI || !strings.Contains(found.Probe.SMIError, tc.want) ||
				!utf8.ValidString(found.SMI) || tc.want == "" && found.Probe.SMIError != "" {
				t.Errorf("got %d bytes and %q, want %q", len(found.SMI), found.Probe.SMIError, tc.want)
			}
		})
	}
	n := newFakeNode(t)
	n.program("/usr/bin/nvidia-smi")
	n.file(loadedDriver, "")
	put, _ := n.diagnosis(func(context.Context, command) (string, error) {
		return "", errors.New("/usr/bin/nvidia-smi did not answer within 20s")
	}).smi(t.Context())
	var found Diagnosis
	put(&found)
	if !strings.Contains(found.Probe.SMIError, "did not answer within 20s") {
		t.Errorf("of one that hangs: %q", found.Probe.SMIError)
	}
}

// TestDiagnoseLoadsNothing holds that nvidia-smi, which loads a driver that is not loaded, is not run then.
func TestDiagnoseLoadsNothing(t *testing.T) {
	t.Parallel()
	n := gpuNode(t)
	if err := os.Remove(n.host.Root + loadedDriver); err != nil {
		t.Fatal(err)
	}
	found := n.diagnosis(func(ctx context.Context, c command) (string, error) {
		if strings.Contains(c.program, "nvidia-smi") {
			t.Error("nvidia-smi was run without a loaded driver")
		}
		return programsOfGPUNode(ctx, c)
	}).diagnose(t.Context(), Diagnose{})
	if found.SMI != "" || !strings.Contains(found.Probe.SMIError, "was not run: the driver is not loaded") {
		t.Errorf("nothing says why nvidia-smi was not run: %q", found.Probe.SMIError)
	}
}

// TestDiagnoseLooksFirst holds that modules, driver and devices are read before a program of NVIDIA's may change them.
func TestDiagnoseLooksFirst(t *testing.T) {
	t.Parallel()
	n := gpuNode(t)
	found := n.diagnosis(func(ctx context.Context, c command) (string, error) {
		n.write(n.host.Root+"/dev/nvidia0", "", 0o644) // as root's nvidia-smi does
		n.write(n.host.Proc+"/modules", "nvidia 1 1 - Live 0x0\nnvidia_uvm 1 1 - Live 0x0\n", 0o644)
		return programsOfGPUNode(ctx, c)
	}).diagnose(t.Context(), Diagnose{})
	if len(found.Probe.Devices) != 1 || len(found.Probe.Modules) != 1 {
		t.Errorf("what was read is what nvidia-smi made: %+v, %+v", found.Probe.Devices, found.Probe.Modules)
	}
}

// TestPartHangs holds that a part that never ends, or crashes, takes nothing with it.
func TestPartHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan struct{})
		var found Diagnosis
		slow := part{"pci", time.Second, func(context.Context) (func(*Diagnosis), error) {
			<-forever
			return func(d *Diagnosis) { d.Probe.PCI = []PCIDevice{{}} }, nil
		}}.start(t.Context())
		crashed := part{
			"os", time.Second, func(context.Context) (func(*Diagnosis), error) { panic("ouch") },
		}.start(t.Context())
		half := part{"cdi", time.Second, func(context.Context) (func(*Diagnosis), error) {
			return func(d *Diagnosis) { d.Probe.CDI = []CDISpec{{Path: "/x"}} }, errors.New("the other folder")
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

func TestDiagnoseValidate(t *testing.T) {
	t.Parallel()
	for unit, want := range map[string]bool{
		"kubelet.service": true, "snap.k8s.containerd.service": true, "getty@tty1.service": true,
		`a\x2db.service`: true, "crio.service": true,
		"": false, "kubelet": false, "-o.service": false, "--merge": false, "*.service": false, "a b.service": false,
		"a/b.service": false, "[ab].service": false,
		"x\n.service": false, "kubelet.service\n": false, strings.Repeat("x", 250) + ".service": false,
	} {
		if err := (Diagnose{Units: []string{unit}}).Validate(); (err == nil) != want {
			t.Errorf("%q: %v", unit, err)
		}
	}
	if err := (Diagnose{Units: make([]string, maxUnits+1)}).Validate(); err == nil {
		t.Error("any number of units is taken")
	}
	if _, err := decodeRequest([]byte(`{"protocol":1,"diagnose":{"units":["*"]}}`)); err == nil ||
		err.Code != CodeBadRequest {
		t.Errorf("the helper takes a pattern: %v", err)
	}
}

// TestServeDiagnose holds that the answer is one line that the client takes.
func TestServeDiagnose(t *testing.T) {
	t.Parallel()
	n := gpuNode(t)
	in, client := io.Pipe()
	defer func() { _ = client.Close() }()
	go func() { _, _ = io.WriteString(client, `{"protocol":1,"diagnose":{}}`+"\n") }()
	var out bytes.Buffer
	host := n.host
	host.Kmsg = n.host.Root + "/no-kmsg"
	if err := Serve(t.Context(), in, &out, host); err != nil {
		t.Fatal(err)
	}
	if a := only(t, &out); !a.Done || a.Diagnosis == nil || a.Diagnosis.Probe.OS["ID"] != "ubuntu" {
		t.Errorf("got %+v", a)
	}
}

// TestFit holds that no answer is longer than the client takes, and that what was left out is told.
func TestFit(t *testing.T) {
	t.Parallel()
	const most = 100 << 10
	nasty := strings.Repeat("\x01\"\\<\u2028\xff\n", 3000)
	found := Diagnosis{
		SMI: nasty, Journals: map[string]string{"kubelet.service": nasty}, KernelLog: []KernelRecord{{Text: nasty}},
		Probe: Probe{Cmdline: "x"},
	}
	if size := jsonSize(t, found); size > found.size() {
		t.Errorf("the estimate of %d bytes is below the real %d", found.size(), size)
	}
	found.fit(most)
	if size := jsonSize(t, found); size > most {
		t.Errorf("the answer has %d bytes", size)
	}
	if found.SMI != "" || found.Probe.Unread["smi"] == "" || found.Journals != nil || found.KernelLog == nil ||
		found.Probe.Cmdline != "x" {
		t.Errorf("left out: %v", found.Probe.Unread)
	}
	small := Diagnosis{SMI: "x"}
	if small.fit(most); small.SMI != "x" || small.Probe.Unread != nil {
		t.Error("something is left out of a small answer")
	}
}

func jsonSize(t *testing.T, found Diagnosis) int {
	t.Helper()
	var out bytes.Buffer
	if err := newAnswers(&out).done(Answer{Diagnosis: &found}); err != nil {
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

func TestShorten(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		most int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aé", 2, "a…"}, {"aaé", 4, "aaé"}, {"", 0, ""}, {"日本", 4, "日…"},
		{"\xff\xff\xff\xff\xff\xff", 5, "\xff…"},
	} {
		if got := shorten(tc.text, tc.most); got != tc.want {
			t.Errorf("%q in %d bytes: got %q, want %q", tc.text, tc.most, got, tc.want)
		}
	}
}

// TestLastLines holds the limits of a journal: lines, bytes, and long lines.
func TestLastLines(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("line\n", 1000)
	if got := lastLines(many, 200, 1<<20); got != strings.Repeat("line\n", 200) {
		t.Errorf("%d bytes", len(got))
	}
	if got := lastLines(strings.Repeat("x", 1<<20)+"\nend\n", 200, 128<<10); len(got) > maxLineText+20 ||
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

func TestKept(t *testing.T) {
	t.Parallel()
	first, last := kept{most: 4}, kept{most: 4, last: true}
	for _, w := range []string{"ab", "cd", "ef", "", strings.Repeat("g", 100), "xyz"} {
		for _, k := range []*kept{&first, &last} {
			if n, err := k.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatalf("a short write would stop the program: %d, %v", n, err)
			}
		}
	}
	if first.String() != "abcd" || last.String() != "gxyz" || !first.cut || !last.cut {
		t.Errorf("%q, %q", first.String(), last.String())
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
