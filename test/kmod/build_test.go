//go:build kmod && linux

package kmod

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// TestBuild has the helper build the module as in a debug pod: make and the compiler are here, and the headers on a
// node, which is under KMOD_NODE, has its mounts in the namespace KMOD_NAMESPACE, and runs the kernel KMOD_KERNEL.
// KMOD_OUT gets the module.
func TestBuild(t *testing.T) {
	kernel, out := os.Getenv("KMOD_KERNEL"), os.Getenv("KMOD_OUT")
	proc := t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(proc, "sys/kernel"), 0o755),
		os.MkdirAll(filepath.Join(proc, "1/ns"), 0o755),
		os.Symlink(os.Getenv("KMOD_NAMESPACE"), filepath.Join(proc, "1/ns/mnt")),
		os.WriteFile(filepath.Join(proc, "modules"), nil, 0o600),
		os.WriteFile(filepath.Join(proc, "sys/kernel/osrelease"), []byte(kernel+"\n"), 0o600))
	if err != nil || kernel == "" || out == "" {
		t.Fatal("set KMOD_NODE, KMOD_NAMESPACE, KMOD_KERNEL and KMOD_OUT", err)
	}
	line, err := api.Request{Protocol: api.Protocol, BuildModule: &api.BuildModule{}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	input, keep, err := os.Pipe() // its end would stop the helper
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = keep.Close() }()
	if _, err := keep.Write(line); err != nil {
		t.Fatal(err)
	}
	err = node.Serve(t.Context(), input, &said, hostfs.Host{Root: os.Getenv("KMOD_NODE"), Proc: proc})
	if err != nil {
		t.Fatalf("the helper: %v", err)
	}
	var answer api.Answer
	if err := json.Unmarshal(said.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	file, err := kmod.ParseFile(answer.Built.Module)
	if err != nil || file.Release != kernel {
		t.Fatalf("%+v, %v", file, err)
	}
	if !strings.Contains(answer.Built.Compiler, "gcc") {
		t.Errorf("compiled by %q", answer.Built.Compiler)
	}
	t.Logf("with %s, against %s: %d bytes, %s", answer.Built.Compiler, answer.Built.Headers, len(answer.Built.Module),
		file.Magic)
	if err := os.WriteFile(out, answer.Built.Module, 0o600); err != nil {
		t.Fatal(err)
	}
}
