// Package kmod is the kernel module gpu_fault_xid: its source, what it takes for a record, and what a built one says
// about itself.
//
// The module is GPL-2.0 (module/LICENSE), as what links to the kernel must be; the program only carries its text, to
// build it on a node.
package kmod

import (
	"embed"
	"io/fs"
)

// Name is the module's, and that of its device.
const Name = "gpu_fault_xid"

// ParamRun is the module's parameter that says whose it is: the ID of the run that loaded it.
const ParamRun = "run"

//go:embed module/gpu_fault_xid.c module/Kbuild
var module embed.FS

// Sources returns the files that the kernel's own build system needs, by their names.
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
