package xid

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
)

var regexpProcess = regexp.MustCompile(`pid=\S+ name=[^,]+, `)

// twoGPUs returns a node whose device minors differ from nvidia-smi's order, as on many real machines.
func twoGPUs() api.Info {
	return api.Info{
		DriverVersion: "590.48.01",
		GPUs: []api.GPU{
			{Index: 0, Minor: 1, UUID: "GPU-11111111-1111-1111-1111-111111111111", PCI: "0000:17:00.0"},
			{Index: 1, Minor: 0, UUID: "GPU-22222222-2222-2222-2222-222222222222", PCI: "0000:1f:00.0"},
		},
		Pods: map[string]api.PodUse{
			"pod-uid": {GPUs: []string{"GPU-22222222-2222-2222-2222-222222222222"}, PID: 4711, Process: "python3"},
		},
	}
}

func parse(t *testing.T, change func(*flags), args ...string) (*options, error) {
	t.Helper()
	f := newFlags()
	if change != nil {
		change(f)
	}
	return f.toOptions(args)
}

func inCluster(f *flags) {
	f.Fleet.InCluster = true
	f.Pods.Image = "r.example/i:gpu-fault-0123456789ab-amd64-0123456789ab"
}

// What can be known to be wrong without a cluster is refused without a cluster.
func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*flags)
		args   []string
		want   string
	}{
		"code 0":              {nil, []string{"0", "n"}, "0"},
		"code that is a word": {nil, []string{"bus", "n"}, "bus"},
		"code unknown":        {nil, []string{"79,999", "n"}, "--message"},
		"no node":             {nil, []string{"79"}, "no target"},
		"gpu":                 {func(f *flags) { f.gpu = "0000:17" }, []string{"79", "n"}, "0000:17"},
		"mig": {
			func(f *flags) { f.gpu = "MIG-11111111-1111-1111-1111-111111111111" }, []string{"79", "n"}, "MIG",
		},
		"message":          {func(f *flags) { f.message = "a\nb" }, []string{"79", "n"}, "--message"},
		"long message":     {func(f *flags) { f.message = strings.Repeat("x", 990) }, []string{"79", "n"}, "976"},
		"process":          {func(f *flags) { f.process = "1,a,b" }, []string{"79", "n"}, "--process"},
		"count":            {func(f *flags) { f.count = 1e6 }, []string{"79", "n"}, "--count"},
		"interval":         {func(f *flags) { f.interval = -1 }, []string{"79", "n"}, "--interval"},
		"interval for one": {func(f *flags) { f.interval = 1 }, []string{"79", "n"}, "--count"},
		"days of writing": {
			func(f *flags) { f.count, f.interval = 10000, time.Hour }, []string{"79", "n"}, "longer than",
		},
		"timeout": {func(f *flags) { f.Pods.Timeout = time.Millisecond }, []string{"79", "n"}, "--timeout"},
		"fleet without the plugin": {
			func(f *flags) { f.Fleet.InCluster = true }, []string{"79", "n"}, "image push REPOSITORY --with-plugin",
		},
		"fleet with layers": {
			func(f *flags) { inCluster(f); f.layers.layers = []string{"kernel", "device"} }, []string{"79", "n"},
			"--in-cluster cannot be used with --layers",
		},
		"fleet of a pod": {
			func(f *flags) { inCluster(f); f.Nodes.Pod = "p" }, []string{"79"},
			"--in-cluster cannot be used with --pod",
		},
		"escapes too long": {func(f *flags) { f.message = strings.Repeat("é", 450) }, []string{"79", "n"}, "1900"},
		"switch of no switch": {
			func(f *flags) { f.swtch = 1 }, []string{"79", "n"}, "--switch requires an NVSwitch",
		},
		"cascade of a record": {func(f *flags) { f.cascade = true }, []string{"fallen-off-bus", "n"}, "--cascade"},
		"unset variable":      {nil, []string{"79", ""}, "variable unset"},
		"cascade of nothing":  {func(f *flags) { f.cascade = true }, []string{"16", "n"}, "cascade"},
		"switch without one":  {nil, []string{"sxid:20034", "n"}, "--gpu 0000:05:00"},
		"node before code":    {nil, []string{"n", "79"}, "the code comes before the node: xid 79 n"},
		"link of no switch": {
			func(f *flags) { f.link = 3 }, []string{"79", "n"}, "--link requires an NVSwitch",
		},
		"mig instance": {func(f *flags) { f.mig = "five" }, []string{"79", "n"}, "--mig"},
		"driver":       {func(f *flags) { f.driver = "new" }, []string{"79", "n"}, "--driver"},
		"unknown way":  {func(f *flags) { f.via = "mail" }, []string{"79", "n"}, "kmsg, kmod"},
		"form of the module": {
			func(f *flags) { f.via, f.form = "kmod", "kernel" }, []string{"79", "n"}, "remove --form kernel",
		},
		"module for kmsg":  {func(f *flags) { f.module.path = "x.ko" }, []string{"79", "n"}, "--via kmod"},
		"headers for kmsg": {func(f *flags) { f.module.headers = "/usr/src" }, []string{"79", "n"}, "--via kmod"},
		"module and headers": {
			func(f *flags) { f.via, f.module.path, f.module.headers = "kmod", "x.ko", "/usr/src" }, []string{"79", "n"},
			"cannot be used together",
		},
		"relative headers": {
			func(f *flags) { f.via, f.module.headers = "kmod", "src" }, []string{"79", "n"}, "absolute path",
		},
		"no builder": {
			func(f *flags) { f.via, f.module.builder = "kmod", "" }, []string{"79", "n"}, "--builder-image",
		},
		"no such module": {
			func(f *flags) { f.via, f.module.path = "kmod", "/nonexistent.ko" }, []string{"79", "n"}, "--ko",
		},
		"module of nothing": {
			func(f *flags) {
				f.via, f.module.path = "kmod", "options_test.go"
			}, []string{"79", "n"}, "not a kernel module",
		},
		"not ASCII by kmod": {
			func(f *flags) { f.via, f.message = "kmod", "Größe" }, []string{"79", "n"}, "printable ASCII",
		},
		"parallel": {func(f *flags) { f.Parallel = -1 }, []string{"79", "n"}, "--parallel"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := parse(t, test.change, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, wanted one with %q", err, test.want)
			}
		})
	}
}

