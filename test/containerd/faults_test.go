//go:build e2e

package containerd_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

func TestHealthyDaemonsRunSandboxes(t *testing.T) {
	for _, d := range []daemon{old, current} {
		t.Run(d.release.String(), func(t *testing.T) {
			t.Parallel()
			in := newInstance(t, d, map[string]string{rootFile: healthy(d)})
			in.start(t)
			in.importPause(t)
			for _, handler := range []string{"", "runc", "nvidia"} {
				if said := in.sandbox(t, handler); said != "ok" {
					t.Errorf("a sandbox with handler %q: %s", handler, said)
				}
			}
		})
	}
}

// faults is what users read of each mode, in the words of each release: patterns for the answer to a sandbox, or where
// the daemon does not start for what it says then; and what its log has.
var faults = []struct {
	mode            containerd.Mode
	old, current    string
	oldLog, nextLog string
}{
	{mode: containerd.ModeMissingHandler, old: `^failed to get sandbox runtime: no runtime for "nvidia" is configured$`,
		current: `^unable to get OCI runtime for sandbox "[0-9a-f]{64}": no runtime for "nvidia" is configured$`},
	{mode: containerd.ModeWrongInstance, old: `^failed to get sandbox runtime: no runtime for "nvidia" is configured$`,
		current: `^unable to get OCI runtime for sandbox "[0-9a-f]{64}": no runtime for "nvidia" is configured$`},
	{
		mode: containerd.ModeBinaryMissing, old: binaryMissing,
		current: `^failed to start sandbox "[0-9a-f]{64}": ` + binaryMissing,
	},
	{mode: containerd.ModeWrongRuntimeType, old: noShim, current: noShim},
	{mode: containerd.ModeCgroupDriver, old: notSystemd, current: notSystemd},
	{
		mode: containerd.ModeOptionMisplaced, old: "^ok$", current: "^ok$",
		nextLog: `Ignoring unknown key in TOML for plugin.*containerd runtimes nvidia BinaryName`,
	},
	// Since 2.0 drop-ins are merged
	{mode: containerd.ModeDropinShadow, old: noCRI, oldLog: noDefault, current: refused},
	{mode: containerd.ModeDefaultMissing, old: noCRI, oldLog: noDefault, current: noCRI, nextLog: noDefault},
	{
		mode: containerd.ModeUnparsable, old: `failed to load TOML: \S+: \(\d+, \d+\): `,
		current: `failed to unmarshal TOML at row \d+ column \d+: `,
	},
}

const (
	binaryMissing = `(failed to create containerd task: )?failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error \(open \S+/log.json: no such file or directory\): ` +
		`fork/exec /usr/local/nvidia/toolkit/\S+: no such file or directory`
	noShim     = `failed to resolve runtime path: runtime "io.containerd.\S+" binary not installed "containerd-shim-\S+": file does not exist`
	notSystemd = `expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups`
	noCRI      = "unknown service runtime.v1.RuntimeService"
	noDefault  = "no corresponding runtime configured in `containerd.runtimes` for `containerd` `default_runtime_name = "
	refused    = "Break refuses"
)

func TestFaultsLandAndLookAsTheyShould(t *testing.T) {
	symptoms := map[containerd.Mode]string{}
	for _, m := range containerd.Modes() {
		symptoms[m.Mode] = m.Symptom
	}
	if len(faults) != len(symptoms) {
		t.Errorf("there are %d modes, and this test knows %d", len(symptoms), len(faults))
	}
	for _, f := range faults {
		for _, d := range []daemon{old, current} {
			want, log := f.current, f.nextLog
			if d.release == old.release {
				want, log = f.old, f.oldLog
			}
			t.Run(fmt.Sprintf("%s/%s", f.mode, d.release), func(t *testing.T) {
				t.Parallel()
				in := newInstance(t, d, map[string]string{rootFile: healthy(d)})
				broken, err := in.breakIt(t, f.mode)
				if want == refused {
					if err == nil {
						t.Fatalf("Break does it: %s", broken.Summary)
					}
					return
				}
				if err != nil {
					t.Fatalf("Break: %v", err)
				}
				if f.mode == containerd.ModeUnparsable {
					if said := in.complaint(t); !regexp.MustCompile(want).MatchString(said) {
						t.Errorf("it does not say %s:\n%s", want, said)
					}
					return
				}
				in.start(t)
				config := in.config(t)
				if strings.Contains(config, noCRI) {
					config = ""
				}
				if err := broken.Landed([]byte(config)); err != nil {
					t.Errorf("Landed: %v", err)
				}
				if !broken.NodeLoss {
					in.importPause(t)
				}
				said := in.sandbox(t, "nvidia")
				if !regexp.MustCompile(want).MatchString(said) {
					t.Errorf("a sandbox does not say %s:\n%s", want, said)
				}
				if said := in.log(t); !regexp.MustCompile(log).MatchString(said) {
					t.Errorf("the daemon's log has no line like %s", log)
				}
				if symptom := symptoms[f.mode]; said != "ok" && !strings.Contains(said, symptom) {
					t.Errorf("Modes promises that a sandbox says %q:\n%s", symptom, said)
				}
				if !broken.NodeLoss {
					if said := in.sandbox(t, "runc"); said != "ok" {
						t.Errorf("a sandbox of another handler fails too: %s", said)
					}
				}
			})
		}
	}
}

// breakIt computes the fault from the files and writes it.
func (in *instance) breakIt(t *testing.T, mode containerd.Mode) (*containerd.Broken, error) {
	t.Helper()
	c, err := in.load()
	if err != nil {
		t.Fatal(err)
	}
	request := containerd.Request{Mode: mode, Handler: "nvidia"}
	if mode == containerd.ModeWrongInstance {
		request.Decoy = containerd.File{Path: in.path("other/config.toml")}
	}
	broken, err := c.Break(request)
	if err != nil {
		return nil, err
	}
	for _, f := range broken.Files {
		in.files[f.Path[1:]] = &fstest.MapFile{Data: f.After}
	}
	in.write(t)
	return broken, nil
}
