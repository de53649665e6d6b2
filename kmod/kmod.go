// Package kmod contains the kernel module gpu_fault_xid: its source, the rules for the records that it accepts, and the
// information that a built module contains about itself.
//
// The module is licensed under GPL-2.0 (module/LICENSE), as code that links to the kernel must be. The program contains
// only the module's source, to build it on a node.
package kmod

import (
	"embed"
	"io/fs"
)

// Name is the name of the module and of its device.
const Name = "gpu_fault_xid"

// ParamRun is the module parameter that identifies the module's owner: the ID of the run that loaded the module.
const ParamRun = "run"

//go:embed module/gpu_fault_xid.c module/Kbuild
var module embed.FS

// Sources returns the files that the kernel's own build system needs, by name.
func Sources() (map[string][]byte, error) {
	files := map[string][]byte{}
	entries, err := module.ReadDir("module")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if files[e.Name()], err = fs.ReadFile(module, "module/"+e.Name()); err != nil {
			return nil, err
		}
	}
	return files, nil
}
