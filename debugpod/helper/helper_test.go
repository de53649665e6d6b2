package helper

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
)

func compressed(t *testing.T, text string) *fstest.MapFile {
	t.Helper()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &fstest.MapFile{Data: encoder.EncodeAll([]byte(text), nil)}
}

func TestLoad(t *testing.T) {
	files := fstest.MapFS{
		"README.md":                      {Data: []byte("x")},
		"gpu-fault-node-linux-amd64.zst": compressed(t, "amd64's"),
		"gpu-fault-node-linux-arm64.zst": {Data: []byte("no Zstandard")},
	}
	if got, err := load(files, "amd64"); err != nil || string(got) != "amd64's" {
		t.Errorf("got %q, %v", got, err)
	}
	alone := fstest.MapFS{"gpu-fault-node-linux-arm64.zst": compressed(t, "arm64's")}
	if got, err := load(alone, "arm64"); err == nil {
		t.Errorf("without its dictionary, the helper for arm64 is %q", got)
	}
	for arch, want := range map[string]string{
		"arm64": "unpack the node helper for linux/arm64", "s390x": "only for amd64 and arm64",
		"../x": "no node helper",
	} {
		if _, err := load(files, arch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", arch, err, want)
		}
	}
	if _, err := load(fstest.MapFS{"README.md": {}}, "amd64"); err == nil ||
		!strings.Contains(err.Error(), "make build") {
		t.Errorf("without helpers: %v", err)
	}
	if _, err := digests(files); err == nil {
		t.Error("a damaged helper has a digest")
	}
	delete(files, "gpu-fault-node-linux-arm64.zst")
	sum := sha256.Sum256([]byte("amd64's"))
	if got, err := digests(files); err != nil || len(got) != 1 || got["amd64"] != hex.EncodeToString(sum[:]) {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestBuilt looks at the helpers that this build carries.
func TestBuilt(t *testing.T) {
	sums, err := Digests()
	if err != nil {
		t.Fatal(err)
	}
	if len(sums) == 0 {
		t.Skip("no helper was built: make build")
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for arch := range sums {
		program, err := For(arch)
		if err != nil {
			t.Fatal(err)
		}
		file, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatal(err)
		}
		if file.Machine != machines[arch] {
			t.Errorf("the helper for %s is for %v", arch, file.Machine)
		}
		if libraries, err := file.ImportedLibraries(); err != nil || len(libraries) > 0 {
			t.Errorf("the helper for %s is not static: %v, %v", arch, libraries, err)
		}
		// It is streamed to every node, and the client carries two. net/http is 3 MB of it, see debugpod/rpc.
		if len(program) > 9<<20 {
			t.Errorf("the helper for %s has %d bytes", arch, len(program))
		}
	}
}

// The hash that is shared by all pods of a run is that of the program.
func TestSum(t *testing.T) {
	t.Parallel()
	for _, arch := range Architectures() {
		program, err1 := For(arch)
		first, err2 := Sum(arch)
		second, err3 := Sum(arch)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		want := sha256.Sum256(program)
		if !bytes.Equal(first.Sum(nil), want[:]) || first != second {
			t.Errorf("%s: the hash is wrong, or was computed twice", arch)
		}
	}
	if _, err := Sum("sparc"); err == nil {
		t.Error("an architecture without a program has a hash")
	}
}
