package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// usualPath is PATH of a service of systemd.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// executables checks what the handlers execute, of the configuration on disk and of the one in memory.
func (in *inspection) executables(i *Instance, p program) {
	root := p.root(in.host)
	i.Executables = map[string]string{}
	for _, handler := range in.handlers(i) {
		if binary := handler.Binary(); binary != "" {
			i.Executables[binary] = p.lookUp(root, binary)
		}
		if shim := handler.Shim(); shim != "" {
			i.Executables[shim] = p.lookUp(root, shim, path.Dir(p.exe))
		}
	}
}

// handlers returns those of the disk and those in memory.
func (in *inspection) handlers(i *Instance) []Handler {
	var all []Handler
	add := func(from *containerd.Merged, err error) {
		if err != nil || from == nil {
			return // whoever shows the configuration says what is wrong with it
		}
		for _, h := range from.Handlers {
			all = append(all, Handler{Type: h.Type, BinaryName: h.BinaryName})
		}
	}
	add(i.OnDisk())
	add(i.InMemory())
	return all
}

// Handler is what Instance.Executables knows of a handler: the keys to look up.
type Handler struct{ Type, BinaryName string }

// Binary returns what the shim executes, as it is configured; empty when that is not runc's business.
func (h Handler) Binary() string {
	switch {
	case h.BinaryName != "":
		return h.BinaryName
	case h.Type == "" || strings.HasPrefix(h.Type, "io.containerd.runc."):
		return "runc"
	default:
		return ""
	}
}

// Shim returns what containerd executes: the runtime_type io.containerd.runc.v2 is containerd-shim-runc-v2
// (core/runtime/v2/shim/util.go in containerd). Empty for one that is no name of a shim.
func (h Handler) Shim() string {
	name := h.Type
	if name == "" {
		name = "io.containerd.runc.v2"
	}
	if path.IsAbs(name) {
		return name
	}
	parts := strings.Split(name, ".")
	if len(parts) < 2 || slices.Contains(parts, "") {
		return ""
	}
	return fmt.Sprintf("containerd-shim-%s-%s", parts[len(parts)-2], parts[len(parts)-1])
}

// lookUp returns what is wrong with a program that the process would execute: at its path, or in the folders of its
// PATH and in more.
func (p program) lookUp(root rootFS, name string, more ...string) string {
	if path.IsAbs(name) {
		return executable(root, name)
	}
	folders := p.env["PATH"]
	if folders == "" {
		folders = usualPath
	}
	for _, dir := range append(strings.Split(folders, ":"), more...) {
		if executable(root, path.Join(dir, name)) == "" {
			return ""
		}
	}
	return "in no folder of PATH (" + folders + ")"
}

// executable returns why the file cannot be executed; empty when it can.
func executable(root rootFS, name string) string {
	info, err := root.stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case err != nil:
		return err.Error()
	case info.IsDir():
		return "a folder"
	case info.Mode()&0o111 == 0:
		return "not executable"
	case info.Size() == 0:
		return "empty"
	}
	return ""
}

// version asks the process's own program: `containerd --version`. A program of a container, which anybody may have put
// there, is not run: it would have more rights here than there.
func (in *inspection) version(ctx context.Context, p program) (string, error) {
	node := rootFS(in.host.Root)
	running, err := os.Stat(p.proc + "/exe")
	if err != nil {
		return "", err
	}
	onNode, err := node.stat(p.exe)
	if err != nil || !os.SameFile(running, onNode) {
		return "", fmt.Errorf("%s is not a program of the node itself", p.exe)
	}
	return in.versionOf(ctx, node, p.exe, p.args[0])
}

// versionOf asks a program, called as name: "containerd github.com/containerd/containerd/v2 v2.3.7 1a2b...".
func (in *inspection) versionOf(ctx context.Context, root rootFS, exe, name string) (string, error) {
	out, err := in.run(ctx, root, exe, name, "--version")
	if err != nil {
		return "", err
	}
	words := strings.Fields(out)
	if len(words) < 3 || words[0] != "containerd" {
		return "", fmt.Errorf("%s --version says %q", exe, strings.TrimSpace(out))
	}
	return words[2], nil
}
