//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// kubectl finds the plugin and asks it for completions through a link to the same file.
func TestKubectlRunsAndCompletesIt(t *testing.T) {
	t.Parallel()
	e := setup(t)
	dir := t.TempDir()
	for _, name := range []string{"kubectl-gpu_fault", "kubectl_complete-gpu_fault"} {
		if err := os.Symlink(binary(t, "kubectl-gpu_fault"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	kubectl := func(args ...string) string {
		cmd := e.command()
		cmd.Path, cmd.Args = binary(t, "kubectl"), append([]string{"kubectl"}, args...)
		cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if out := kubectl("gpu-fault", "version", "--client"); !strings.Contains(out, "Client:") {
		t.Errorf("kubectl gpu-fault version: %s", out)
	}
	if out := kubectl("gpu-fault", "xid", "--help"); !strings.Contains(out, "kubectl gpu-fault xid CODE") {
		t.Errorf("help names another program:\n%s", out)
	}
	for words, want := range map[string]string{
		"xid 7":        "79\t",
		"xid 79 node-": e.worker.Name + "\t2 NVIDIA-",
		"rev":          "revert\t",
	} {
		args := append([]string{"__complete", "gpu-fault"}, strings.Fields(words)...)
		if out := kubectl(args...); !strings.Contains(out, want) {
			t.Errorf("completion of %q lacks %q:\n%s", words, want, out)
		}
	}
}

// stdout is data: nothing else on it, no color, no cursor movement.
func TestStdoutIsData(t *testing.T) {
	t.Parallel()
	e := setup(t)
	r := e.ok("xid", "43", e.worker.Name, "--yes", "-o", "name")
	if strings.Count(r.stdout, "\n") != 1 || !strings.HasPrefix(r.stdout, "run/xid-") {
		t.Errorf("-o name printed %q", r.stdout)
	}
	table := e.ok("xid", "43", e.worker.Name, "--yes")
	if !strings.HasPrefix(table.stdout, "NODE") || strings.Contains(table.stdout+table.stderr, "\x1b") {
		t.Errorf("stdout %q\nstderr %q", table.stdout, table.stderr)
	}
	for _, part := range []string{e.worker.Name, "DETECTOR", "NVSentinel"} {
		if !strings.Contains(table.stderr, part) {
			t.Errorf("the talk before the change does not say %q:\n%s", part, table.stderr)
		}
	}
	path := e.ok("list", "-o", "jsonpath={.items[0].phase}")
	if strings.TrimSpace(path.stdout) != "Proven" {
		t.Errorf("jsonpath printed %q", path.stdout)
	}
	e.ok("revert", strings.TrimSpace(r.stdout), "--yes") // takes what -o name gave
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	e := setup(t)
	client := e.ok("xid", "79", e.worker.Name, "--dry-run=client", "-o", "yaml")
	for _, part := range []string{"kind: Pod", "nodeName: " + e.worker.Name, "privileged: true"} {
		if !strings.Contains(client.stdout, part) {
			t.Errorf("--dry-run=client does not print %q:\n%s", part, client.stdout)
		}
	}
	for _, dry := range []string{client.stderr, e.ok("xid", "79", e.worker.Name, "--dry-run=server").stderr} {
		if !strings.Contains(dry, "DETECTOR") || !strings.Contains(dry, "reboot the node") {
			t.Errorf("a dry run does not show the detectors and the reboot:\n%s", dry)
		}
	}
	e.untouched()
	e.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "baseline"})
	e.refused(e.plugin("xid", "79", e.worker.Name, "--dry-run=server"), "pod-security.kubernetes.io/enforce=privileged")
}

// The tool must start about as fast as kubectl does.
func TestVersionStartsAsFastAsKubectl(t *testing.T) {
	e := setup(t)
	best := func(program string) time.Duration {
		fastest := time.Hour
		for range 10 {
			cmd := e.command("version", "--client")
			cmd.Path = binary(t, program)
			start := time.Now()
			if err := cmd.Run(); err != nil {
				t.Fatalf("%s version --client: %v", program, err)
			}
			fastest = min(fastest, time.Since(start))
		}
		return fastest
	}
	ours, theirs := best("kubectl-gpu_fault"), best("kubectl")
	t.Logf("version --client: ours %s, kubectl %s", ours, theirs)
	if ours > theirs*13/10 {
		t.Errorf("version --client takes %s, kubectl %s: wanted at most 1.3 times as long", ours, theirs)
	}
}

// What people download and keep beside kubectl. What it weighs is mostly the Kubernetes API's types, CEL, HCL and the
// two helpers; see the Makefile for how it is built.
func TestBinaryIsLean(t *testing.T) {
	t.Parallel()
	info, err := os.Stat(binary(t, "kubectl-gpu_fault"))
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(50 << 20); info.Size() > most {
		t.Errorf("the binary has %d bytes, wanted at most %d", info.Size(), most)
	}
}
