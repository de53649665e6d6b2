package containerruntime

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// executables checks the programs that the handlers execute, in both the on-disk and the in-memory configuration.
func (in *Inspection) executables(i *api.Instance, p process.Process) {
	root := p.Root(in.host)
	i.Executables = map[string]string{}
	for _, handler := range in.handlers(i) {
		if binary := handler.Binary(); binary != "" {
			i.Executables[binary] = lookUp(p, root, binary)
		}
		if shim := handler.Shim(); shim != "" {
			i.Executables[shim] = lookUp(p, root, shim, path.Dir(p.Exe))
		}
	}
}

// handlers returns the handlers in the on-disk and the in-memory configuration.
func (in *Inspection) handlers(i *api.Instance) []api.Handler {
	var all []api.Handler
	add := func(from *containerd.Merged, err error) {
		if err != nil || from == nil {
			return // the error is reported together with the configuration
		}
		for _, h := range from.Handlers {
			all = append(all, api.Handler{Type: h.Type, BinaryName: h.BinaryName})
		}
	}
	add(i.OnDisk())
	add(i.InMemory())
	return all
}

// lookUp returns the reason why the process cannot execute a program, or "". A name that is not an absolute path is
// searched for in the process's PATH and in the additional directories.
func lookUp(p process.Process, root hostfs.FS, name string, more ...string) string {
	if path.IsAbs(name) {
		return hostfs.Executable(root, name)
	}
	folders := p.Env["PATH"]
	if folders == "" {
		folders = hostexec.UsualPath
	}
	for _, dir := range append(strings.Split(folders, ":"), more...) {
		if hostfs.Executable(root, path.Join(dir, name)) == "" {
			return ""
		}
	}
	return "not found in PATH (" + folders + ")"
}

// version runs the process's program with --version. It does not run a program from a container, because the program
// may be untrusted and would gain privileges.
func (in *Inspection) version(ctx context.Context, p process.Process) (string, error) {
	node := hostfs.FS(in.host.Root)
	running, err := os.Stat(p.Dir + "/exe")
	if err != nil {
		return "", err
	}
	onNode, err := node.Info(p.Exe)
	if err != nil || !os.SameFile(running, onNode) {
		return "", fmt.Errorf("%s is not a program on the node itself", p.Exe)
	}
	return in.versionOf(ctx, node, p.Exe, p.Args[0])
}

// versionOf runs a program under the given name and parses its version: "containerd github.com/containerd/containerd/v2
// v2.3.7 1a2b...".
func (in *Inspection) versionOf(ctx context.Context, root hostfs.FS, exe, name string) (string, error) {
	out, err := in.Run(ctx, root, exe, name, "--version")
	if err != nil {
		return "", err
	}
	words := strings.Fields(out)
	if len(words) < 3 || words[0] != "containerd" {
		return "", fmt.Errorf("unexpected output of %s --version: %q", exe, strings.TrimSpace(out))
	}
	return words[2], nil
}
