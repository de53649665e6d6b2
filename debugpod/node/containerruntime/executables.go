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

// executables checks what the handlers execute, of the configuration on disk and of the one in memory.
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

// handlers returns those of the disk and those in memory.
func (in *Inspection) handlers(i *api.Instance) []api.Handler {
	var all []api.Handler
	add := func(from *containerd.Merged, err error) {
		if err != nil || from == nil {
			return // whoever shows the configuration says what is wrong with it
		}
		for _, h := range from.Handlers {
			all = append(all, api.Handler{Type: h.Type, BinaryName: h.BinaryName})
		}
	}
	add(i.OnDisk())
	add(i.InMemory())
	return all
}

// lookUp returns what is wrong with a program that the process would execute: at its path, or in the folders of its
// PATH and in more.
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
	return "in no folder of PATH (" + folders + ")"
}

// version asks the process's own program: `containerd --version`. A program of a container, which anybody may have put
// there, is not run: it would have more rights here than there.
func (in *Inspection) version(ctx context.Context, p process.Process) (string, error) {
	node := hostfs.FS(in.host.Root)
	running, err := os.Stat(p.Dir + "/exe")
	if err != nil {
		return "", err
	}
	onNode, err := node.Info(p.Exe)
	if err != nil || !os.SameFile(running, onNode) {
		return "", fmt.Errorf("%s is not a program of the node itself", p.Exe)
	}
	return in.versionOf(ctx, node, p.Exe, p.Args[0])
}

// versionOf asks a program, called as name: "containerd github.com/containerd/containerd/v2 v2.3.7 1a2b...".
func (in *Inspection) versionOf(ctx context.Context, root hostfs.FS, exe, name string) (string, error) {
	out, err := in.Run(ctx, root, exe, name, "--version")
	if err != nil {
		return "", err
	}
	words := strings.Fields(out)
	if len(words) < 3 || words[0] != "containerd" {
		return "", fmt.Errorf("%s --version says %q", exe, strings.TrimSpace(out))
	}
	return words[2], nil
}
