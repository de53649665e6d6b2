package xid

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// moduleFlags configure the source of the kernel module for --via kmod.
type moduleFlags struct {
	path    string
	headers string
	builder string

	file  []byte    // content of the file at path; nil means that the module is built on the node
	built kmod.File // the module's own metadata
}

const (
	// builderImage contains make, gcc and libelf, and a C library recent enough for the programs in the kernel headers
	// of most nodes.
	builderImage = "public.ecr.aws/docker/library/buildpack-deps:trixie"
	// builderMemory is sufficient for the compiler and for the page cache of the files that it reads.
	builderMemory = "512Mi"
	// buildTime is the additional timeout per node for building the module.
	buildTime = 3 * time.Minute
)

func (f *moduleFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.path, "ko", f.path,
		"For --via kmod: prebuilt module (gpu_fault_xid.ko) for the nodes' kernel, to use instead of building it on the nodes; must be signed if the nodes require it")
	flags.StringVar(&f.headers, "kmod-headers", f.headers,
		"For --via kmod: directory that contains the kernel headers on the nodes (default: the directories used by packages and by NVIDIA's driver container)")
	flags.StringVar(&f.builder, "builder-image", f.builder,
		"For --via kmod without --ko: image of the debug pod that builds the module; requires sh, make, gcc, libelf and a C library no older than the nodes'")
	_ = cmd.MarkFlagFilename("ko", "ko")
}

// validate checks everything that does not require a cluster, and reads the file.
func (f *moduleFlags) validate(via xid.Via) error {
	switch {
	case via != xid.ViaKmod && f.path != "":
		return errors.New("--ko requires --via kmod")
	case via != xid.ViaKmod && f.headers != "":
		return errors.New("--kmod-headers requires --via kmod")
	case via != xid.ViaKmod:
		return nil
	case f.path != "" && f.headers != "":
		return errors.New(
			"--ko and --kmod-headers cannot be used together: --ko specifies a prebuilt module, and --kmod-headers is used to build one",
		)
	case f.headers != "" && (!path.IsAbs(f.headers) || path.Clean(f.headers) != f.headers):
		return fmt.Errorf(
			"invalid value %q for --kmod-headers: must be an absolute path on the nodes, such as /usr/src/linux-headers-6.1.0-56-amd64",
			f.headers,
		)
	case f.builder == "" && f.path == "":
		return errors.New("--builder-image must not be empty: specify an image with make and gcc, or a prebuilt module with --ko")
	case f.path == "":
		return nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("--ko: %w", err)
	}
	defer file.Close()
	if f.file, err = io.ReadAll(io.LimitReader(file, kmod.MaxFile+1)); err != nil {
		return fmt.Errorf("--ko: %w", err)
	}
	if f.built, err = kmod.ParseFile(f.file); err != nil {
		return fmt.Errorf("--ko %s: %w", f.path, err)
	}
	return nil
}

// throughModule returns the kernel module that writes the records of a run, or nil if user space writes them.
func (f *inject) throughModule() *kernellog.Module {
	if f.via != string(xid.ViaKmod) {
		return nil
	}
	return &kernellog.Module{File: f.module.file, Headers: f.module.headers}
}

// builds reports whether the module is built on the nodes.
func (f *inject) builds() bool { return f.via == string(xid.ViaKmod) && f.module.file == nil }

// how describes what the pods do on the nodes, and what can be undone.
func (w *writing) how() []string {
	namespace := w.connection.LedgerNamespace
	const forget = "`kubectl gpu-fault revert` shows how to clear the lines from each detector."
	if w.via != string(xid.ViaKmod) {
		return []string{
			fmt.Sprintf(
				"How: a privileged pod in namespace %q%s writes to /dev/kmsg, reads the lines back and is then deleted.",
				namespace, w.Pods.OtherImage(),
			),
			w.undoOfLayers() + "none, because lines in a kernel log cannot be removed; " + forget,
		}
	}
	from := fmt.Sprintf("which it builds in image %s against the headers on the node", w.module.builder)
	if w.module.file != nil {
		from = fmt.Sprintf("from %s, for kernel %s", w.module.path, w.module.built.Release)
	}
	taint := "O and E (out of tree, no signature)"
	if w.module.built.Signed {
		taint = "O (out of tree)"
	}
	return []string{
		fmt.Sprintf(
			"How: a privileged pod in namespace %q%s loads the kernel module %s, %s; writes through the module, reads the lines back, unloads the module and is then deleted.",
			namespace, w.Pods.OtherImage(), kmod.Name, from,
		),
		fmt.Sprintf(
			"The kernel notes in its log that a module was loaded, and is tainted (%s) until the next boot.",
			taint,
		),
		w.undoOfLayers() + "the module is unloaded immediately, or by `kubectl gpu-fault revert` if this command is killed. " +
			"The lines in the kernel log cannot be removed; " + forget,
	}
}

// undoOfLayers returns the first part of the description of how the run is undone.
func (w *writing) undoOfLayers() string {
	if w.layers.isOne() {
		return "Undo: "
	}
	return "Undo: `kubectl gpu-fault revert RUN` ends all layers except kernel. For the kernel log: "
}
