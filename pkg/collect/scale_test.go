package collect

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/test/scale/bigcluster"
)

// seen is the result of a child process, for the test that started it.
type seen struct {
	Nodes, Pods, GPUNodes, Events int
	// Memory is the process's maximum memory usage, in bytes. The process's rusage would include the usage of its
	// parent, from which it was forked.
	Memory int64
}

// cost is the cost of a diagnosis in a separate process.
type cost struct {
	cpu time.Duration
	seen
}

// measure diagnoses the cluster in a child process, so that the server's own usage is not counted.
func measure(t *testing.T, server *bigcluster.Server) cost {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestDiagnoseForParent$", "-test.v=false")
	report := t.TempDir() + "/seen.json"
	child.Env = append(os.Environ(), "GPU_FAULT_SCALE_SERVER="+server.URL, "GPU_FAULT_SCALE_REPORT="+report)
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := cost{cpu: child.ProcessState.UserTime() + child.ProcessState.SystemTime()}
	raw, err := os.ReadFile(report)
	if err == nil {
		err = json.Unmarshal(raw, &c.seen)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDiagnoseForParent is the child process of TestLargeCluster.
func TestDiagnoseForParent(t *testing.T) {
	url := os.Getenv("GPU_FAULT_SCALE_SERVER")
	if url == "" {
		t.Skip("only for TestLargeCluster")
	}
	cluster, err := Connect(&rest.Config{Host: url, QPS: 100, Burst: 200}, "gpu-fault")
	if err != nil {
		t.Fatal(err)
	}
	cluster.Ledger = nil
	defer LimitMemory()() // as the plugin does for doctor
	s, err := Collect(context.Background(), cluster, Options{APIOnly: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	report := doctor.Examine(s, doctor.Options{})
	raw, err := json.Marshal(seen{len(s.Nodes), s.Meta.PodsSeen, report.Summary.GPUNodes, len(s.Events), most(t)})
	if err == nil {
		err = os.WriteFile(os.Getenv("GPU_FAULT_SCALE_REPORT"), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// most returns the largest size that this process has had in memory, in bytes, or 0 if the system does not report it.
func most(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kib, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	n, err := strconv.ParseInt(kib, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// TestLargeCluster verifies that a large cluster can be diagnosed on a laptop, and that lists are requested in pages.
// By default, the cluster has a tenth of the full size; set GPU_FAULT_SCALE=5000 to measure the full size, which
// test/scale does with the plugin itself.
func TestLargeCluster(t *testing.T) {
	nodes := 500
	if text := os.Getenv("GPU_FAULT_SCALE"); text != "" {
		var err error
		if nodes, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	server := bigcluster.New(t, nodes)
	c := measure(t, server)
	t.Logf("%d nodes, %d pods: %s of processor time, at most %d MiB, %d requests, %d MiB received", nodes, 10*nodes,
		c.cpu, c.Memory>>20, server.Requests.Load(), server.Bytes.Load()>>20)
	if c.Nodes != nodes || c.Pods != 10*nodes || c.GPUNodes != nodes {
		t.Errorf("%d nodes, of which %d have GPUs, and %d pods were seen, wanted %d, all, and %d", c.Nodes, c.GPUNodes,
			c.Pods, nodes, 10*nodes)
	}
	if got := server.Unpaged.Load(); got > 0 {
		t.Errorf("%d lists were asked for without a limit", got)
	}
	if c.Events > 0 {
		t.Errorf("%d events of pods that are well were kept", c.Events)
	}
	if most := 10 * time.Second; c.cpu > most {
		t.Errorf("%s of processor time, wanted at most %s", c.cpu, most)
	}
	if most := int64(300 << 20); c.Memory > most {
		t.Errorf("%d MiB, wanted at most %d", c.Memory>>20, most>>20)
	}
}

// TestMemoryLimit verifies that the limit grows with the cluster, so that the collector does not run all the time, and
// that a user's own limit is kept. The test changes the process and therefore does not run in parallel.
func TestMemoryLimit(t *testing.T) {
	now := func() int64 { return debug.SetMemoryLimit(-1) }
	before := now()
	restore := LimitMemory()
	for nodes, want := range map[int]int64{10: memoryLimit, 5000: memoryLimit, 10_000: 2 * memoryLimit} {
		debug.SetMemoryLimit(memoryLimit)
		if raiseMemoryLimit(nodes); now()-want > 10_000 || want-now() > 10_000 {
			t.Errorf("%d nodes: %d, wanted %d", nodes, now(), want)
		}
	}
	restore()
	if now() != before {
		t.Errorf("restored to %d, wanted %d", now(), before)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 30))
	defer LimitMemory()()
	if raiseMemoryLimit(100_000); now() != 1<<30 {
		t.Errorf("GOMEMLIMIT of the user was replaced by %d", now())
	}
}
