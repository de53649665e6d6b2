package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

func attached(t *testing.T) []byte {
	t.Helper()
	whole, err := api.Attach([]byte("\x7fELF and so on"), api.Request{Protocol: api.Protocol, Inspect: &api.Inspect{}})
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

func TestCheckProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "helper")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	const right = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
	if failure := CheckProgram(path, right); failure != nil {
		t.Error(failure)
	}
	for _, failure := range []*api.Error{
		CheckProgram(path, "00"), CheckProgram(path, ""), CheckProgram(path+"no", right),
	} {
		if failure == nil || failure.Code != api.CodeOtherHelper {
			t.Errorf("another helper was taken: %v", failure)
		}
	}
}

func TestAttached(t *testing.T) {
	whole := attached(t)
	var out bytes.Buffer
	err := ServeAttached(t.Context(), bytes.NewReader(whole), int64(len(whole)), strings.NewReader(""), &out,
		hostfs.Host{Root: t.TempDir(), Proc: t.TempDir()})
	if a := only(t, &out); err != nil || !a.Done || a.Info == nil {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestAttachedDamaged(t *testing.T) {
	whole := attached(t)
	damaged := map[string][]byte{
		"nothing":     nil,
		"one more":    append(bytes.Clone(whole), 0),
		"one missing": append(bytes.Clone(whole[:5]), whole[6:]...),
		"only helper": []byte("\x7fELF and so on"),
	}
	for i := range whole {
		damaged["cut "+string(rune('0'+i%10))] = whole[:i]
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1
		damaged["flipped "+string(rune('0'+i%10))] = flipped
		for name, exe := range damaged {
			var out bytes.Buffer
			err := ServeAttached(t.Context(), bytes.NewReader(exe), int64(len(exe)), strings.NewReader(""), &out,
				hostfs.Host{})
			var failure *api.Error
			if !errors.As(err, &failure) || failure.Code != api.CodeTruncated {
				t.Fatalf("%s at %d: got %v", name, i, err)
			}
		}
	}
}
