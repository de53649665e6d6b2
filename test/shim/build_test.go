//go:build shim

package shim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Where things lie, seen from this folder.
const (
	root  = "../.."
	fake  = root + "/cudafault/fakecuda"
	probe = root + "/cudafault/probe"
)

// platform is a machine and libc to run programs for.
type platform struct {
	name    string
	cc      string
	arch    string   // as folders of cudafault/lib are named
	runner  []string // what runs a program of it here; empty = the machine itself
	missing string   // Debian's package with cc
}

var (
	x86 = platform{name: "x86_64", cc: "gcc", arch: "x86_64", missing: "gcc libc6-dev"}
	arm = platform{
		name: "aarch64", cc: "aarch64-linux-gnu-gcc", arch: "aarch64", runner: qemu,
		missing: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
	}
	musl  = platform{name: "musl", cc: "musl-gcc", arch: "x86_64", missing: "musl-tools"}
	qemu  = []string{"qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"}
	flags = []string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"}
)

// program is one file made of a probe's source.
type program struct {
	file, source string
	flags        []string
	// Linked to the fake.
	driver, nvml, runtime bool
}

// programs are all that a glibc platform gets.
var programs = []program{
	{file: "linked", source: "linked.c", driver: true},
	{file: "linked-addresses", source: "linked.c", flags: []string{"-DADDRESSES"}, driver: true},
	{file: "linked-twins", source: "linked.c", flags: []string{"-DTWINS"}, driver: true},
	{file: "loaded", source: "loaded.c", flags: []string{"-pthread", "-ldl"}},
	{file: "plugin.so", source: "plugin.c", flags: []string{"-shared", "-fPIC"}, driver: true},
	{
		file: "bound.so", source: "plugin.c", flags: []string{"-shared", "-fPIC", "-Wl,-z,now", "-Wl,-z,relro"},
		driver: true,
	},
	{file: "static.so", source: "plugin.c", flags: []string{"-shared", "-fPIC", "-DSTATIC"}},
	{file: "neighbor.so", source: "neighbor.c", flags: []string{"-shared", "-fPIC"}},
	{file: "vgpu.so", source: "vgpu.c", flags: []string{"-shared", "-fPIC", "-pthread", "-ldl"}},
	{file: "harm", source: "harm.c", flags: []string{"-pthread", "-ldl", "-rdynamic"}},
	{file: "allocator.so", source: "allocator.c", flags: []string{"-shared", "-fPIC", "-fno-builtin"}},
	{file: "namesakes.so", source: "namesakes.c", flags: []string{"-shared", "-fPIC"}},
	{file: "cudart", source: "cudart.c"},
	{file: "nvml", source: "nvml.c"},
	{file: "nvml-linked", source: "nvml.c", flags: []string{"-DLINKED"}, nvml: true},
	{file: "actor", source: "actor.c", flags: []string{"-pthread"}},
	{file: "rules", source: "rules.c", flags: []string{"-pthread", "-rdynamic"}},
	{file: "busy", source: "busy.c"},
	{file: "libcudart.so.12", source: "runtime_library.c",
		flags: []string{"-shared", "-fPIC", "-Wl,-soname,libcudart.so.12",
			"-Wl,--version-script=" + probe + "/runtime_library.map"}},
	{file: "runtime", source: "runtime.c", runtime: true},
	{file: "idle", source: "idle.c", flags: []string{"-pthread", "-rdynamic"}},
}

var built sync.Map // platform name -> func() (string, error)

