//go:build linux

package ci

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"
)

// action is the part of action.yml that the tests read.
type action struct {
	Inputs  map[string]struct{ Description, Default string }
	Outputs map[string]struct{ Value string }
	Runs    struct {
		Steps []struct {
			Run, Shell string
			Env        map[string]string
		}
	}
}

func readAction(t *testing.T) action {
	t.Helper()
	var a action
	readYAML(t, ".github/actions/experiment/action.yml", &a)
	return a
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func script(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, ".github/actions/experiment/experiment"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Inputs reach the script only as variables: an input that were part of the script's text could run as code.
func TestActionPassesInputsAsVariables(t *testing.T) {
	t.Parallel()
	a := readAction(t)
	if len(a.Runs.Steps) != 1 || strings.Contains(a.Runs.Steps[0].Run, "${{") || a.Runs.Steps[0].Shell != "bash" {
		t.Fatalf("%+v", a.Runs)
	}
	text, err := os.ReadFile(script(t))
	if err != nil {
		t.Fatal(err)
	}
	passed := map[string]bool{}
	for name, value := range a.Runs.Steps[0].Env {
		passed[value] = true
		if !strings.Contains(string(text), "$"+name) && !strings.Contains(string(text), "${"+name) {
			t.Errorf("the script does not use %s", name)
		}
	}
	for name, input := range a.Inputs {
		if !passed["${{ inputs."+name+" }}"] || input.Description == "" {
			t.Errorf("input %s does not reach the script, or has no description", name)
		}
	}
	for name := range a.Outputs {
		if !strings.Contains(string(text), "output "+name+" ") {
			t.Errorf("the script does not set output %s", name)
		}
	}
}

// The plugin gets exactly the arguments of the inputs, whatever characters they have, and nothing in them is executed.
func TestActionRuns(t *testing.T) {
	t.Parallel()
	r := newRelease(t, stub)
	said, code := r.run(r.command([]string{
		"FILE=my $(touch a) experiment.yaml", `SELECTOR=gpu=yes";touch b;"`, "NODE=`touch c`", "PODS_OF=deployment/x",
		"NAMESPACE=*", "ARGS=--allow-last-gpu-node\r\n\n--seed=1 2\n$(touch d)", "JUNIT=out/a b.xml",
		"HTML=out/a.html", "JSON=out/a.json",
	}, script(t)))
	if code != 0 {
		t.Fatalf("exit %d: %s", code, said)
	}
	got := r.args()
	summary := slices.Index(got, "--markdown")
	if summary < 0 {
		t.Fatalf("%q", got)
	}
	got = slices.Delete(got, summary, summary+2)
	want := []string{
		"run", "--yes", "--output", "junit", "--html", "out/a.html", "--json", "out/a.json", "--filename",
		"my $(touch a) experiment.yaml", "--node", "`touch c`", "--selector", `gpu=yes";touch b;"`, "--pods-of",
		"deployment/x", "--namespace", "*", "--allow-last-gpu-node", "--seed=1 2", "$(touch d)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	var made []string
	entries, err := os.ReadDir(r.work)
	for _, e := range entries {
		made = append(made, e.Name())
	}
	if err != nil || !slices.Equal(made, []string{"out"}) {
		t.Errorf("the workspace has %q, %v", made, err)
	}
	if text := r.read(filepath.Join(r.work, "out/a b.xml")); text != "<testsuites/>\n" {
		t.Errorf("the JUnit report is %q", text)
	}
	if text := r.read(r.outputs); text != "passed=true\nexit-code=0\nreport=out/a.html\n" {
		t.Errorf("the outputs are %q", text)
	}
	if text := r.read(r.summary); text != "| detected | ok |\n" {
		t.Errorf("the summary is %q", text)
	}
	installed := strings.TrimSpace(r.read(r.bin))
	if info, err := os.Stat(filepath.Join(installed, "kubectl-gpu_fault")); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("the next steps cannot call kubectl gpu-fault: %v", err)
	}
}

// An experiment that fails, fails the step, and its reports are kept.
func TestActionFails(t *testing.T) {
	t.Parallel()
	r := newRelease(t, stub)
	r.write(filepath.Join(r.stub, "code"), "2")
	said, code := r.run(r.command([]string{"EXPERIMENT=xid-detection"}, script(t)))
	want := "passed=false\nexit-code=2\nreport=gpu-fault.html\n"
	if code != 2 || r.read(r.outputs) != want || r.read(r.summary) == "" ||
		r.read(filepath.Join(r.work, "gpu-fault.xml")) == "" {
		t.Errorf("exit %d: %s\n%s", code, said, r.read(r.outputs))
	}
}

// If nothing was run, the step fails, and the reports of a previous run are not taken for its own.
func TestActionWithoutReport(t *testing.T) {
	t.Parallel()
	r := newRelease(t, stub)
	r.write(filepath.Join(r.stub, "code"), "1")
	r.write(filepath.Join(r.stub, "quiet"), "")
	for _, old := range []string{"gpu-fault.xml", "gpu-fault.html", "gpu-fault.json"} {
		r.write(filepath.Join(r.work, old), "old")
	}
	said, code := r.run(r.command([]string{"EXPERIMENT=xid-detection"}, script(t)))
	left, err := os.ReadDir(r.work)
	if code != 1 || !strings.Contains(said, "no such node") || err != nil || len(left) > 0 {
		t.Errorf("exit %d: %s\n%v, %v", code, said, left, err)
	}
	if r.read(r.outputs) != "passed=false\nexit-code=1\nreport=\n" || !strings.Contains(r.read(r.summary), "Failed") {
		t.Errorf("%s\n%s", r.read(r.outputs), r.read(r.summary))
	}
}

// Nothing of a release runs whose checksum is wrong or missing, and wrong settings are errors before a download.
func TestActionRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(*release)
		environ []string
		want    string
	}{
		"another archive": {
			prepare: func(r *release) { r.publish(archive, pack(t, stub+"# changed\n")) },
			want:    "nothing was installed",
		},
		"another checksum":   {environ: []string{"SHA256=abc"}, want: "expected abc"},
		"no checksum":        {prepare: func(r *release) { r.publish("checksums.txt", "") }, want: "does not list"},
		"no version":         {environ: []string{"VERSION="}, want: "for version"},
		"latest":             {environ: []string{"VERSION=latest"}, want: "for version"},
		"a path":             {environ: []string{"VERSION=v1.2.3/../.."}, want: "for version"},
		"two lines":          {environ: []string{"VERSION=v1.2.3\nv1.2.4"}, want: "for version"},
		"another version":    {environ: []string{"VERSION=v1.2.3"}, want: "cannot download"},
		"plain HTTP":         {environ: []string{"RELEASES=http://127.0.0.1:1"}, want: "cannot download"},
		"no experiment":      {environ: []string{"EXPERIMENT="}, want: "either experiment or file"},
		"both":               {environ: []string{"FILE=x.yaml"}, want: "either experiment or file"},
		"a flag":             {environ: []string{"EXPERIMENT=--list"}, want: "for experiment"},
		"a forged output":    {environ: []string{"HTML=x\npassed=true"}, want: "file name of a report"},
		"an architecture":    {environ: []string{"RUNNER_ARCH=RISCV"}, want: "architecture RISCV"},
		"a system":           {environ: []string{"RUNNER_OS=Plan9"}, want: "operating system Plan9"},
		"Windows on ARM":     {environ: []string{"RUNNER_OS=Windows", "RUNNER_ARCH=ARM64"}, want: "windows_arm64.zip"},
		"an empty archive":   {prepare: empty, want: "does not contain kubectl-gpu_fault"},
		"a report nowhere":   {environ: []string{"JSON=/proc/none/x.json"}, want: "cannot create the directory"},
		"a report with dash": {environ: []string{"JSON=-x"}, want: "file name of a report"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t, stub)
			if test.prepare != nil {
				test.prepare(r)
			}
			environ := append([]string{"EXPERIMENT=xid-detection"}, test.environ...)
			said, code := r.run(r.command(environ, script(t)))
			if code != 1 || !strings.Contains(said, test.want) {
				t.Errorf("exit %d: %s", code, said)
			}
			if r.args() != nil || r.read(r.bin) != "" && name != "an empty archive" {
				t.Errorf("the plugin was installed: %q, %s", r.args(), r.read(r.bin))
			}
			if text := r.read(r.outputs); text != "passed=false\nexit-code=1\nreport=\n" {
				t.Errorf("the outputs are %q", text)
			}
		})
	}
}

