//go:build kmod && linux

package kmod

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// running is a helper at work, as a client sees it.
type running struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Scanner
}

// start gives the helper a request, as a client's exec in the debug pod does.
func start(t *testing.T, run string, req api.Request) *running {
	t.Helper()
	req.Protocol, req.Run = api.Protocol, run
	line, err := req.Encode()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(helper, "stdin")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := in.Write(line); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(out)
	answers.Buffer(nil, api.MaxAnswer)
	return &running{cmd, in, answers}
}

// next returns the helper's next answer.
func (r *running) next(t *testing.T) api.Answer {
	t.Helper()
	if !r.answers.Scan() {
		t.Fatalf("the helper said nothing more: %v", r.answers.Err())
	}
	var a api.Answer
	if err := json.Unmarshal(r.answers.Bytes(), &a); err != nil {
		t.Fatalf("%s: %v", r.answers.Text(), err)
	}
	return a
}

// end returns the last answer, and all that was proven until then.
func (r *running) end(t *testing.T) (api.Answer, []api.WrittenKmsg) {
	t.Helper()
	var all []api.WrittenKmsg
	for {
		a := r.next(t)
		all = append(all, a.Written...)
		if a.Done || a.Error != nil {
			return a, all
		}
	}
}

// do returns a request from begin to end.
func do(t *testing.T, run string, req api.Request) (api.Answer, []api.WrittenKmsg) {
	t.Helper()
	return start(t, run, req).end(t)
}

