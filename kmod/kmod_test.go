package kmod

import (
	"bytes"
	"debug/elf"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod/kmodtest"
)

// What nobody reads or writes by hand must be in the program: without its source no module can be built.
func TestSourcesAreComplete(t *testing.T) {
	t.Parallel()
	files, err := Sources()
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files, %v: wanted the source and the Kbuild", len(files), err)
	}
	if !bytes.Contains(files["Kbuild"], []byte(Name+".o")) ||
		!bytes.Contains(files[Name+".c"], []byte("module_param_string("+ParamRun)) {
		t.Error("the source has another name, or lacks the parameter of the run's ID, by which its owner is known")
	}
	if n := bytes.Count(files[Name+".c"], []byte("\n")); n >= 300 {
		t.Errorf("the module has %d lines: it is to be read in a few minutes, so keep it below 300", n)
	}
}

func TestCheckRecord(t *testing.T) {
	t.Parallel()
	const fallen = "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands."
	for record, want := range map[string]string{
		"NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.":             "",
		"NVRM: Xid (PCI:0000:17:00): 79":                                          "",
		"NVRM: Xid (0000:03:00): 13, Graphics Exception":                          "",
		"NVRM: Xid (PCI:0000:17:00 GPU-I:05 GPU-CI:00): 94, Contained":            "",
		"NVRM: GPU at PCI:0000:55:00: GPU-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3":   "",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 x":  "",
		"nvidia-nvswitch3: something else":                                        "",
		fallen:                                                                    "",
		"":                                                                        "from the driver",
		"kernel: NVRM: Xid (PCI:0000:17:00): 79, x":                               "from the driver",
		"NVRM: Xid (PCI:0000:17:00): 079, x":                                      "not an XID",
		"NVRM: Xid (PCI:0000:17:00): 79,":                                         "not an XID",
		"NVRM: Xid (PCI:0000:17:00): 79, a\nb":                                    "not an XID",
		"NVRM: Xid (PCI:0000:17:00): 79, Größe":                                   "printable ASCII",
		"NVRM: two\nlines":                                                        "several lines",
		fallen + "\n":                                                             "several lines",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00): 12028, x":                       "",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 1, x":                         "not an SXid",
		"NVRM: " + strings.Repeat("x", MaxRecord-len("NVRM: ")-1):                 "",
		"NVRM: " + strings.Repeat("x", MaxRecord-len("NVRM: ")):                   "973 bytes",
		"NVRM: bell \a":                                                           "from the driver",
		"systemd[1]: NVRM: Xid (PCI:0000:17:00): 79, of somebody else's program ": "from the driver",
	} {
		switch err := CheckRecord(record); {
		case want == "" && err != nil:
			t.Errorf("%q is refused: %v", record, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, wanted an error with %q", record, err, want)
		}
	}
}

func TestParseFile(t *testing.T) {
	t.Parallel()
	const ours = "license=GPL\x00name=gpu_fault_xid\x00vermagic=6.1.0-56-amd64 SMP preempt mod_unload modversions \x00"
	good := kmodtest.Object(elf.EM_X86_64, ours)
	f, err := ParseFile(good)
	if err != nil || f.Release != "6.1.0-56-amd64" || f.Arch != "amd64" || f.Signed {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := ParseFile(append(bytes.Clone(good), "xyz~Module signature appended~\n"...)); err != nil || !f.Signed {
		t.Errorf("a signed one: %+v, %v", f, err)
	}
	if f, err := ParseFile(kmodtest.Object(elf.EM_AARCH64, ours)); err != nil || f.Arch != "arm64" {
		t.Errorf("for arm64: %+v, %v", f, err)
	}
	for want, raw := range map[string][]byte{
		"not a kernel module":           []byte("#!/bin/sh\n"),
		`the module "nvidia"`:           kmodtest.Object(elf.EM_X86_64, "name=nvidia\x00vermagic=6.1.0 SMP\x00"),
		"which kernel it was built for": kmodtest.Object(elf.EM_X86_64, "name=gpu_fault_xid\x00"),
		"for amd64 or arm64":            kmodtest.Object(elf.EM_RISCV, ours),
		"it is compressed":              []byte("\xfd7zXZ\x00"),
		"larger than 4 MiB":             make([]byte, MaxFile+1),
		"not a kernel module: EOF":      good[:70],
		"relocatable file with a ": func() []byte {
			raw := bytes.Clone(good)
			raw[16] = byte(elf.ET_EXEC)
			return raw
		}(),
	} {
		if _, err := ParseFile(raw); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, wanted %q", err, want)
		}
	}
}

// A file from a user's disk, or from a compiler, must not crash what reads it.
func FuzzParseFile(f *testing.F) {
	f.Add(kmodtest.Object(elf.EM_X86_64, "name=gpu_fault_xid\x00vermagic=6.1.0 SMP\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if file, err := ParseFile(raw); err == nil && (file.Release == "" || file.Arch == "") {
			t.Errorf("%+v was taken", file)
		}
	})
}
