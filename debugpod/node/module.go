package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

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
		_, text, _ := cutPriority(r.Data)
		if err := kmod.CheckRecord(strings.TrimSuffix(text, "\n")); err != nil {
			return fmt.Errorf("record %d of %d: %w", i+1, len(records), err)
		}
	}
	return nil
}

// moduleKernel is the kernel that modules are loaded into.
type moduleKernel interface {
	load(module []byte, parameters string) error
	// unload returns errModuleInUse while somebody has its device open, and nil where it is not loaded.
	unload(name string) error
	// open opens the module's character device for writing; number is as sysfs has it, "10:125".
	open(number string) (moduleDevice, error)
}

// moduleDevice takes a record with each Write, and returns errTooFast for one that comes too soon.
type moduleDevice interface {
	Write([]byte) (int, error)
	Close() error
}

var (
	errModuleInUse = errors.New("somebody has its device open")
	errTooFast     = errors.New("too many records at once")
	// errUntrusted is the kernel's refusal of a module because of its signature, or for lack of one.
	errUntrusted = errors.New("the kernel does not trust it")
)

// writeModule does WriteModule. The module is loaded for as long as it writes.
func writeModule(
	ctx context.Context, run string, req WriteModule, host Host, kernel moduleKernel, send func(Answer) error,
) (failure *Error) {
	file, err := kmod.ParseFile(req.Module)
	if err != nil {
		return errorf(CodeBadRequest, "the kernel module: %v", err)
	}
	if failure := mayLoad(host, &file); failure != nil {
		return failure
	}
	if failure := mayWriteKmsg(host); failure != nil { // who may not write /dev/kmsg may not read it either
		return failure
	}
	log, err := openKernelLog(host.Kmsg)
	if err != nil {
		return errorf(CodeUnsupported, "%v", err)
	}
	if err := kernel.load(req.Module, kmod.ParamRun+"="+run); err != nil {
		return notLoaded(host, file, err)
	}
	defer func() {
		if err := kernel.unload(kmod.Name); err != nil {
			left := errorf(CodeStays,
				"the kernel module %s stays loaded: %v; revert the run to unload it, or on the node: rmmod %s",
				kmod.Name, err, kmod.Name)
			if failure != nil {
				left.Message = failure.Message + "; and " + left.Message
			}
			failure = left
		}
	}()
	device, err := kernel.open(trimmed(rootFS(host.Root), "sys/class/misc/"+kmod.Name+"/dev"))
	if err != nil {
		return errorf(CodeKmsg, "open the device of the kernel module: %v", err)
	}
	defer func() { _ = device.Close() }()
	return writeRecords(ctx, req.Records, moduleLog{log, device, defaultLevel(host)}, send)
}

// notLoaded returns why the kernel refused the module. Nothing was loaded.
func notLoaded(host Host, file kmod.File, err error) *Error {
	switch {
	case errors.Is(err, errUntrusted) && file.Signed:
		return errorf(CodeUntrusted,
			"the node's kernel does not trust the key that signed the module (%v): enroll the key (mokutil --import) or sign with another; %s",
			err, instead)
	case errors.Is(err, errUntrusted):
		return untrusted(host, err.Error())
	default:
		return errorf(CodeNotLoaded,
			"the node's kernel (%s) refuses the module (%s): %v; build it against the headers of this very kernel; %s",
			release(host), file.Magic, err, instead)
	}
}

// removeModule does RemoveModule.
func removeModule(run string, host Host, kernel moduleKernel) (*RemovedModule, *Error) {
	whose, loaded := loadedModule(host)
	if !loaded {
		return &RemovedModule{}, nil
	}
	if whose != run {
		return &RemovedModule{Other: owner(whose)}, nil
	}
	if err := kernel.unload(kmod.Name); err != nil {
		return nil,
			errorf(CodeStays, "the kernel module %s stays loaded: %v; on the node: rmmod %s", kmod.Name, err, kmod.Name)
	}
	return &RemovedModule{Removed: true}, nil
}

// loadedModule reports whether the module is loaded, and by which run; "" is none of ours.
func loadedModule(host Host) (run string, loaded bool) {
	dir := "sys/module/" + kmod.Name
	if _, err := fs.Stat(rootFS(host.Root), dir); err != nil {
		return "", false
	}
	return trimmed(rootFS(host.Root), dir+"/parameters/"+kmod.ParamRun), true
}

// owner names who loaded a module.
func owner(run string) string {
	if run == "" {
		return "somebody, without this tool"
	}
	return "run " + run
}

// moduleLog is a kernel log that is written through the module.
type moduleLog struct {
	kernelLog // to read it back
	device    moduleDevice
	level     int
}

func (l moduleLog) write(data string) error {
	_, text, _ := cutPriority(data)
	for until := time.Now().Add(proofTimeout); ; time.Sleep(5 * time.Millisecond) {
		_, err := l.device.Write([]byte(text))
		if !errors.Is(err, errTooFast) || time.Now().After(until) {
			return err
		}
	}
}

// expected returns the record as the kernel's own: the level is the driver's, which is the default one but for
// NVSwitches.
func (l moduleLog) expected(data string) (priority int, text string) {
	_, text = expected(data)
	if strings.HasPrefix(text, "nvidia-nvswitch") {
		return levelError, text
	}
	return l.level, text
}

// The levels of the driver's lines. It prints those of GPUs without a level.
const (
	levelError   = 3
	levelWarning = 4
)

// defaultLevel returns the level of what the kernel logs without one: the second number of kernel.printk.
func defaultLevel(host Host) int {
	var console, level int
	if n, _ := fmt.Sscan(trimmed(os.DirFS(host.Proc), "sys/kernel/printk"), &console, &level); n < 2 {
		return levelWarning
	}
	return level
}
