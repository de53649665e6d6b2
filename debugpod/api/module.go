package api

import (
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// BuildModule asks for the kernel module to be built for the node's kernel. Nothing is loaded, and files are made in
// the debug pod only: its image has make and a compiler, the node the headers of its kernel.
type BuildModule struct {
	// Headers is the directory on the node with the headers of its kernel; empty: where they usually are.
	Headers string `json:"headers,omitempty"`
}

// WriteModule loads the kernel module in the name of the request's run, writes records through it, reads each back with
// the facility of the kernel, and unloads it. Whatever goes wrong after it was loaded, it is unloaded before the
// helper's last answer, unless that has CodeStays.
type WriteModule struct {
	Module  []byte       `json:"module"` // gpu_fault_xid.ko
	Records []KmsgRecord `json:"records"`
}

// RemoveModule unloads the kernel module if the request's run had loaded it and it still is.
type RemoveModule struct{}

// BuiltModule is the answer to BuildModule.
type BuiltModule struct {
	Module   []byte `json:"module"`  // gpu_fault_xid.ko
	Headers  string `json:"headers"` // where they lie on the node
	Compiler string `json:"compiler"`
}

// RemovedModule is the answer to RemoveModule.
type RemovedModule struct {
	// Removed reports whether the run's module was loaded. It is not any more.
	Removed bool `json:"removed,omitempty"`
	// Other says of a loaded module that is not the run's whose it is; it was left.
	Other string `json:"other,omitempty"`
}

// Validate returns what of the request the kernel or the module would refuse.
func (w WriteModule) Validate() error {
	if _, err := kmod.ParseFile(w.Module); err != nil {
		return fmt.Errorf("the kernel module: %w", err)
	}
	return CheckModuleRecords(w.Records)
}

// CheckModuleRecords returns which record the kernel module would refuse.
func CheckModuleRecords(records []KmsgRecord) error {
	if err := (WriteKmsg{Records: records}).Validate(); err != nil {
		return err
	}
	for i, r := range records {
		_, text, _ := CutPriority(r.Data)
		if err := kmod.CheckRecord(strings.TrimSuffix(text, "\n")); err != nil {
			return fmt.Errorf("record %d of %d: %w", i+1, len(records), err)
		}
	}
	return nil
}
