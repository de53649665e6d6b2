package module

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// instead suggests the alternative that works on every node.
const instead = "--via kmsg needs no module"

// mayLoad returns an error if the kernel would reject the module. It is called before anything is changed. file is nil
// if the module has not been built yet; such a module is not signed.
func mayLoad(host hostfs.Host, file *kmod.File) *api.Error {
	root, proc := hostfs.FS(host.Root), os.DirFS(host.Proc)
	if _, err := fs.Stat(proc, "modules"); err != nil {
		return api.Errorf(api.CodeNoModules,
			"the node's kernel (%s) cannot load modules: it was built without CONFIG_MODULES; %s", release(host),
			instead)
	}
	if hostfs.Trimmed(proc, "sys/kernel/modules_disabled") == "1" {
		return api.Errorf(api.CodeNoModules,
			"the node's kernel does not accept modules until the next boot: kernel.modules_disabled is 1; %s", instead)
	}
	if run, loaded := loadedModule(host); loaded {
		do := "unload the module on the node: rmmod " + kmod.Name
		if run != "" {
			do = "revert that run: kubectl gpu-fault revert " + run
		}
		return api.Errorf(api.CodeLoaded, "the kernel module %s is already loaded by %s and was not unloaded: %s; %s",
			kmod.Name,
			owner(run), do, instead)
	}
	if why := onlySigned(root); why != "" && (file == nil || !file.Signed) {
		return untrusted(host, why)
	}
	switch {
	case file == nil:
	case file.Release != release(host):
		return api.Errorf(api.CodeVermagic,
			"the module is for kernel %s, but the node runs %s: build it against the headers for the node's kernel; %s",
			file.Release, release(host), instead)
	case file.Arch != runtime.GOARCH:
		return api.Errorf(api.CodeVermagic, "the module is for %s, but the node is %s: build it on a machine with the node's architecture; %s",
			file.Arch, runtime.GOARCH, instead)
	}
	return nil
}

// untrusted returns the error for a module without a signature.
func untrusted(host hostfs.Host, why string) *api.Error {
	if secureBoot(hostfs.FS(host.Root)) {
		why += ", Secure Boot is enabled"
	}
	return api.Errorf(api.CodeUntrusted,
		"the node's kernel accepts only modules with a trusted signature (%s): sign the module with a key that is enrolled on the node, and specify it with --ko (see docs/kmod.md); %s",
		why, instead)
}

// onlySigned returns the feature that makes the kernel require signatures, or "" if the kernel does not require them.
// Secure Boot alone does not make the kernel require signatures; distribution kernels also enable lockdown.
func onlySigned(root fs.FS) string {
	if hostfs.Trimmed(root, "sys/module/module/parameters/sig_enforce") == "Y" {
		return "module.sig_enforce is enabled"
	}
	// The format is "none [integrity] confidentiality".
	_, chosen, _ := strings.Cut(hostfs.Trimmed(root, "sys/kernel/security/lockdown"), "[")
	if mode, _, ok := strings.Cut(chosen, "]"); ok && mode != "none" {
		return fmt.Sprintf("lockdown is in mode %q", mode)
	}
	return ""
}

// secureBoot reports whether Secure Boot is enabled. The firmware variable consists of four bytes of attributes and one
// byte, which is 1 if Secure Boot is enabled.
func secureBoot(root fs.FS) bool {
	raw, err := fs.ReadFile(root, "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
	return err == nil && len(raw) == 5 && raw[4] == 1
}

// release returns the node's kernel release, in the format of `uname -r`.
func release(host hostfs.Host) string {
	return hostfs.Trimmed(os.DirFS(host.Proc), "sys/kernel/osrelease")
}