// built returns the module's file.
func built(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile(moduleFile)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func records(texts ...string) []api.KmsgRecord {
	all := make([]api.KmsgRecord, len(texts))
	for i, text := range texts {
		all[i].Data = "<4>" + text + "\n"
	}
	return all
}

// nothingLeft holds that the helper has left no module and no device node.
func nothingLeft(t *testing.T) {
	t.Helper()
	if isLoaded() {
		t.Error("the module is still loaded")
	}
	if left, _ := filepath.Glob("/dev/gpu-fault-*"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

const ourRun = "xid-abcdef"

// TestVMHelperWrites: it loads, writes, reads back with the facility of the kernel, unloads.
func TestVMHelperWrites(t *testing.T) {
	texts := []string{
		"NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
		"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
		"NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.",
	}
	last, written := do(t, ourRun,
		api.Request{WriteModule: &api.WriteModule{Module: built(t), Records: records(texts...)}})
	if !last.Done || len(written) != len(texts) {
		t.Fatalf("%d of %d records are proven: %+v", len(written), len(texts), last.Error)
	}
	for i, want := range []int{4, 3, 4} {
		if shown := strings.ReplaceAll(texts[i], "\n", `\x0a`); written[i].Priority != want ||
			written[i].Text != shown {
			t.Errorf("%+v, wanted priority %d, which is facility 0, and %q", written[i], want, shown)
		}
	}
	nothingLeft(t)
}

// A burst is slowed down to what the module takes, and every record of it is proven.
func TestVMHelperWritesMany(t *testing.T) {
	const many = 1500
	last, written := do(t, ourRun, api.Request{WriteModule: &api.WriteModule{
		Module: built(t), Records: slices.Repeat(records("NVRM: Xid (PCI:0000:17:00): 63, many"), many),
	}})
	if !last.Done || len(written) != many {
		t.Errorf("%d of %d records are proven: %+v", len(written), many, last.Error)
	}
	nothingLeft(t)
}

// slowly returns a record, and another that nobody waits for.
func slowly() []api.KmsgRecord {
	two := records("NVRM: Xid (PCI:0000:17:00): 79, first", "NVRM: Xid (PCI:0000:17:00): 79, second")
	two[1].Delay = time.Hour
	return two
}

// begun returns a helper that has written the first of two records.
func begun(t *testing.T) *running {
	t.Helper()
	r := start(t, ourRun, api.Request{WriteModule: &api.WriteModule{Module: built(t), Records: slowly()}})
	if a := r.next(t); len(a.Written) != 1 || !isLoaded() {
		t.Fatalf("%+v, loaded: %v; wanted one proven record, and the module loaded for the next", a, isLoaded())
	}
	return r
}

// TestVMHelperStopped: a client that goes away, or a pod that ends, has the module unloaded.
func TestVMHelperStopped(t *testing.T) {
	for name, stop := range map[string]func(r *running) error{
		"its input ends": func(r *running) error { return r.in.Close() },
		"it is told to":  func(r *running) error { return r.cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			r := begun(t)
			if err := stop(r); err != nil {
				t.Fatal(err)
			}
			if last, _ := r.end(t); last.Error == nil || last.Error.Code != api.CodeInterrupted {
				t.Errorf("%+v, wanted %s", last, api.CodeInterrupted)
			}
			nothingLeft(t)
		})
	}
}

// TestVMHelperKilled: nobody can unload when the helper is killed. Then the module stays, everybody sees whose it is,
// and whoever undoes that run, and nobody else, removes it.
func TestVMHelperKilled(t *testing.T) {
	r := begun(t)
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.cmd.Wait() // killed
	if !isLoaded() {
		t.Fatal("the module is gone, so this shows nothing")
	}
	if last, _ := do(
		t, "xid-999999", api.Request{WriteModule: &api.WriteModule{Module: built(t), Records: slowly()}},
	); last.Error == nil ||
		last.Error.Code != api.CodeLoaded || !strings.Contains(last.Error.Message, "revert "+ourRun) {
		t.Errorf("another run: %+v, wanted %s and how to revert %s", last.Error, api.CodeLoaded, ourRun)
	}
	left := deadman.Leftover{Kind: deadman.LeftoverModule, Path: "/sys/module/" + kmod.Name, Run: ourRun}
	if last, _ := do(
		t, "leftovers-1", api.Request{Leftovers: &api.Leftovers{}},
	); !slices.Contains(last.Leftovers, left) {
		t.Errorf("leftovers: %+v (%+v), wanted %+v", last.Leftovers, last.Error, left)
	}
	if last, _ := do(t, "xid-999999", api.Request{RemoveModule: &api.RemoveModule{}}); last.Removed == nil ||
		last.Removed.Other != "run "+ourRun || !isLoaded() {
		t.Errorf("the undo of another run: %+v %+v, loaded: %v", last.Removed, last.Error, isLoaded())
	}
	for _, want := range []api.RemovedModule{{Removed: true}, {}} { // undone, and undone again
		if last, _ := do(t, ourRun, api.Request{RemoveModule: &api.RemoveModule{}}); last.Removed == nil ||
			*last.Removed != want {
			t.Errorf("the undo: %+v %+v, wanted %+v", last.Removed, last.Error, want)
		}
		nothingLeft(t)
	}
}

// TestVMHelperCleansLeftovers: not those of runs that may be in place, nor what somebody loaded by hand.
func TestVMHelperCleansLeftovers(t *testing.T) {
	for _, tc := range []struct {
		parameters string
		keep       []string
		found      int
		stays      bool
	}{
		{"", nil, 0, true},
		{"run=" + ourRun, []string{ourRun}, 1, true},
		{"run=" + ourRun, nil, 1, false},
	} {
		t.Run(tc.parameters, func(t *testing.T) {
			load(t, tc.parameters)
			last, _ := do(t, "leftovers-1", api.Request{Leftovers: &api.Leftovers{Clean: true, Keep: tc.keep}})
			found := slices.DeleteFunc(last.Leftovers,
				func(l deadman.Leftover) bool { return l.Kind != deadman.LeftoverModule })
			if !last.Done || len(found) != tc.found || isLoaded() != tc.stays ||
				len(found) > 0 && found[0].Removed == tc.stays {
				t.Errorf("%+v (%+v), loaded: %v; wanted %+v", found, last.Error, isLoaded(), tc)
			}
		})
	}
}

// TestVMHelperTellsOfWhatStays: somebody who holds the device keeps the module, and the helper does not say that it is
// done.
func TestVMHelperTellsOfWhatStays(t *testing.T) {
	r := begun(t)
	holder := open(t)
	_ = r.in.Close()
	last, _ := r.end(t)
	if last.Error == nil || last.Error.Code != api.CodeStays || !isLoaded() {
		t.Errorf("%+v, loaded: %v; wanted %s", last.Error, isLoaded(), api.CodeStays)
	}
	_ = holder.Close()
	if last, _ := do(t, ourRun, api.Request{RemoveModule: &api.RemoveModule{}}); last.Removed == nil ||
		!last.Removed.Removed {
		t.Errorf("the undo: %+v %+v", last.Removed, last.Error)
	}
	nothingLeft(t)
}

// TestVMHelperRefusesOtherKernels: what is for another kernel is recognized beforehand, and what only the kernel can
// tell, by its refusal.
func TestVMHelperRefusesOtherKernels(t *testing.T) {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	release := strings.TrimSpace(string(kernel))
	for name, tc := range map[string]struct {
		from, to string
		code     api.Code
	}{
		"another release":       {"vermagic=" + release, "vermagic=9" + release[1:], api.CodeVermagic},
		"another configuration": {release + " SMP ", release + " UP_ ", api.CodeNotLoaded},
	} {
		t.Run(name, func(t *testing.T) {
			module := bytes.Replace(built(t), []byte(tc.from), []byte(tc.to), 1)
			if last, _ := do(
				t, ourRun, api.Request{WriteModule: &api.WriteModule{Module: module, Records: slowly()}},
			); last.Error == nil || last.Error.Code != tc.code {
				t.Errorf("%+v, wanted %s", last.Error, tc.code)
			}
			nothingLeft(t)
		})
	}
}

// signed returns the module with a signature of a key that the kernel does not know.
func signed(t *testing.T) []byte {
	t.Helper()
	raw, err := os.ReadFile(signedFile)
	if err != nil {
		t.Fatal(err)
	}
	if file, err := kmod.ParseFile(raw); err != nil || !file.Signed {
		t.Fatalf("%+v, %v: it is not signed, so this shows nothing", file, err)
	}
	return raw
}

// A kernel that insists on nothing takes any signature.
func TestVMHelperTakesSigned(t *testing.T) {
	last, written := do(t, ourRun,
		api.Request{WriteModule: &api.WriteModule{Module: signed(t), Records: records("NVRM: signed")}})
	if !last.Done || len(written) != 1 {
		t.Errorf("%d records are proven: %+v", len(written), last.Error)
	}
	nothingLeft(t)
}

// TestVMLocked shows, one after the other, what shuts modules out: it cannot be taken back before the next boot. The
// helper must recognize each beforehand, and the kernel must really be shut.
func TestVMLocked(t *testing.T) {
	for _, tc := range []struct {
		path, value string
		code        api.Code
		says        string
	}{
		{"/sys/kernel/security/lockdown", "integrity", api.CodeUntrusted, `"integrity"`},
		{"/sys/module/module/parameters/sig_enforce", "Y", api.CodeUntrusted, "sig_enforce"},
		{"/proc/sys/kernel/modules_disabled", "1", api.CodeNoModules, "modules_disabled"},
	} {
		if err := os.WriteFile(tc.path, []byte(tc.value), 0); err != nil {
			t.Fatal(err)
		}
		for name, req := range map[string]api.Request{
			"write": {WriteModule: &api.WriteModule{Module: built(t), Records: slowly()}},
			"build": {BuildModule: &api.BuildModule{}},
		} {
			if last, _ := do(t, ourRun, req); last.Error == nil || last.Error.Code != tc.code ||
				!strings.Contains(last.Error.Message, tc.says) {
				t.Errorf("%s=%s, %s: %+v, wanted %s with %q", tc.path, tc.value, name, last.Error, tc.code, tc.says)
			}
		}
		if tc.code == api.CodeUntrusted { // whether the key is known only the kernel can say
			last, _ := do(t, ourRun, api.Request{WriteModule: &api.WriteModule{Module: signed(t), Records: slowly()}})
			if last.Error == nil || last.Error.Code != tc.code ||
				!strings.Contains(last.Error.Message, "does not trust the key") {
				t.Errorf("%s=%s, signed: %+v, wanted %s", tc.path, tc.value, last.Error, tc.code)
			}
		}
		if err := unix.InitModule(built(t), ""); err == nil || errors.Is(err, unix.EEXIST) {
			t.Errorf("%s=%s: the kernel takes modules all the same: %v", tc.path, tc.value, err)
		}
		nothingLeft(t)
	}
}
