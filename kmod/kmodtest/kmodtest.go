// Package kmodtest creates test files that claim to be kernel modules. No kernel would load them.
package kmodtest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// File returns a fake gpu_fault_xid.ko for a kernel. Only that kernel itself would detect that the file is fake.
func File(machine elf.Machine, release string) []byte {
	return Object(machine,
		"license=GPL\x00name=gpu_fault_xid\x00vermagic="+release+" SMP preempt mod_unload modversions \x00")
}

// Object returns a relocatable file with a .modinfo section.
func Object(machine elf.Machine, modinfo string) []byte {
	const names = "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	header := elf.Header64{
		Type: uint16(elf.ET_REL), Machine: uint16(machine), Version: 1, Ehsize: 64, Shentsize: 64, Shnum: 3,
		Shstrndx: 2,
		Shoff:    uint64(64 + len(modinfo) + len(names)),
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64),
		byte(elf.ELFDATA2LSB), 1
	for _, part := range []any{
		header, []byte(modinfo), []byte(names), elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: 64, Size: uint64(len(modinfo))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(64 + len(modinfo)), Size: uint64(len(names))},
	} {
		_ = binary.Write(&b, binary.LittleEndian, part) // a buffer takes all of it
	}
	return b.Bytes()
}
