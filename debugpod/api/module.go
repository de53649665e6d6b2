package api

import (
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// BuildModule requests a build of the kernel module for the node's kernel. It loads nothing, and creates files only in
// the debug pod. The pod's image must contain make and a compiler, and the node must have the headers for its kernel.
type BuildModule struct {
	// Headers is the directory on the node with the headers for its kernel. If it is empty, the usual directories are
	// searched.
	Headers string `json:"headers,omitempty"`
}

// WriteModule loads the kernel module for the request's run, writes records through it, reads back each record, which
// must have the kernel facility, and unloads the module. If a step after loading fails, the module is unloaded before
// the last response, unless the response has CodeStays.
type WriteModule struct {
	Module  []byte       `json:"module"` // gpu_fault_xid.ko
	Records []KmsgRecord `json:"records"`
}

// RemoveModule unloads the kernel module if the request's run loaded it and it is still loaded.
type RemoveModule struct{}

// BuiltModule is the response to BuildModule.
type BuiltModule struct {
	Module   []byte `json:"module"`  // gpu_fault_xid.ko
	Headers  string `json:"headers"` // directory of the headers on the node
	Compiler string `json:"compiler"`
}

// RemovedModule is the response to RemoveModule.
type RemovedModule struct {
	// Removed reports whether the run's module was loaded. It is now unloaded.
	Removed bool `json:"removed,omitempty"`
	// Other describes the owner of a loaded module that does not belong to the run. That module was kept.
	Other string `json:"other,omitempty"`
}

// Validate returns an error if the kernel or the module would reject the request.
func (w WriteModule) Validate() error {
	if _, err := kmod.ParseFile(w.Module); err != nil {
		return fmt.Errorf("invalid kernel module: %w", err)
	}
	return CheckModuleRecords(w.Records)
}

// CheckModuleRecords returns an error if the kernel module would reject a record.
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
