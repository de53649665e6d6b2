// Package helper embeds the program that runs on nodes, built for each architecture, into the client.
//
// `make build` builds the files, which are not in git. Without the files, the client can be compiled, but it reports an
// error when a node needs the helper.
package helper

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"strings"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/packed"
)

// built also includes the README, because a pattern without matches does not compile.
//
//go:embed [Rg]*.[mz][ds]*
var built embed.FS

const prefix, suffix = "gpu-fault-node-linux-", ".zst"

// programs maps an architecture to a function that unpacks its program once.
var programs sync.Map

// For returns the Linux program for an architecture, as named by Go and Kubernetes: amd64, arm64. All callers get the
// same slice, and must not modify it.
func For(arch string) ([]byte, error) {
	once, _ := programs.LoadOrStore(arch, sync.OnceValues(func() ([]byte, error) { return load(built, arch) }))
	return once.(func() ([]byte, error))()
}

// sums maps an architecture to a function that returns the hash of its program, computed once.
var sums sync.Map

// Sum returns the state of the hash after the program for an architecture has been hashed, as api.Sum does. It computes
// the state only once, because a run on a thousand nodes uses the same program for all of them.
func Sum(arch string) (hash.Cloner, error) {
	once, _ := sums.LoadOrStore(arch, sync.OnceValues(func() (hash.Cloner, error) {
		program, err := For(arch)
		if err != nil {
			return nil, err
		}
		return api.Sum(program), nil
	}))
	return once.(func() (hash.Cloner, error))()
}

// Digests returns the SHA-256 of each embedded program in hexadecimal, by architecture.
func Digests() (map[string]string, error) { return digests(built) }

// dictionary is the architecture whose program is used as the dictionary to compress the other programs. The programs
// share function names and strings, so this saves a fifth of the size.
const dictionary = "amd64"

func load(files fs.FS, arch string) ([]byte, error) {
	program, err := unpack(files, arch)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(files, arch)
	}
	if err != nil {
		return nil, fmt.Errorf("unpack the node helper for linux/%s: %w", arch, err)
	}
	packed.Relative(program, arch)
	return program, nil
}

// unpack returns a program in the form that packed.Absolute created.
func unpack(files fs.FS, arch string) ([]byte, error) {
	file, err := fs.ReadFile(files, prefix+arch+suffix)
	if err != nil {
		return nil, err
	}
	var base []byte
	if arch != dictionary {
		if base, err = unpack(files, dictionary); err != nil {
			return nil, err
		}
	}
	return packed.UnpackWith(base, file)
}

func missing(files fs.FS, arch string) error {
	has := architectures(files)
	if len(has) == 0 {
		return errors.New(
			"this build contains no node helper: use `make build`, not `go build` or `go install`",
		)
	}
	return fmt.Errorf("this build contains no node helper for linux/%s, only for %s: the architecture is not supported",
		arch, strings.Join(has, " and "))
}

func architectures(files fs.FS) []string {
	names, err := fs.Glob(files, prefix+"*"+suffix)
	if err != nil {
		return nil
	}
	for i, name := range names {
		names[i] = strings.TrimSuffix(strings.TrimPrefix(name, prefix), suffix)
	}
	return names
}

// Architectures returns the architectures of the embedded programs.
func Architectures() []string { return architectures(built) }

func digests(files fs.FS) (map[string]string, error) {
	sums := map[string]string{}
	for _, arch := range architectures(files) {
		program, err := load(files, arch)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(program)
		sums[arch] = hex.EncodeToString(sum[:])
	}
	return sums, nil
}
