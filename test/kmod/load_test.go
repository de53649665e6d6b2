//go:build kmod && linux

package kmod

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// TestVMLoadUnload loads, writes and unloads a thousand times; then nothing of it is left, in memory neither.
func TestVMLoadUnload(t *testing.T) {
	module, err := os.ReadFile(moduleFile)
	if err != nil {
		t.Fatal(err)
	}
	log := follow(t)
	const times = 1000
	for i := range times {
		if err := unix.InitModule(module, ""); err != nil {
			t.Fatalf("load %d: %v", i, err)
		}
		f, err := os.OpenFile(device, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(write(f, "NVRM: again\n"), f.Close()); err != nil {
			t.Fatal(err)
		}
		if err := unix.DeleteModule(kmod.Name, unix.O_NONBLOCK); err != nil {
			t.Fatalf("unload %d: %v", i, err)
		}
		if i%some == some-1 {
			count(t, log, some)
		}
	}
	count(t, log, times%some)
	for _, path := range []string{device, "/sys/module/" + kmod.Name, "/sys/class/misc/" + kmod.Name} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

// While somebody has the device open the module stays, and goes right after.
func TestVMStaysWhileOpen(t *testing.T) {
	load(t, "")
	f := open(t)
	if err := unix.DeleteModule(kmod.Name, unix.O_NONBLOCK); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("unloading with the device open: %v", err)
	}
	if err := write(f, "NVRM: still here\n"); err != nil {
		t.Errorf("the refused unloading has done harm: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.DeleteModule(kmod.Name, unix.O_NONBLOCK); err != nil {
		t.Errorf("unloading right after: %v", err)
	}
}

// The module says whose it is; only root can read that.
func TestVMKnowsItsRun(t *testing.T) {
	load(t, "run=xid-abcdef")
	path := "/sys/module/" + kmod.Name + "/parameters/" + kmod.ParamRun
	text, err := os.ReadFile(path)
	if err != nil || strings.TrimSpace(string(text)) != "xid-abcdef" {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.WriteFile(path, []byte("xid-999999"), 0); err == nil {
		t.Error("its run can be changed")
	}
}
