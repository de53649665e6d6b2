//go:build linux

package ci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
)

const (
	root    = "../.."
	version = "v9.8.7"
	archive = "kubectl-gpu_fault_" + version + "_linux_amd64.tar.gz"
	// asPlugin makes the test's own program behave as the plugin.
	asPlugin = "CI_TEST_AS_PLUGIN"
)

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) == "" {
		os.Exit(m.Run())
	}
	cmd := plugin.NewCommand(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	ctx := context.Background()
	err := cmd.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, plugin.ErrorMessage(err))
	}
	os.Exit(plugin.ExitCode(ctx, err))
}

// stub stands in for the plugin: it records its arguments, writes the reports that they name, and exits with the code
// in $STUB/code. With $STUB/quiet it writes no report. With $STUB/slow it waits for a signal.
const stub = `#!/bin/sh
printf '%s\n' "$@" >"$STUB/args"
if [ -e "$STUB/slow" ]; then
  trap 'echo TERM >>"$STUB/signals"; sleep 1; exit 130' TERM
  trap 'echo INT >>"$STUB/signals"' INT
  : >"$STUB/started"
  while :; do sleep 0.1; done
fi
[ ! -e "$STUB/quiet" ] || { echo "error: no such node" >&2; exit "$(cat "$STUB/code")"; }
while [ $# -gt 0 ]; do
  case $1 in
    --html) echo '<html>' >"$2" ;;
    --json) echo '{}' >"$2" ;;
    --markdown) echo '| detected | ok |' >"$2" ;;
  esac
  shift
done
echo '<testsuites/>'
exit "$(cat "$STUB/code")"
`

// release is a directory with a release, and a job's workspace beside it.
type release struct {
	t                     *testing.T
	dir, stub, work       string
	outputs, summary, bin string
}

// newRelease makes a release whose program is a script.
func newRelease(t *testing.T, program string) *release {
	t.Helper()
	dir := t.TempDir()
	r := &release{
		t: t, dir: filepath.Join(dir, "releases"), stub: filepath.Join(dir, "stub"), work: filepath.Join(dir, "work"),
		outputs: filepath.Join(dir, "outputs"), summary: filepath.Join(dir, "summary"), bin: filepath.Join(dir, "path"),
	}
	for _, d := range []string{filepath.Join(r.dir, version), r.stub, r.work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.write(filepath.Join(r.stub, "code"), "0")
	packed := pack(t, program)
	r.publish(archive, packed)
	r.publish("checksums.txt", fmt.Sprintf("%x  %s\n%x  other.tar.gz\n", sha256.Sum256([]byte(packed)), archive,
		sha256.Sum256(nil)))
	return r
}

// itself returns a script that runs this tree's command line.
func itself(t *testing.T) string {
	t.Helper()
	me, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return "#!/bin/sh\n" + asPlugin + "=1 exec '" + me + "' \"$@\"\n"
}

func pack(t *testing.T, program string) string {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	files := tar.NewWriter(zipped)
	header := &tar.Header{Name: "kubectl-gpu_fault", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}
	if err := files.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	_, err := files.Write([]byte(program))
	if err := errors.Join(err, files.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (r *release) publish(name, content string) {
	r.write(filepath.Join(r.dir, version, name), content)
}

func (r *release) write(path, content string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// read returns a file; "" if it does not exist.
func (r *release) read(path string) string {
	r.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	return string(data)
}

// args are the arguments that the plugin got; nil if it was not called.
func (r *release) args() []string {
	text := r.read(filepath.Join(r.stub, "args"))
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// command returns a program of a job, in the job's workspace, with nothing of the test's environment but PATH.
func (r *release) command(environ []string, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), words[0], words[1:]...)
	cmd.Dir = r.work
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "STUB=" + r.stub, "RUNNER_OS=Linux", "RUNNER_ARCH=X64",
		"RUNNER_TEMP=" + r.t.TempDir(), "GITHUB_OUTPUT=" + r.outputs, "GITHUB_STEP_SUMMARY=" + r.summary,
		"GITHUB_PATH=" + r.bin, "RELEASES=file://" + r.dir, "VERSION=" + version,
	}, environ...)
	return cmd
}

// run runs a command and returns what it said and its exit code.
func (r *release) run(cmd *exec.Cmd) (said string, code int) {
	r.t.Helper()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
