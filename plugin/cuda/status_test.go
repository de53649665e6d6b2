package cuda

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// colorful returns a run with pods in all the states that there are.
func colorful(t *testing.T) (*inPlace, []report, time.Time) {
	t.Helper()
	w := newWorld(t, nil,
		pod("web-1", "gpu-1"), pod("web-2", "gpu-2"), pod("web-3", "gpu-1", crashed), pod("web-4", "gpu-2"),
		pod("web-5", "gpu-2"), pod("web-6", "gpu-1"),
		pod("web-7", "", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }))
	w.processes = func(name string, s cudafault.State) []cudafault.Process {
		switch name {
		case "web-1":
			poisoned := process(s.Generation, cudafault.StatusPoisoned)
			poisoned.Trips, poisoned.Function, poisoned.LastError, poisoned.TrippedAt = 1, "cuLaunchKernel", 999,
				started.Add(40*time.Second)
			ended := process(s.Generation, cudafault.StatusTripped)
			ended.PID, ended.Started = 3, started.Add(-time.Minute)
			return []cudafault.Process{poisoned, ended}
		case "web-2":
			return []cudafault.Process{process(s.Generation, cudafault.StatusOtherNode)}
		}
		return nil
	}
	w.log = map[string]string{
		"web-3": "gpu-fault: run cuda-7k3f9q: injected CUDA error 100 into cuInit, call 0, pid 1 (python3)\n",
	}
	w.broken = map[string]error{
		"web-5": errMissing, "web-6": errors.New("Internal error occurred: the kubelet is gone"),
	}
	p, err := find(t.Context(), w.cluster(), w.store(), runID)
	if err != nil {
		t.Fatal(err)
	}
	list, err := p.pods(w.cluster())(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	observer := w.observer()
	reports := observer.ask(t.Context(), list)
	for i := range reports {
		observer.listen(t.Context(), &reports[i], runID)
	}
	return p, reports, started.Add(time.Minute)
}

func TestStatusIsReadByPeople(t *testing.T) {
	t.Parallel()
	p, reports, now := colorful(t)
	for format, file := range map[string]string{"": "status.golden", "wide": "status-wide.golden"} {
		var out, errOut bytes.Buffer
		list := statusList{Items: []runStatus{statusOf(p, reports, now)}, now: now}
		if err := list.print(
			genericiooptions.IOStreams{Out: &out, ErrOut: &errOut}, printer.Format{Output: format},
		); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, file, out.String())
		if !strings.Contains(errOut.String(), runID+": CUDA XID 79") ||
			!strings.Contains(errOut.String(), "armed since") {
			t.Errorf("%s", errOut.String())
		}
	}
}

