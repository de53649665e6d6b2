//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// injected is the part of `xid -o json` that the tests look at.
type injected struct {
	ID    string       `json:"id"`
	Phase ledger.Phase `json:"phase"`
	Nodes []struct {
		Node    string `json:"node"`
		Records []struct {
			XID      string    `json:"xid"`
			GPU      string    `json:"gpu"`
			Sequence uint64    `json:"sequence"`
			Time     time.Time `json:"time"`
			Text     string    `json:"text"`
		} `json:"records"`
		CUDA struct { // of --real
			Code int    `json:"code"`
			GPU  string `json:"gpu"`
		} `json:"cuda"`
	} `json:"nodes"`
}

func (e *env) inject(args ...string) injected {
	e.t.Helper()
	var out injected
	e.decode(e.ok(append(append([]string{"xid"}, args...), "--yes", "-o", "json")...).stdout, &out)
	return out
}

// The whole story: the line is in the node's kernel log, a real detector saw it, on that node only, the ledger has the
// record, an Event tells it on the node, no pod is left, and revert says the truth.
func TestXID79FromInjectionToDetection(t *testing.T) {
	e := setup(t)
	e.worker.RestartNPD(t)
	cluster.Eventually(t, patience, "node-problem-detector has set its condition to False", func() (bool, string) {
		c := e.condition(e.worker.Name, "GPUXid")
		return c.Status == corev1.ConditionFalse, string(c.Status)
	})

	before := time.Now().Add(-time.Second)
	out := e.inject("79", e.worker.Name)
	if out.Phase != ledger.Proven || len(out.Nodes) != 1 || len(out.Nodes[0].Records) != 1 {
		t.Fatalf("wanted one proven record on one node: %+v", out)
	}
	record := out.Nodes[0].Records[0]
	gpu := e.worker.GPUs[0].PCI
	if record.GPU != gpu || !strings.Contains(record.Text, "NVRM: Xid (PCI:"+gpu+"): 79, ") ||
		!strings.HasSuffix(record.Text, "GPU has fallen off the bus.") {
		t.Errorf("the line is not the driver's for GPU 0 (%s): %q", gpu, record.Text)
	}
	if record.Time.Before(before) || record.Time.After(time.Now().Add(time.Second)) {
		t.Errorf("the record's time %s is not now (%s)", record.Time, time.Now())
	}

	cluster.Eventually(t, patience, "node-problem-detector sets GPUXid on "+e.worker.Name, func() (bool, string) {
		c := e.condition(e.worker.Name, "GPUXid")
		return c.Status == corev1.ConditionTrue &&
			strings.Contains(c.Message, gpu), fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
	})

	runs := e.runs()
	if len(runs) != 1 || runs[0].ID != out.ID || runs[0].Phase != ledger.Proven || runs[0].By == "" {
		t.Errorf("list shows %+v, wanted the one proven run %s with its user", runs, out.ID)
	}
	cluster.Eventually(t, patience, "an Event tells of the injection on the node", func() (bool, string) {
		events, err := e.cluster.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, ev := range events.Items {
			if ev.InvolvedObject.Name == e.worker.Name && strings.Contains(ev.Message, out.ID) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d events, none with %s", len(events.Items), out.ID)
	})
	e.noPods()

	r := e.ok("revert", out.ID, "--yes")
	for _, part := range []string{"cannot be removed", "NVSentinel", "node-problem-detector"} {
		if !strings.Contains(r.stdout+r.stderr, part) {
			t.Errorf("revert does not say %q:\n%s%s", part, r.stdout, r.stderr)
		}
	}
	if runs := e.runs(); len(runs) != 0 {
		t.Errorf("after revert list still shows %+v", runs)
	}
	if runs := e.runs("--all"); len(runs) != 1 || runs[0].Phase != ledger.Reverted {
		t.Errorf("the history does not have the reverted run: %+v", runs)
	}
	e.ok("revert", out.ID, "--yes") // idempotent
}

// journald must file our line as the kernel's, whole, or NVSentinel does not see it.
func TestJournaldFilesTheLineAsTheKernels(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.inject("79", e.worker.Name, "--gpu", "1", "--process", "4711,journald-test")
	want := fmt.Sprintf("NVRM: Xid (PCI:%s): 79, pid=4711, name=journald-test, GPU has fallen off the bus.",
		e.worker.GPUs[1].PCI)
	cluster.Eventually(t, patience, "the journal of "+e.worker.Name+" has the line", func() (bool, string) {
		var last string
		for line := range strings.Lines(e.worker.Sh(t, "journalctl", "-k", "-o", "json", "--no-pager")) {
			var entry map[string]any
			if json.Unmarshal([]byte(line), &entry) != nil || entry["MESSAGE"] != want {
				continue
			}
			last = line
			if entry["SYSLOG_IDENTIFIER"] == "kernel" && entry["_TRANSPORT"] == "kernel" {
				return true, ""
			}
		}
		return false, "last entry with that message: " + last
	})
}

func TestGPUsByIndexUUIDAddressAndAll(t *testing.T) {
	t.Parallel()
	e := setup(t)
	first, second := e.worker.GPUs[0], e.worker.GPUs[1]
	for choice, want := range map[string][]string{
		"1": {second.PCI}, first.UUID: {first.PCI}, second.PCI: {second.PCI},
		strings.ToUpper(second.PCI) + ".0": {second.PCI}, "all": {first.PCI, second.PCI},
	} {
		out := e.inject("43", e.worker.Name, "--gpu", choice)
		var got []string
		for _, r := range out.Nodes[0].Records {
			got = append(got, r.GPU)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("--gpu %s wrote for %v, wanted %v", choice, got, want)
		}
	}
}

func TestTheGPUAndProcessOfAPod(t *testing.T) {
	t.Parallel()
	e := setup(t)
	ns := e.cluster.Namespace(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "trainer"},
		Spec: corev1.PodSpec{
			NodeName: e.worker.Name,
			Containers: []corev1.Container{{
				Name: "app", Image: "docker.io/library/busybox:1.35", ImagePullPolicy: corev1.PullIfNotPresent,
				Command:   []string{"sleep", "600"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": quantity("1")}},
			}},
		},
	}
	if _, err := e.cluster.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "the pod with a GPU runs", func() (bool, string) {
		p, err := e.cluster.Client.CoreV1().Pods(ns).Get(t.Context(), "trainer", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return p.Status.Phase == corev1.PodRunning, string(p.Status.Phase) + p.Status.Message
	})
	out := e.inject("31", "--pod", "trainer", "-n", ns)
	record := out.Nodes[0].Records[0]
	held := strings.TrimSpace(e.kubectl("exec", "-n", ns, "trainer", "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"))
	for _, g := range e.worker.GPUs {
		if (g.UUID == held) != (g.PCI == record.GPU) {
			t.Errorf("the pod holds %s, the line is for %s (GPU %s is at %s)", held, record.GPU, g.UUID, g.PCI)
		}
	}
	if !regexp.MustCompile(`pid=\d+, name=sleep, `).MatchString(record.Text) {
		t.Errorf("the line does not name the pod's process: %q", record.Text)
	}
}

// Many records through one command: none lost, in order, each with its own sequence number. They are few enough to
// leave the lines of other tests in the kernel log, which all clusters of a machine share and which may have no more
// than 128 KiB.
func TestABurstLosesNothing(t *testing.T) {
	t.Parallel()
	setup(t).burst(100)
}

// A thousand records in under two seconds, from the first to the last. It needs the processors and the kernel log for
// itself.
func TestAThousandRecordsInTwoSeconds(t *testing.T) {
	if took := setup(t).burst(1000); took > 2*time.Second {
		t.Errorf("the records lie %s apart, wanted at most 2s", took)
	}
}

// burst writes records, and returns the time between the first and the last.
func (e *env) burst(count int) time.Duration {
	e.t.Helper()
	records := e.inject("63", e.worker.Name, "--count", fmt.Sprint(count)).Nodes[0].Records
	if len(records) != count {
		e.t.Fatalf("%d records are proven, wanted %d", len(records), count)
	}
	for i := 1; i < len(records); i++ {
		if records[i].Sequence <= records[i-1].Sequence {
			e.t.Fatalf("record %d has sequence %d after %d", i, records[i].Sequence, records[i-1].Sequence)
		}
	}
	return records[count-1].Time.Sub(records[0].Time)
}

func TestCascadeWritesTheGroupInOrder(t *testing.T) {
	t.Parallel()
	e := setup(t)
	out := e.inject("79", e.worker.Name, "--cascade")
	var codes []string
	for _, r := range out.Nodes[0].Records {
		codes = append(codes, r.XID)
	}
	joined := strings.Join(codes, " ")
	if !strings.Contains(joined, "79") || !strings.Contains(joined, "154") || len(codes) < 3 {
		t.Errorf("the cascade of 79 wrote %v; in reality 154 and others come with it", codes)
	}
}

func TestFormsAndSpecialRecords(t *testing.T) {
	t.Parallel()
	e := setup(t)
	gpu := e.worker.GPUs[0].PCI
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"plain":   {[]string{"48", "--form", "plain"}, `^NVRM: Xid \(PCI:` + gpu + `\): 48, `},
		"bracket": {[]string{"48", "--form", "bracket"}, `^\[ *\d+\.\d+\] NVRM: Xid \(PCI:` + gpu + `\): 48, `},
		"kernel":  {[]string{"48", "--form", "kernel"}, `^kernel: NVRM: Xid \(PCI:` + gpu + `\): 48, `},
		"switch": {
			[]string{"sxid:20034", "--gpu", gpu, "--switch", "3", "--link", "29"},
			`nvidia-nvswitch3: SXid \(PCI:` + gpu + `\.0\): 20034, Fatal, Link 29 `,
		},
		"fallen": {
			[]string{"fallen-off-bus"},
			`NVRM: The NVIDIA GPU ` + gpu +
				`\.0\\x0aNVRM: \(PCI ID: .*fallen off the bus and is not responding to commands`,
		},
		"message": {[]string{"999", "--message", "our own words"}, `Xid \(PCI:` + gpu + `\): 999, .*our own words`},
	} {
		t.Run(name, func(t *testing.T) {
			out := e.inject(append([]string{test.args[0], e.worker.Name}, test.args[1:]...)...)
			if text := out.Nodes[0].Records[0].Text; !regexp.MustCompile(test.want).MatchString(text) {
				t.Errorf("wrote %q, wanted %s", text, test.want)
			}
		})
	}
}

