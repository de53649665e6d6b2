// Package module builds, loads, and unloads the kernel module in the kmod directory, and writes records through the
// module.
package module

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/kmsg"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// moduleKernel is the interface to the kernel for loading modules.
type moduleKernel interface {
	load(module []byte, parameters string) error
	// unload returns errModuleInUse if a process has the module's device open, and nil if the module is not loaded.
	unload(name string) error
	// open opens the module's character device for writing. number is its device number in sysfs, such as "10:125".
	open(number string) (moduleDevice, error)
}

// moduleDevice writes one record per Write. It returns errTooFast if a record follows the previous one too soon.
type moduleDevice interface {
	Write([]byte) (int, error)
	Close() error
}

var (
	errModuleInUse = errors.New("a process has the module's device open")
	errTooFast     = errors.New("too many records at once")
	// errUntrusted means that the kernel rejected a module because its signature is missing or not trusted.
	errUntrusted = errors.New("the kernel does not trust the module")
)

// Write handles WriteModule. The module is loaded only while records are being written.
func Write(
	ctx context.Context, run string, req api.WriteModule, host hostfs.Host, send func(api.Answer) error,
) *api.Error {
	return writeModule(ctx, run, req, host, thisKernel(), send)
}

// writeModule is like Write, but with the given kernel.
func writeModule(
	ctx context.Context, run string, req api.WriteModule, host hostfs.Host, kernel moduleKernel,
	send func(api.Answer) error,
) (failure *api.Error) {
	file, err := kmod.ParseFile(req.Module)
	if err != nil {
		return api.Errorf(api.CodeBadRequest, "the kernel module: %v", err)
	}
	if failure := mayLoad(host, &file); failure != nil {
		return failure
	}
	if failure := kmsg.MayWrite(host); failure != nil { // without write access, reading fails too
		return failure
	}
	log, err := kmsg.Open(host.Kmsg)
	if err != nil {
		return api.Errorf(api.CodeUnsupported, "%v", err)
	}
	if err := kernel.load(req.Module, kmod.ParamRun+"="+run); err != nil {
		return notLoaded(host, file, err)
	}
	defer func() {
		if err := kernel.unload(kmod.Name); err != nil {
			left := api.Errorf(api.CodeStays,
				"the kernel module %s is still loaded: %v; to unload it, revert the run, or run this command on the node: rmmod %s",
				kmod.Name, err, kmod.Name)
			if failure != nil {
				left.Message = failure.Message + "; and " + left.Message
			}
			failure = left
		}
	}()
	device, err := kernel.open(hostfs.Trimmed(hostfs.FS(host.Root), "sys/class/misc/"+kmod.Name+"/dev"))
	if err != nil {
		return api.Errorf(api.CodeKmsg, "open the device of the kernel module: %v", err)
	}
	defer func() { _ = device.Close() }()
	return kmsg.WriteTo(ctx, req.Records, moduleLog{log, device, defaultLevel(host)}, send)
}

// notLoaded returns the error for a module that the kernel rejected. Nothing was loaded.
func notLoaded(host hostfs.Host, file kmod.File, err error) *api.Error {
	switch {
	case errors.Is(err, errUntrusted) && file.Signed:
		return api.Errorf(api.CodeUntrusted,
			"the node's kernel does not trust the key that signed the module (%v): enroll the key (mokutil --import), or sign with another key; %s",
			err, instead)
	case errors.Is(err, errUntrusted):
		return untrusted(host, err.Error())
	default:
		return api.Errorf(api.CodeNotLoaded,
			"the node's kernel (%s) rejects the module (%s): %v; build it against the headers for exactly this kernel; %s",
			release(host), file.Magic, err, instead)
	}
}

// Remove handles RemoveModule.
func Remove(run string, host hostfs.Host) (*api.RemovedModule, *api.Error) {
	return removeModule(run, host, thisKernel())
}

// removeModule is like Remove, but with the given kernel.
func removeModule(run string, host hostfs.Host, kernel moduleKernel) (*api.RemovedModule, *api.Error) {
	whose, loaded := loadedModule(host)
	if !loaded {
		return &api.RemovedModule{}, nil
	}
	if whose != run {
		return &api.RemovedModule{Other: owner(whose)}, nil
	}
	if err := kernel.unload(kmod.Name); err != nil {
		return nil,
			api.Errorf(api.CodeStays, "the kernel module %s is still loaded: %v; to unload it, run this command on the node: rmmod %s", kmod.Name, err,
				kmod.Name)
	}
	return &api.RemovedModule{Removed: true}, nil
}

// loadedModule reports whether the module is loaded, and returns the run that loaded the module, or "" if it was not
// loaded by a run.
func loadedModule(host hostfs.Host) (run string, loaded bool) {
	dir := "sys/module/" + kmod.Name
	if _, err := fs.Stat(hostfs.FS(host.Root), dir); err != nil {
		return "", false
	}
	return hostfs.Trimmed(hostfs.FS(host.Root), dir+"/parameters/"+kmod.ParamRun), true
}

// owner describes the owner of a loaded module.
func owner(run string) string {
	if run == "" {
		return "another program"
	}
	return "run " + run
}

// moduleLog is a kernel log written through the module.
type moduleLog struct {
	kmsg.Log // used to read records back
	device   moduleDevice
	level    int
}

func (l moduleLog) Write(data string) error {
	_, text, _ := api.CutPriority(data)
	for until := time.Now().Add(kmsg.ProofTimeout); ; time.Sleep(5 * time.Millisecond) {
		_, err := l.device.Write([]byte(text))
		if !errors.Is(err, errTooFast) || time.Now().After(until) {
			return err
		}
	}
}

// Stored returns the record as the kernel stores it. The level is the same as the driver's, which is the default level
// except for NVSwitches.
func (l moduleLog) Stored(data string) (priority int, text string) {
	_, text = api.Stored(data)
	if strings.HasPrefix(text, "nvidia-nvswitch") {
		return levelError, text
	}
	return l.level, text
}

// Log levels of the driver's records. The driver logs GPU errors without a level.
const (
	levelError   = 3
	levelWarning = 4
)

// defaultLevel returns the level of records that are logged without one, which is the second number in kernel.printk.
func defaultLevel(host hostfs.Host) int {
	var console, level int
	if n, _ := fmt.Sscan(hostfs.Trimmed(os.DirFS(host.Proc), "sys/kernel/printk"), &console, &level); n < 2 {
		return levelWarning
	}
	return level
}