// Scripts read the JSON: these fields are a contract.
func TestStatusIsReadByScripts(t *testing.T) {
	t.Parallel()
	p, reports, now := colorful(t)
	var out bytes.Buffer
	list := statusList{Items: []runStatus{statusOf(p, reports, now)}}
	if err := list.print(genericiooptions.IOStreams{Out: &out}, printer.Format{Output: "json"}); err != nil {
		t.Fatal(err)
	}
	var read struct {
		APIVersion, Kind string
		Items            []struct {
			Run, Workload, Namespace string
			Pods                     []struct {
				Name, Node, State, Problem string
				Log                        []string
				Processes                  []struct {
					PID                        int
					State, Paths, Status, Name string
					Trips                      int
					ErrorName                  string
					Former                     bool
				}
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if read.APIVersion != ledger.APIVersion || read.Kind != "CUDAStatusList" || len(read.Items) != 1 ||
		read.Items[0].Workload != "deployment.apps/web" || len(read.Items[0].Pods) != 7 {
		t.Fatalf("%s", out.String())
	}
	pods := read.Items[0].Pods
	first := pods[0].Processes
	if len(first) != 2 || !first[0].Former || first[1].State != "poisoned" ||
		first[1].ErrorName != "CUDA_ERROR_UNKNOWN" || first[1].Trips != 1 {
		t.Errorf("%+v", first)
	}
	if pods[2].State != "CrashLoopBackOff" || len(pods[2].Log) == 0 || pods[4].State != "not loaded" {
		t.Errorf("%+v", pods)
	}
}

// A run without its ConfigMap, and one that is closed, are told of; they are no failure.
func TestStatusOfWhatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(r *ledger.Run) { r.Closed, r.Phase = time.Now(), ledger.Reverted })
	var said []string
	places, err := placesOf(t.Context(), w.cluster(), w.store(), namespace, runID,
		func(text string) { said = append(said, text) })
	if err != nil || len(places) != 0 || !strings.Contains(strings.Join(said, "\n"), "was closed at") {
		t.Errorf("%v, %d places, %q", err, len(places), said)
	}
	if places, err = placesOf(t.Context(), w.cluster(), w.store(), namespace, "", nil); err != nil || len(places) != 0 {
		t.Errorf("all: %v, %d places", err, len(places))
	}
	w = newWorld(t, nil)
	if err := w.client.CoreV1().ConfigMaps(namespace).Delete(
		t.Context(), "gpu-fault-"+runID, deleteOptions(),
	); err != nil {
		t.Fatal(err)
	}
	said = nil
	places, err = placesOf(t.Context(), w.cluster(), w.store(), namespace, "",
		func(text string) { said = append(said, text) })
	if err != nil || len(places) != 1 || !strings.Contains(strings.Join(said, "\n"), "ConfigMap was not found") {
		t.Fatalf("%v, %d places, %q", err, len(places), said)
	}
	if phase := places[0].phase(time.Now()); strings.Contains(phase, "armed since") || phase == "disarmed" {
		t.Errorf("without a state it is %q", phase)
	}
}

func TestWhatStatusTakes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		runID: "", "run/" + runID: "", "deployment/web": "", "web": "neither a run", "": "variable unset",
		"a/b/c": "TYPE/NAME",
	} {
		err := checkStatusOf(name, true)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	if err := checkStatusOf("", false); err != nil {
		t.Error(err)
	}
}

// Lines about the shim are found wherever in a line they begin: runtimes put times before them.
func TestFindLines(t *testing.T) {
	t.Parallel()
	log := `starting
[rank3] gpu-fault: run cuda-7k3f9q: injected CUDA error 719 into cuLaunchKernel, call 3, pid 9 (python3)
gpu-fault: run cuda-7k3f9: injected CUDA error 1 into cuInit, call 0, pid 9 (x)
ERROR: ld.so: object '/opt/jemalloc.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.
Error relocating /gpu-fault/lib/libgpufault.so: __register_atfork: symbol not found
`
	said, refused := findLines(log, runID)
	if len(said) != 1 || !strings.HasPrefix(said[0], "gpu-fault: run cuda-7k3f9q: injected CUDA error 719") {
		t.Errorf("%q", said)
	}
	if len(refused) != 1 || !strings.Contains(refused[0], "symbol not found") {
		t.Errorf("%q", refused)
	}
}

func TestExplainExec(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err     error
		want    string
		missing bool
	}{
		"missing": {errMissing, "the shim's file is missing in the container", true},
		"other arch": {
			errors.New("exec /gpu-fault/lib/libgpufault.so: exec format error"), "a different architecture", true,
		},
		"forbidden": {
			errors.New(`pods "x" is forbidden: User "bob" cannot create resource "pods/exec" in API group ""`),
			"pods/exec", false,
		},
		"just ended":  {errors.New(`unable to upgrade connection: container not found ("main")`), "", false},
		"some error":  {errors.New("dial tcp: i/o timeout\nmore"), "dial tcp: i/o timeout", false},
		"exit status": {exitError{139}, "command terminated with exit code 139", false},
	} {
		why, missing := explainExec(test.err)
		if missing != test.missing || test.want == "" && why != "" || !strings.Contains(why, test.want) {
			t.Errorf("%s: %q, %v", name, why, missing)
		}
	}
}
