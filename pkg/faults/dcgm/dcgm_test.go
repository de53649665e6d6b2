package dcgm

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const uuid = "GPU-d6a2c177-4cd8-8d01-0310-79f2720f37de"

// discovery is from NVIDIA/DCGM#229, with the end of the list from KempnerInstitute/kempnerpulse#15.
const discovery = `2 GPUs found (Active).
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: <<<NULL>>>                                                     |
|        | PCI Bus ID: 00000000:4C:00.0                                         |
|        | Device UUID: GPU-75c4ee16-a840-6f6c-9a7b-5ed8f41598b8                |
+--------+----------------------------------------------------------------------+
| 3      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:5D:00.0 (last known)                            |
|        | Device UUID: GPU-d6a2c177-4cd8-8d01-0310-79f2720f37de (last known)   |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
`

// TestParse protects the reading of dcgmi's answers.
func TestParse(t *testing.T) {
	t.Parallel()
	if got := parseGPUs([]byte(discovery)); len(got) != 2 || got[strings.ToLower(uuid)] != 3 {
		t.Errorf("parseGPUs: %v", got)
	}
	for text, want := range map[string]int{
		"#Entity   XIDER\nID\nGPU 3     79\n": 79, "# Entity  XIDER\n      Id\n    GPU 3  0\n": 0, "GPU 3 N/A\n": 0,
		"GPU 4     79\n": -1, "GPU 33    79\n": -1, "Error: 79\n": -1, "": -1,
	} {
		got, ok := parseXID([]byte(text), 3)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("parseXID(%q): %d, want %d", text, got, want)
		}
	}
}

// FuzzParse: whatever a container prints, it has no panic and no number that is not printed.
func FuzzParse(f *testing.F) {
	f.Add(discovery)
	f.Add("#Entity   XIDER\nGPU 3     79\n")
	f.Fuzz(func(t *testing.T, text string) {
		for uuid, id := range parseGPUs([]byte(text)) {
			if !strings.Contains(strings.ToLower(text), uuid) || !strings.Contains(text, strconv.Itoa(int(id))) {
				t.Errorf("%s %d is not in %q", uuid, id, text)
			}
		}
		if xid, ok := parseXID([]byte(text), 3); ok && (xid < 0 || xid > 99999) {
			t.Errorf("XID %d", xid)
		}
	})
}

// engine is a host engine.
type engine struct {
	dead bool
	last map[string]string
}

func (e *engine) Exec(_ context.Context, _ *corev1.Pod, _ string, command []string, s debugpod.Streams) error {
	if e.dead {
		fmt.Fprintln(s.Err, "Error: unable to establish a connection to the specified host: localhost")
		return fmt.Errorf("command terminated with exit code 1")
	}
	args := strings.Join(command, " ")
	switch {
	case strings.HasPrefix(args, "dcgmi discovery"):
		fmt.Fprint(s.Out, discovery)
		return fmt.Errorf("command terminated with exit code 223")
	case strings.HasPrefix(args, "dcgmi dmon -e 230 -i "):
		fmt.Fprintf(s.Out, "#Entity   XIDER\nGPU %s     %s\n", command[5], e.last[command[5]])
	case strings.HasPrefix(args, "dcgmi test --inject --gpuid ") && command[5] == "-f" && command[6] == "230":
		e.last[command[4]] = command[8]
		fmt.Fprintln(s.Out, "Successfully injected field info.")
	default:
		return fmt.Errorf("unexpected command %s", args)
	}
	return nil
}

// recorder is a fault.Recorder.
type recorder struct{ step *ledger.Step }

func (recorder) Run() ledger.Run { return ledger.Run{ID: "xid-7k3f9q"} }
func (recorder) Progress(string) {}
func (r recorder) Save(_ context.Context, change func(*ledger.Step)) error {
	change(r.step)
	return nil
}

func pod(name, app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "gpu-operator", UID: "uid-1", Labels: map[string]string{"app": app},
		},
		Spec: corev1.PodSpec{
			NodeName: "gpu-1", Containers: []corev1.Container{{Name: "main", Image: "nvcr.io/nvidia/x"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// TestInjection: the engine has the XID of the GPU and of no other, and after the undo what it had before.
func TestInjection(t *testing.T) {
	t.Parallel()
	e := &engine{last: map[string]string{"0": "43", "3": "31"}}
	before := maps.Clone(e.last)
	of := Engine{fake.NewClientset(pod("nvidia-dcgm-x", "nvidia-dcgm")), e}
	in := Injection{Engine: of, Node: "gpu-1", XID: 79, GPUs: func(context.Context, fault.Recorder) ([]string, error) {
		return []string{strings.ToUpper(uuid[:4]) + uuid[4:]}, nil
	}}
	if err := in.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	step := ledger.Step{Target: ledger.Target{Kind: "Node", Name: "gpu-1"}}
	evidence, err := in.apply(t.Context(), recorder{&step})
	if err != nil || len(evidence) != 1 || !strings.Contains(evidence[0].Text, "GPU 3 is 79") {
		t.Fatalf("%v, %v", evidence, err)
	}
	if e.last["3"] != "79" || e.last["0"] != "43" {
		t.Errorf("the engine has %v", e.last)
	}
	state, said, err := Undoer{of}.Undo(t.Context(), ledger.Run{}, step)
	if err != nil || state != ledger.StateReverted || !maps.Equal(e.last, before) {
		t.Errorf("%s, %q, %v: the engine has %v, had %v", state, said, err, e.last, before)
	}
	forged := step
	forged.Undo.Data, _ = json.Marshal(undo{UID: "uid-1", Before: map[uint16]int{3: -1}})
	if _, _, err := (Undoer{of}).Undo(t.Context(), ledger.Run{}, forged); err == nil {
		t.Error("a forged record is followed")
	}
	forged.Undo.Data, _ = json.Marshal(undo{UID: "another", Before: map[uint16]int{3: 48}})
	if _, said, err := (Undoer{of}).Undo(t.Context(), ledger.Run{}, forged); err != nil || e.last["3"] != "31" {
		t.Errorf("a pod that the run never saw: %q, %v, the engine has %v", said, err, e.last)
	}
}

// TestRefused: without a host engine, nothing is recorded and the message says what to do.
func TestRefused(t *testing.T) {
	t.Parallel()
	for want, test := range map[string]struct {
		pods []*corev1.Pod
		dead bool
	}{
		"no pod of DCGM": {[]*corev1.Pod{pod("a", "vllm")}, false},
		"no host engine responds in pod exporter-x": {[]*corev1.Pod{pod("exporter-x", "nvidia-dcgm-exporter")}, true},
	} {
		client := fake.NewClientset()
		for _, p := range test.pods {
			if err := client.Tracker().Add(p); err != nil {
				t.Fatal(err)
			}
		}
		err := Injection{Engine: Engine{client, &engine{dead: test.dead}}, Node: "gpu-1"}.Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "omit the dcgm layer") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if !slices.Equal(Undoer{}.Needs(ledger.Step{}, ""), Permissions()) {
		t.Error("the undo needs other permissions than the fault")
	}
}
