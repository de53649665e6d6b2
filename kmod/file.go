package kmod

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"strings"
)

// MaxFile is the maximum size of a built module, in bytes. A module with all debug information has a size of 300 KB.
const MaxFile = 4 << 20

// File is the information that a built module contains about itself.
type File struct {
	// Release is the kernel release for which the module was built, as printed by `uname -r`.
	Release string
	// Magic is the module's vermagic: the kernel release, and the other parts of the kernel's configuration on which
	// the module depends.
	Magic string
	// Arch is the module's processor architecture, as Go names it: amd64, arm64.
	Arch string
	// Signed reports whether a signature follows the module. Who signed the module, and whether a kernel trusts the
	// signature, is not known.
	Signed bool
}

// signature is the string at the end of a signed module (MODULE_SIG_STRING in the kernel's linux/module_signature.h).
const signature = "~Module signature appended~\n"

// ParseFile parses a built module. It accepts only gpu_fault_xid, because code that is loaded into a kernel has full
// control of the machine.
func ParseFile(raw []byte) (File, error) {
	if len(raw) > MaxFile {
		return File{}, fmt.Errorf("it is larger than %d MiB, so it cannot be %s.ko", MaxFile>>20, Name)
	}
	for magic, how := range map[string]string{"\x1f\x8b": "gunzip", "\xfd7zXZ": "unxz", "\x28\xb5\x2f\xfd": "unzstd"} {
		if bytes.HasPrefix(raw, []byte(magic)) {
			return File{}, fmt.Errorf("it is compressed: unpack it first, with %s", how)
		}
	}
	f, err := elf.NewFile(bytes.NewReader(raw))
	if err != nil {
		return File{}, fmt.Errorf("it is not a kernel module: %w", err)
	}
	info := f.Section(".modinfo")
	if f.Type != elf.ET_REL || info == nil || info.Type != elf.SHT_PROGBITS {
		return File{}, errors.New("it is not a kernel module: a kernel module is a relocatable file with a .modinfo " +
			"section")
	}
	said, err := info.Data()
	if err != nil {
		return File{}, fmt.Errorf("its .modinfo section cannot be read: %w", err)
	}
	fields := map[string]string{}
	for field := range strings.SplitSeq(string(said), "\x00") {
		if key, value, ok := strings.Cut(field, "="); ok {
			fields[key] = value
		}
	}
	arch := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[f.Machine]
	release, _, _ := strings.Cut(fields["vermagic"], " ")
	switch {
	case fields["name"] != Name:
		return File{}, fmt.Errorf("it is the module %q, not %s", fields["name"], Name)
	case release == "":
		return File{}, errors.New("it does not specify which kernel it was built for (vermagic)")
	case arch == "":
		return File{}, fmt.Errorf("it is for %s, but must be for amd64 or arm64", f.Machine)
	}
	return File{
		Release: release, Magic: fields["vermagic"], Arch: arch, Signed: bytes.HasSuffix(raw, []byte(signature)),
	}, nil
}