// Several nodes in one run, one record per node, each with its own GPU. Each node's detector takes only its own.
func TestSeveralNodesAtOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	out := e.inject("63", "-l", "nvidia.com/gpu.present=true,!type", "--allow-control-plane", "--allow-last-gpu-node",
		"--allow-majority")
	if len(out.Nodes) != len(e.cluster.Nodes()) {
		t.Fatalf("%d nodes were written to, wanted all %d", len(out.Nodes), len(e.cluster.Nodes()))
	}
	seen := map[string]bool{}
	for _, n := range out.Nodes {
		seen[n.Records[0].GPU] = true
	}
	if len(seen) != len(out.Nodes) {
		t.Errorf("the nodes' GPUs are not their own: %v", seen)
	}
}

func TestReplayAnExcerptOntoTheNodesGPU(t *testing.T) {
	t.Parallel()
	e := setup(t)
	excerpt := filepath.Join(t.TempDir(), "dmesg.txt")
	text := `[  100.000000] usb 1-1: new device
[  101.000000] NVRM: GPU at PCI:0000:c7:00: GPU-455e672a-0000-1111-2222-333344445555
[  101.000100] NVRM: Xid (PCI:0000:c7:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  101.300000] NVRM: Xid (PCI:0000:c7:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
`
	if err := os.WriteFile(excerpt, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out injected
	e.decode(e.ok("xid", "replay", excerpt, e.worker.Name, "--yes", "-o", "json").stdout, &out)
	records := out.Nodes[0].Records
	if len(records) != 3 {
		t.Fatalf("%d records, wanted the 3 of the NVIDIA driver: %+v", len(records), records)
	}
	for _, r := range records {
		if strings.Contains(r.Text, "c7:00") || !strings.Contains(r.Text, e.worker.GPUs[0].PCI) {
			t.Errorf("the address was not mapped to the node's GPU: %q", r.Text)
		}
	}
	if gap := records[2].Time.Sub(records[1].Time); gap < 200*time.Millisecond || gap > 2*time.Second {
		t.Errorf("the excerpt has 0.3 s between its last lines, the replay %s", gap)
	}
}
