//go:build e2e

package scale

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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

// TestServeBigCluster is the server of TestDoctorOnALargeCluster, in a process of its own: a process inherits the
// memory of the one that starts it in what the system counts, and a server of 50,000 pods has much.
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
	err = os.WriteFile(config, fmt.Appendf(nil,
		"apiVersion: v1\nkind: Config\ncurrent-context: big\nclusters: [{name: big, cluster: {server: %q}}]\ncontexts: [{name: big, context: {cluster: big}}]\n",
		url), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), plugin, "doctor", "--api-only", "-o", "json", "--kubeconfig", config)
	// The report goes into a file, of which only the beginning is read: this process must stay small, for the reason
	// above.
	report, err := os.Create(filepath.Join(t.TempDir(), "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = report.Close() }()
	cmd.Stdout = report
	if err := cmd.Run(); err != nil {
		t.Fatalf("doctor on %d nodes: %v", nodes, err)
	}
	head := make([]byte, 64<<10)
	n, err := report.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if want := fmt.Sprintf(`"gpuNodes": %d,`, nodes); !bytes.Contains(head[:n], []byte(want)) {
		t.Fatalf("the report does not begin with a summary that has %s\n%s", want, head[:min(n, 2000)])
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
	t.Logf("%d nodes, %d pods: %s of processor time, at most %d MiB, %d requests, %d MiB received", nodes, 10*nodes,
		d.cpu, d.memory>>20, d.Requests, d.Bytes>>20)
	return d
}

// 5,000 nodes with 50,000 pods are diagnosed on a laptop: in pages, under 400 MiB, and ten times the nodes cost at most
// twelve times as much. It takes 8 to 10 s of processor time where nothing else runs; the limit here is for machines
// that are shared.
func TestDoctorOnALargeCluster(t *testing.T) {
	plugin := build(t)
	// Whatever else the machine does costs processor time too, by its caches and its clock: what counts is the best of
	// some rounds.
	ratio, best := math.Inf(1), diagnosis{cpu: time.Hour, memory: math.MaxInt64}
	for range 4 {
		small, large := diagnose(t, plugin, 500), diagnose(t, plugin, 5000)
		t.Logf("ten times the nodes cost %.1f times as much", large.cpu.Seconds()/small.cpu.Seconds())
		ratio = min(ratio, large.cpu.Seconds()/small.cpu.Seconds())
		best.cpu, best.memory, best.Unpaged = min(best.cpu, large.cpu), min(best.memory, large.memory),
			max(best.Unpaged, large.Unpaged)
		if ratio <= 12 && best.cpu <= 20*time.Second && best.memory <= 400<<20 {
			break
		}
	}
	if ratio > 12 {
		t.Errorf("ten times the nodes cost %.1f times as much, wanted at most 12", ratio)
	}
	if best.cpu > 20*time.Second {
		t.Errorf("%s of processor time, wanted at most 20 s", best.cpu)
	}
	if best.memory > 400<<20 {
		t.Errorf("%d MiB, wanted at most 400", best.memory>>20)
	}
	if best.Unpaged > 0 {
		t.Errorf("%d lists were asked for without a limit", best.Unpaged)
	}
}
