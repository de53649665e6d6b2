package module

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// sourceTree is the directory in which distributions install kernel headers. Debian's packages refer to each other by
// absolute paths below it.
const sourceTree = "/usr/src"

// Build handles BuildModule.
func Build(ctx context.Context, req api.BuildModule, host hostfs.Host) (*api.BuiltModule, *api.Error) {
	if failure := mayLoad(host, nil); failure != nil {
		return nil, failure
	}
	if _, err := exec.LookPath("make"); err != nil {
		return nil, api.Errorf(api.CodeNoCompiler,
			"the debug pod's image does not contain make: use --builder-image to specify an image with make, gcc and libelf, or --ko to specify a prebuilt module; %s",
			instead)
	}
	headers, failure := findHeaders(host, req.Headers)
	if failure != nil {
		return nil, failure
	}
	compiler, err := chooseCompiler(headers.real)
	if err != nil {
		return nil, api.Errorf(api.CodeNoCompiler,
			"%v: specify another image with --builder-image, or a prebuilt module with --ko; %s", err, instead)
	}
	// A minimal compiler image may lack the directory.
	if err := os.MkdirAll(os.TempDir(), 0o700); err != nil {
		return nil, api.Errorf(api.CodeBuild, "create a directory for the kernel module: %v", err)
	}
	dir, err := os.MkdirTemp("", "gpu-fault-kmod-")
	if err != nil {
		return nil, api.Errorf(api.CodeBuild, "create a directory for the kernel module: %v", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	here, failure, leave := bring(host, req, dir)
	if failure != nil {
		return nil, failure
	}
	defer leave()
	built, err := compile(ctx, dir, here.real, compiler)
	if err != nil {
		return nil,
			api.Errorf(api.CodeBuild, "build the kernel module with %s and the headers in %s: %v", compiler,
				headers.shown, err)
	}
	file, err := kmod.ParseFile(built)
	if err != nil {
		return nil, api.Errorf(api.CodeBuild, "the result of the build is not this tool's kernel module: %v", err)
	}
	if failure := mayLoad(host, &file); failure != nil {
		failure.Message = fmt.Sprintf("with the headers in %s: %s", headers.shown, failure.Message)
		return nil, failure
	}
	return &api.BuiltModule{Module: built, Headers: headers.shown, Compiler: compiler}, nil
}

// bring makes the node's kernel headers available in the debug pod, in a subdirectory of dir. The returned function
// leave must be called before dir is removed.
func bring(host hostfs.Host, req api.BuildModule, dir string) (here headers, failure *api.Error, leave func()) {
	failed := func(err error) (headers, *api.Error, func()) {
		return headers{}, api.Errorf(api.CodeBuild, "copy the headers to the debug pod: %v", err), nil
	}
	at := dir + "-node"
	if err := os.Mkdir(at, 0o700); err != nil {
		return failed(err)
	}
	unmount, err := mountNode(host, at)
	if err != nil {
		return failed(errors.Join(err, os.Remove(at)))
	}
	var links []string
	leave = func() {
		for _, link := range links {
			_ = os.Remove(link)
		}
		if unmount() == nil {
			_ = os.Remove(at) // removes only an empty directory
		}
	}
	host.Root = at
	if here, failure = findHeaders(host, req.Headers); failure != nil {
		leave()
		return headers{}, failure, nil
	}
	if links, err = here.link(sourceTree); err != nil {
		leave()
		return failed(err)
	}
	return here, nil, leave
}

// headers are the headers for the node's kernel.
type headers struct {
	shown string // path of the directory on the node
	real  string // path of the directory for this process, with all links resolved
}

// findHeaders searches the usual directories on the node, then in NVIDIA's driver container, which has its own headers.
func findHeaders(host hostfs.Host, given string) (headers, *api.Error) {
	kernel := release(host)
	places := []string{
		"/lib/modules/" + kernel + "/build", sourceTree + "/linux-headers-" + kernel, sourceTree + "/kernels/" + kernel,
	}
	if given != "" {
		places = []string{given}
	}
	node := hostfs.FS(host.Root)
	for _, prefix := range []string{"", driverContainer} {
		base, err := node.Resolve(hostfs.Relative(prefix))
		if err != nil || prefix != "" && given != "" {
			continue
		}
		for _, place := range places {
			real, err := hostfs.FS(base).Resolve(hostfs.Relative(place))
			if err == nil && areHeaders(os.DirFS(real)) {
				return headers{prefix + place, real}, nil
			}
		}
	}
	if given != "" {
		return headers{}, api.Errorf(api.CodeNoHeaders,
			"%s on the node does not contain kernel headers, which include a Makefile and include/config/auto.conf; %s", given,
			instead)
	}
	return headers{}, api.Errorf(api.CodeNoHeaders,
		"the headers for the node's kernel %s were not found in %s or below %s: install the linux-headers or "+
			"kernel-devel package, specify the directory with --kmod-headers, or specify a prebuilt module with "+
			"--ko; %s",
		kernel, strings.Join(places, ", "), driverContainer, instead)
}

// driverContainer is the root directory of the GPU operator's driver container on the node.
const driverContainer = "/run/nvidia/driver"

func areHeaders(dir fs.FS) bool {
	for _, name := range []string{"Makefile", "include/config/auto.conf", "scripts"} {
		if _, err := fs.Stat(dir, name); err != nil {
			return false
		}
	}
	return true
}

// link makes the packages next to the headers available in the debug pod at the same paths as on the node, because the
// packages refer to each other by absolute paths. It returns the links that it created.
func (h headers) link(tree string) (made []string, err error) {
	beside := filepath.Dir(h.real)
	entries, err := os.ReadDir(beside)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "linux-") {
			continue
		}
		link := filepath.Join(tree, e.Name())
		switch err := os.Symlink(filepath.Join(beside, e.Name()), link); {
		case err == nil:
			made = append(made, link)
		case !errors.Is(err, fs.ErrExist):
			return made, err
		}
	}
	return made, nil
}

