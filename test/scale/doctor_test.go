//go:build e2e

package scale

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/test/scale/bigcluster"
)

// TestServeBigCluster is the server of TestDoctorOnALargeCluster, in a process of its own: a process inherits the memory of the one that
// starts it in what the system counts, and a server of 50,000 pods has much.
func TestServeBigCluster(t *testing.T) {
	nodes, err := strconv.Atoi(os.Getenv("GPU_FAULT_SCALE_NODES"))
	if err != nil {
		t.Skip("only for TestDoctorOnALargeCluster")
	}
	fmt.Println("serving", bigcluster.New(t, nodes).URL)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until the test closes it
}

// diagnosis is what doctor took.
type diagnosis struct {
	cpu    time.Duration
	memory int64 // bytes at most
	bigcluster.Stats
}

func diagnose(t *testing.T, plugin string, nodes int) diagnosis {
	t.Helper()
	server := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestServeBigCluster$")
	server.Env = append(os.Environ(), fmt.Sprintf("GPU_FAULT_SCALE_NODES=%d", nodes))
	in, err1 := server.StdinPipe()
	out, err2 := server.StdoutPipe()
	if err := errors.Join(err1, err2, server.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(in.Close(), server.Wait()) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "serving ")
	if err != nil || !ok {
		t.Fatalf("the server says %q: %v", line, err)
	}
	config := filepath.Join(t.TempDir(), "kubeconfig")
	err = os.WriteFile(config, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: big\nclusters: [{name: big, cluster: {server: %q}}]\ncontexts: [{name: big, context: {cluster: big}}]\n", url), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), plugin, "doctor", "--api-only", "-o", "json", "--kubeconfig", config)
	var report struct {
		Summary struct{ Nodes, GPUNodes int }
	}
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("doctor on %d nodes: %v", nodes, err)
	}
	if err := json.Unmarshal(raw, &report); err != nil || report.Summary.GPUNodes != nodes {
		t.Fatalf("doctor saw %+v (%v), wanted %d GPU nodes", report.Summary, err, nodes)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	d := diagnosis{cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), memory: usage.Maxrss << 10}
	answer, err := http.Get(url + "/stats")
	if err == nil {
		err = json.NewDecoder(answer.Body).Decode(&d.Stats)
		_ = answer.Body.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes, %d pods: %s of processor time, at most %d MiB, %d requests, %d MiB received", nodes, 10*nodes, d.cpu, d.memory>>20, d.Requests, d.Bytes>>20)
	return d
}

// 5,000 nodes with 50,000 pods are diagnosed on a laptop: under 10 s of processor time, under 400 MiB, in pages, and ten times the nodes cost at
// most twelve times as much.
func TestDoctorOnALargeCluster(t *testing.T) {
	plugin := filepath.Join(t.TempDir(), "kubectl-gpu_fault")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", plugin, "../../cmd/kubectl-gpu_fault")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	// Whatever else the machine does costs processor time too, by its caches and its clock: one round in peace is enough.
	var missed []string
	for range 3 {
		small, large := diagnose(t, plugin, 500), diagnose(t, plugin, 5000)
		ratio := large.cpu.Seconds() / small.cpu.Seconds()
		t.Logf("ten times the nodes cost %.1f times as much", ratio)
		missed = nil
		for _, limit := range []struct {
			over bool
			what string
		}{
			{ratio > 12, fmt.Sprintf("ten times the nodes cost %.1f times as much, wanted at most 12", ratio)},
			{large.cpu > 10*time.Second, fmt.Sprintf("%s of processor time, wanted at most 10 s", large.cpu)},
			{large.memory > 400<<20, fmt.Sprintf("%d MiB, wanted at most 400", large.memory>>20)},
			{large.Unpaged > 0, fmt.Sprintf("%d lists were asked for without a limit", large.Unpaged)},
		} {
			if limit.over {
				missed = append(missed, limit.what)
			}
		}
		if len(missed) == 0 {
			return
		}
	}
	t.Error(strings.Join(missed, "; "))
}