// empty publishes an archive without a program, with a correct checksum.
func empty(r *release) {
	const sum = "7275b9d1e6c0314c52bfca6c77534b8eaa3a8454a5c74b20e3e5f983e32c6877"
	r.publish(archive, "no archive")
	r.publish("checksums.txt", sum+"  "+archive+"\n")
}

// The names of the archives are those of the releases, as in the manifest for krew.
func TestActionKnowsTheArchives(t *testing.T) {
	t.Parallel()
	manifest, err := os.ReadFile(filepath.Join(root, "krew-manifest.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`kubectl-gpu_fault_\{\{ \.TagName \}\}_(\w+)_(\w+)\.(zip|tar\.gz)`)
	all := names.FindAllStringSubmatch(string(manifest), -1)
	if len(all) != 5 {
		t.Fatalf("%q", all)
	}
	systems := map[string]string{"linux": "Linux", "darwin": "macOS", "windows": "Windows"}
	archs := map[string]string{"amd64": "X64", "arm64": "ARM64"}
	for _, name := range all {
		r := newRelease(t, stub)
		said, code := r.run(r.command([]string{
			"EXPERIMENT=xid-detection", "VERSION=v1.2.3", "RUNNER_OS=" + systems[name[1]],
			"RUNNER_ARCH=" + archs[name[2]],
		}, script(t)))
		want := "v1.2.3/" + strings.Replace(name[0], "{{ .TagName }}", "v1.2.3", 1)
		if code != 1 || !strings.Contains(said, want) {
			t.Errorf("%s was not downloaded: exit %d: %s", want, code, said)
		}
	}
}

// The faults of a canceled job are reverted: the plugin gets one SIGTERM even if the runner sends two signals. At the
// second one, it would quit without cleaning up.
func TestActionCanceled(t *testing.T) {
	t.Parallel()
	r := newRelease(t, stub)
	r.write(filepath.Join(r.stub, "slow"), "")
	cmd := r.command([]string{"EXPERIMENT=xid-detection"}, script(t))
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await := func(file string) {
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) {
				_, err := os.Stat(filepath.Join(r.stub, file))
				return err == nil, nil
			})
		if err != nil {
			t.Fatalf("file %s: %v\n%s", file, err, said.String())
		}
	}
	await("started")
	_ = cmd.Process.Signal(syscall.SIGINT)
	await("signals")
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	signals := r.read(filepath.Join(r.stub, "signals"))
	if code := cmd.ProcessState.ExitCode(); code != 130 || signals != "TERM\n" ||
		!strings.Contains(r.read(r.outputs), "passed=false\nexit-code=130\n") {
		t.Errorf("exit %d, signals %q, outputs %q: %s", code, signals, r.read(r.outputs), said.String())
	}
}

// The script and the program of this tree agree on the flags: the program lists its experiments, and refuses what it
// does not know before it asks for a cluster.
func TestActionWithTheProgram(t *testing.T) {
	t.Parallel()
	r := newRelease(t, itself(t))
	said, code := r.run(r.command([]string{"EXPERIMENT=xid-detection", "ARGS=--list\n--output="}, script(t)))
	if code != 0 || !strings.Contains(said, "xid79-recovery") {
		t.Errorf("exit %d: %s", code, said)
	}
	for _, test := range []struct{ environ, want string }{
		{"EXPERIMENT=xid-detectoin", "did you mean xid-detection"},
		{"FILE=missing.yaml", "missing.yaml"},
		{"EXPERIMENT=xid-detection", "no kubeconfig found"},
	} {
		said, code := r.run(r.command([]string{test.environ, "NODE=gpu-1", "KUBECONFIG=/dev/null"}, script(t)))
		if code != 1 || !strings.Contains(said, test.want) {
			t.Errorf("%s: exit %d: %s", test.environ, code, said)
		}
	}
}