// builtWith matches the compiler that built the kernel: CONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14) 12.2.0", with
// or without quotes.
var builtWith = regexp.MustCompile(`(?m)^CONFIG_CC_VERSION_TEXT="?(\S+)`)

// chooseCompiler returns the compiler that built the kernel if the image contains it, and gcc otherwise. A module built
// with another compiler release also loads.
func chooseCompiler(dir string) (string, error) {
	config, err := os.ReadFile(filepath.Join(dir, "include/config/auto.conf"))
	if err != nil {
		return "", err
	}
	if m := builtWith.FindSubmatch(config); m != nil {
		if name := path.Base(string(m[1])); strings.Contains(name, "gcc") {
			if _, err := exec.LookPath(name); err == nil {
				return name, nil
			}
		}
	}
	if bytes.Contains(config, []byte("CONFIG_CC_IS_CLANG=y")) {
		return "", errors.New("the node's kernel was built with clang, so gcc cannot build modules for it")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		return "", errors.New("the debug pod's image does not contain gcc")
	}
	return "gcc", nil
}

// compile builds the module in dir with the kernel's build system.
func compile(ctx context.Context, dir, headers, compiler string) ([]byte, error) {
	sources, err := kmod.Sources()
	if err != nil {
		return nil, err
	}
	for name, text := range sources {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return nil, err
		}
	}
	built := filepath.Join(dir, kmod.Name+".ko")
	if err := runQuietly(ctx, "make", "-C", headers, "M="+dir, "CC="+compiler, "modules"); err != nil {
		return nil, err
	}
	// Most of the 300 KB is debug information. If strip is not available, the module is merely larger.
	_ = runQuietly(ctx, "strip", "--strip-debug", built)
	return os.ReadFile(built)
}

// runQuietly runs a program in the image. If it fails, the error includes the program's output.
func runQuietly(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	said, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(said), "?"))
	const most = 2 << 10 // the error is at the end of the output
	if len(text) > most {
		text = "..." + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	hint := ""
	if strings.Contains(text, "GLIBC_") {
		hint =
			"; the build tools in the kernel headers package require a newer C library than the image contains: " +
				"use --builder-image to specify an image of the node's distribution"
	}
	return fmt.Errorf("%s: %w: %s%s", name, err, text, hint)
}