// bin returns the folder with the fake driver and the probes for a platform, built once for each content of their
// sources.
func (p platform) bin(t *testing.T) string {
	t.Helper()
	build, _ := built.LoadOrStore(p.name, sync.OnceValues(p.build))
	dir, err := build.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (p platform) build() (string, error) {
	if dir := os.Getenv("SHIM_PROGRAMS"); dir != "" && p.name == x86.name {
		return filepath.Abs(dir) // for a machine without a compiler
	}
	if err := p.tools(); err != nil {
		return "", err
	}
	key, err := sourceHash(p.name, fake, probe)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "gpu-fault", "shim", p.name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	// Complete or not there: another run may build the same at the same time.
	work, err := os.MkdirTemp(filepath.Dir(dir), "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil {
		return "", err
	}
	if err := p.compile(work); err != nil {
		return "", err
	}
	if err := os.Rename(work, dir); err != nil && !dirExists(dir) {
		return "", err
	}
	return dir, prune(filepath.Dir(dir))
}

// prune removes what was built from other sources more than a week ago.
func prune(cache string) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > 7*24*time.Hour {
			if err := os.RemoveAll(filepath.Join(cache, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// tools returns what to install where something is missing: nothing is skipped.
func (p platform) tools() error {
	need := map[string]string{p.cc: p.missing}
	if len(p.runner) > 0 {
		need[p.runner[0]] = "qemu-user"
	}
	for tool, pkg := range need {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("no %s: apt-get install %s", tool, pkg)
		}
	}
	return nil
}

func (p platform) compile(dir string) error {
	if p.name == musl.name {
		return p.cc1(program{file: "idle", source: "idle.c", flags: []string{"-rdynamic"}}, dir)
	}
	if out, err := exec.Command(filepath.Join(fake, "build.sh"), dir, p.arch).CombinedOutput(); err != nil {
		return fmt.Errorf("building the fake driver: %w\n%s", err, out)
	}
	for _, prog := range programs {
		if err := p.cc1(prog, dir); err != nil {
			return err
		}
	}
	return nil
}

func (p platform) cc1(prog program, dir string) error {
	args := slices.Concat(flags, prog.flags,
		[]string{"-o", filepath.Join(dir, prog.file), filepath.Join(probe, prog.source), "-L" + dir})
	if prog.driver {
		args = append(args, "-l:libcuda.so.1")
	}
	if prog.nvml {
		args = append(args, "-l:libnvidia-ml.so.1")
	}
	if prog.runtime {
		args = append(args, "-l:libcudart.so.12")
	}
	if out, err := exec.Command(p.cc, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", prog.file, err, out)
	}
	return nil
}

// library returns the shim for the platform, as it is committed; LIBRARY_DIR names another folder with x86_64 and
// aarch64 in it.
func (p platform) library(t *testing.T) string {
	t.Helper()
	return p.file(t, "libgpufault.so")
}

func (p platform) file(t *testing.T, name string) string {
	t.Helper()
	dir := root + "/cudafault/lib"
	if other := os.Getenv("LIBRARY_DIR"); other != "" {
		dir = other
	}
	copied, _ := libraries.LoadOrStore(p.arch+name,
		sync.OnceValues(func() (string, error) { return snapshot(filepath.Join(dir, p.arch, name)) }))
	path, err := copied.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var libraries sync.Map // architecture and file -> func() (string, error)

// snapshot returns a copy of the library of its own, so that a build in the meantime does not change what is tested.
// TestMain removes it.
func snapshot(from string) (string, error) {
	data, err := os.ReadFile(from)
	if err != nil || len(data) == 0 {
		return "", fmt.Errorf("%s is not there or empty: hack/shim.sh builds it (%v)", from, err)
	}
	dir, err := os.MkdirTemp("", "shim-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(from))
	return path, os.WriteFile(path, data, 0o755)
}

// TestMain removes what the tests copied.
func TestMain(m *testing.M) {
	code := m.Run()
	libraries.Range(func(_, copied any) bool {
		if path, err := copied.(func() (string, error))(); err == nil {
			os.RemoveAll(filepath.Dir(path))
		}
		return true
	})
	os.Exit(code)
}

// exportOnly returns the shim without dlsym and cuGetProcAddress, which hooks what is linked and nothing else: the
// column to compare with. There is one for x86_64.
func (p platform) exportOnly(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("EXPORT_ONLY_DIR")
	if dir == "" {
		t.Fatal("EXPORT_ONLY_DIR is not set: hack/test-shim.sh builds that variant and sets it")
	}
	path, err := filepath.Abs(filepath.Join(dir, "libgpufault-export-only.so"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func sourceHash(salt string, dirs ...string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, salt, runtime.GOARCH, flags, programs)
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			fmt.Fprintln(sum, strings.TrimPrefix(path, dir), len(data))
			sum.Write(data)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

func dirExists(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

// TestProgramsForAGPU copies the programs, without the fake libraries, to where test/gpu/build wants them.
func TestProgramsForAGPU(t *testing.T) {
	to := os.Getenv("SHIM_PROGRAMS_TO")
	if to == "" {
		t.Skip("only for test/gpu/build, which sets SHIM_PROGRAMS_TO")
	}
	from := x86.bin(t)
	for _, p := range programs {
		if p.file == "libcudart.so.12" || p.runtime {
			continue
		}
		data, err := os.ReadFile(filepath.Join(from, p.file))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, p.file), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