func lines(records []kernellog.Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, strings.TrimSuffix(r.Data, "\n"))
	}
	return all
}

func TestLinesForANode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*flags)
		code   string
		podUID string
		want   []string
	}{
		"the first GPU": {
			nil, "79", "", []string{"<4>kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."},
		},
		"all GPUs, no process": {
			func(f *flags) { f.gpu, f.process = "all", "none" }, "79", "",
			[]string{
				"<4>kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
				"<4>kernel: NVRM: Xid (PCI:0000:1f:00): 79, GPU has fallen off the bus.",
			},
		},
		"two GPUs by name, each once": {
			func(f *flags) { f.gpu, f.process = "1,0000:17:00,1", "none" }, "79", "",
			[]string{
				"<4>kernel: NVRM: Xid (PCI:0000:1f:00): 79, GPU has fallen off the bus.",
				"<4>kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
			},
		},
		"the pod's GPU and process": {
			nil, "79", "pod-uid",
			[]string{"<4>kernel: NVRM: Xid (PCI:0000:1f:00): 79, pid=4711, name=python3, GPU has fallen off the bus."},
		},
		"a MIG instance": {
			func(f *flags) { f.mig, f.process = "5/0", "none" }, "79", "",
			[]string{"<4>kernel: NVRM: Xid (PCI:0000:17:00 GPU-I:05 GPU-CI:00): 79, GPU has fallen off the bus."},
		},
		"as the kernel's own": {
			func(f *flags) { f.via = "kmod" }, "79", "",
			[]string{"<4>NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."},
		},
		"our own message": {
			func(f *flags) { f.message, f.form = "something new", "plain" }, "999", "",
			[]string{"<4>NVRM: Xid (PCI:0000:17:00): 999, something new"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := parse(t, test.change, test.code, "n")
			if err != nil {
				t.Fatal(err)
			}
			places, err := o.places(twoGPUs(), gpus.Pod{Namespace: "ns", Name: "p", UID: test.podUID})
			if err != nil {
				t.Fatal(err)
			}
			records, err := o.compose(places)
			if err != nil {
				t.Fatal(err)
			}
			got := lines(records)
			if name == "the first GPU" { // the catalog may blame a process
				got[0] = regexpProcess.ReplaceAllString(got[0], "")
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// The lines of a cascade that are about other GPUs name these in their records, and the record of a GPU that has fallen
// off the bus names the node's own model.
func TestRecordsNameTheirOwnGPU(t *testing.T) {
	t.Parallel()
	info := twoGPUs()
	info.GPUs[0].DeviceID = "10de:2335"
	for code, want := range map[string]string{"74": "0000:1f:00", "fallen-off-bus": "0000:17:00"} {
		o, err := parse(t, func(f *flags) { f.cascade = code == "74" }, code, "n", "--gpu=0")
		if err != nil {
			t.Fatal(err)
		}
		places, err := o.places(info, gpus.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		records, err := o.compose(places)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, r := range records {
			if !strings.Contains(r.Data, r.GPU) {
				t.Errorf("%s: the record of %s is %q", code, r.GPU, r.Data)
			}
			found = found || r.GPU == want
			if code == "fallen-off-bus" && !strings.Contains(r.Data, "(PCI ID: 10de:2335)") {
				t.Errorf("the device ID of an H200 is missing: %q", r.Data)
			}
		}
		if !found {
			t.Errorf("%s: no record of %s in %+v", code, want, records)
		}
	}
}

func TestCountAndInterval(t *testing.T) {
	t.Parallel()
	o, err := parse(t, func(f *flags) { f.count, f.interval = 3, time.Second }, "63,64", "n")
	if err != nil {
		t.Fatal(err)
	}
	records, err := o.compose(o.sample())
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 6 {
		t.Fatalf("%d records, wanted 3 times 2", len(records))
	}
	if duration(records) != 2*time.Second || records[0].Delay != 0 || records[2].Delay != time.Second ||
		records[3].Delay != 0 {
		t.Errorf("delays %v: wanted a second before the second and the third pair", records)
	}
}

func TestGPUsThatAreNotThere(t *testing.T) {
	t.Parallel()
	for choice, want := range map[string]string{
		"2": "1  0000:1f:00  GPU-2222", "0000:c7:00": "0  0000:17:00  GPU-1111",
		"GPU-33333333-3333-3333-3333-333333333333": "GPU-33333333-3333-3333-3333-333333333333 not found",
	} {
		c, err := gpus.Parse(choice)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Pick(twoGPUs(), gpus.Pod{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--gpu %s: error %v, wanted one that lists %q", choice, err, want)
		}
		_, err = c.Pick(api.Info{}, gpus.Pod{})
		if byAddress := c.Address() != nil; (err == nil) != byAddress {
			t.Errorf("--gpu %s on a node without a driver: %v; only an address can be used there", choice, err)
		}
	}
}

func TestReplayMapsAddressesAndKeepsGaps(t *testing.T) {
	t.Parallel()
	log, err := xid.ParseLog(
		strings.NewReader(`[  100.000000] NVRM: GPU at PCI:0000:c7:00: GPU-455e672a-0000-1111-2222-333344445555
[  101.000000] NVRM: Xid (PCI:0000:c7:00): 79, GPU has fallen off the bus.
[  701.000000] NVRM: Xid (PCI:0000:c8:00): 45, pid=1, name=x, Ch 00000008
`),
	)
	if err != nil {
		t.Fatal(err)
	}
	all, _ := gpus.Parse("all")
	r := &replay{entries: log.Entries, gpus: all, form: xid.FormPlain, speed: 2, maxGap: time.Minute}
	records, err := r.compose(twoGPUs(), gpus.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"<4>NVRM: GPU at PCI:0000:17:00: GPU-11111111-1111-1111-1111-111111111111",
		"<4>NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
		"<4>NVRM: Xid (PCI:0000:1f:00): 45, pid=1, name=x, Ch 00000008",
	}
	if diff := cmp.Diff(want, lines(records)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if records[1].Delay != 500*time.Millisecond || records[2].Delay != time.Minute {
		t.Errorf("delays %s and %s: wanted half a second (twice as fast) and a minute (the longest gap)",
			records[1].Delay, records[2].Delay)
	}
	first, _ := gpus.Parse("0")
	r.gpus = first
	if _, err := r.compose(twoGPUs(), gpus.Pod{}); err == nil || !strings.Contains(err.Error(), "--map 0000:c8:00=") {
		t.Errorf("two GPUs onto one: %v", err)
	}
}

// Whatever is typed behind --gpu and --map, it is understood or refused with a reason, and never crashes.
func FuzzParseGPU(f *testing.F) {
	for _, seed := range []string{
		"0", "all", "-1", "0000:17:00", "GPU-11111111-1111-1111-1111-111111111111", "MIG-x", "17:00.0", "a=b",
		"0000:c7:00=0000:17:00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		choice, err := gpus.Parse(text)
		if err == nil && choice.String() == "" {
			t.Errorf("%q was understood as nothing", text)
		}
		if err != nil && err.Error() == "" {
			t.Errorf("%q was refused without a reason", text)
		}
		if maps, err := parseMaps([]string{text}); err == nil && len(maps) != 1 {
			t.Errorf("--map %q was taken for %v", text, maps)
		}
	})
}

func TestReplaySpeedsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	r := &replay{speed: 0.001, maxGap: time.Minute}
	if got := r.delay(1 << 62); got != time.Minute {
		t.Errorf("a slow replay of a long gap waits %s, wanted the longest gap", got)
	}
	for _, speed := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		f := &replayFlags{inject: newInject(), speed: speed}
		if _, err := f.writing([]string{"-", "n"}, genericiooptions.NewTestIOStreamsDiscard()); err == nil ||
			!strings.Contains(err.Error(), "--speed") {
			t.Errorf("--speed %g: %v", speed, err)
		}
	}
}
