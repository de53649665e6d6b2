package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func attached(t testing.TB) []byte {
	t.Helper()
	whole, err := Attach([]byte("\x7fELF and so on"), Request{Protocol: Protocol, Inspect: &Inspect{}})
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
	for _, failure := range []*Error{CheckProgram(path, "00"), CheckProgram(path, ""), CheckProgram(path+"no", right)} {
		if failure == nil || failure.Code != CodeOtherHelper {
			t.Errorf("another helper was taken: %v", failure)
		}
	}
}

func TestAttached(t *testing.T) {
	whole := attached(t)
	var out bytes.Buffer
	err := ServeAttached(t.Context(), bytes.NewReader(whole), int64(len(whole)), strings.NewReader(""), &out,
		Host{Root: t.TempDir(), Proc: t.TempDir()})
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
				Host{})
			var failure *Error
			if !errors.As(err, &failure) || failure.Code != CodeTruncated {
				t.Fatalf("%s at %d: got %v", name, i, err)
			}
		}
	}
}

func TestEncodeRefusesLarge(t *testing.T) {
	_, err := Attach(nil, Request{Protocol: Protocol, Run: strings.Repeat("x", MaxRequest)})
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != CodeBadRequest {
		t.Errorf("got %v", err)
	}
}

func FuzzDetach(f *testing.F) {
	f.Add(attached(f))
	f.Add([]byte(magic))
	f.Fuzz(func(_ *testing.T, exe []byte) {
		_, _ = detach(bytes.NewReader(exe), int64(len(exe)))
	})
}
