package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// ways are the probes' ways to the driver.
var ways = [][]string{
	{"linked"}, {"loaded", "dlsym"}, {"loaded", "default"}, {"loaded", "v1"}, {"loaded", "v2"}, {"loaded", "v2-twins"},
	{"loaded", "entry-point"},
	{"loaded", "plugin", "plugin.so"}, {"loaded", "plugin", "static.so"}, {"loaded", "reopen"}, {"loaded", "fork"},
	{"loaded", "threads"},
	{"loaded", "graph"}, {"cudart", "cudart-11.8.tsv", "v1"}, {"cudart", "cudart-12.4.tsv", "v2"}, {"nvml"},
	{"nvml", "init-flags"},
}

// audited are the ways with the shim as an audit module, which it has to be for RTLD_DEEPBIND. The last one needs glibc
// 2.35: before, ld.so does not tell audit modules of the bindings of an object that is loaded with RTLD_NOW (glibc's
// bug 23734).
var audited = [][]string{
	{"linked"}, {"cudart", "cudart-12.4.tsv", "v2"}, {"loaded", "deepbind", "static.so"},
	{"loaded", "deepbind", "plugin.so"},
}

const audits = 35 // the 2.x from which on

// clib is a C library to run programs with.
type clib struct {
	*bench
	name   string // "glibc 2.31 arm64"
	loader []string
	bin    string // programs for it
	shim   string
}

var (
	glibcVersion = regexp.MustCompile(
		`GNU C Library \(([^)]*)\) (?:stable|release|development) release version ([0-9.]*[0-9])`,
	)
	muslVersion = regexp.MustCompile(`Version ([0-9.]+)`)
)

// libc tests with the C library under root. On musl the shim need only do no harm: there is no CUDA for it.
func (b *bench) libc(root string) error {
	c := clib{bench: b}
	file := ""
	for _, pattern := range []string{"*-linux-gnu/libc.so.6", "*-linux-musl/libc.so"} {
		for _, dir := range []string{"lib", "usr/lib"} {
			if file == "" {
				file = one(root, dir, pattern)
			}
		}
	}
	if file == "" {
		return fmt.Errorf("%s: no C library in it", root)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	arch, debian := "x86_64", "amd64"
	if f.Machine == elf.EM_AARCH64 {
		arch, debian = "aarch64", "arm64"
		c.loader = []string{"qemu-aarch64"}
	}
	c.shim = filepath.Join(b.lib, arch, "libgpufault.so")
	if strings.HasSuffix(file, "/libc.so") { // musl is its own loader
		c.bin = filepath.Join(b.bin, "musl-"+arch)
		c.loader = append(c.loader, file)
		said, err := program{line: c.loader, emu: arch == "aarch64"}.start()
		if err != nil {
			return err
		}
		c.name = "musl " + submatch(muslVersion, said.stderr, 1) + " " + debian
		return c.harmless()
	}
	c.bin = filepath.Join(b.bin, arch)
	c.loader = append(c.loader, one(filepath.Dir(file), "ld-linux-*.so.*"), "--library-path",
		filepath.Dir(file)+":"+c.bin)
	version := submatch(glibcVersion, string(data), 2)
	c.name = "glibc " + version + " " + debian
	if err := c.harmless(); err != nil {
		return err
	}
	if err := c.driver("LD_PRELOAD", ways); err != nil {
		return err
	}
	if minor, err := strconv.Atoi(strings.TrimPrefix(version, "2.")); err == nil && minor < audits {
		return c.driver("LD_AUDIT", audited[:len(audited)-1])
	}
	return c.driver("LD_AUDIT", audited)
}

func submatch(re *regexp.Regexp, text string, n int) string {
	if found := re.FindStringSubmatch(text); found != nil {
		return found[n]
	}
	return "unknown"
}

// try runs a probe with the shim by LD_PRELOAD or LD_AUDIT. A word that names a file is replaced by its path.
func (c clib) try(shim, variable string, state *cudafault.State, words []string) (result, error) {
	env, err := c.preload(shim, state)
	if err != nil {
		return result{}, err
	}
	if len(env) > 0 {
		env[0] = variable + "=" + shim
	}
	line := append(slices.Clone(c.loader), filepath.Join(c.bin, words[0]))
	for _, word := range words[1:] {
		switch filepath.Ext(word) {
		case ".tsv":
			word = filepath.Join(c.lookups, word)
		case ".so":
			word = filepath.Join(c.bin, word)
		}
		line = append(line, word)
	}
	return program{line: line, env: env, emu: c.loader[0] == "qemu-aarch64"}.start()
}

// armed is a fault of CUDA only. With a lost GPU in NVML, no context could be created.
var armed = cudafault.State{Error: 999, Flags: cudafault.FlagQuiet,
	Classes: cudafault.ClassAlloc | cudafault.ClassCopy | cudafault.ClassLaunch | cudafault.ClassSync}

// harmless returns a program that has nothing to do with CUDA, under an armed shim.
func (c clib) harmless() error {
	bare, err := c.try("", "", nil, []string{"idle"})
	if err != nil {
		return err
	}
	if bare.code != 0 {
		c.see(c.name, "a program without CUDA", "exit 0", bare.String())
		return nil
	}
	ours, err := c.try(c.shim, "LD_PRELOAD", &armed, []string{"idle"})
	if err != nil {
		return err
	}
	c.see(c.name, "a program without CUDA, armed", "as without the shim", same(bare, ours))
	return nil
}

// driver goes all ways to the fake driver: nothing changes while disarmed, each call fails while armed.
func (c clib) driver(variable string, ways [][]string) error {
	unchanged, hit := 0, 0
	changed, missed := "", ""
	for _, words := range ways {
		name := strings.Join(words, " ")
		bare, err := c.try("", "", nil, words)
		if err != nil {
			return err
		}
		unarmed, err := c.try(c.shim, variable, &cudafault.State{}, words)
		if err != nil {
			return err
		}
		if bare.code == 0 && bare == unarmed {
			unchanged++
		} else {
			changed += fmt.Sprintf(" (%s: %s; without the shim: %s)", name, unarmed, bare)
		}
		state, code := armed, strconv.Itoa(armed.Error)
		if words[0] == "nvml" {
			state, code = cudafault.State{NVMLError: 15, Flags: cudafault.FlagQuiet}, "15"
		}
		failing, err := c.try(c.shim, variable, &state, words)
		if err != nil {
			return err
		}
		if failed, calls := codes(failing.stdout, code); failing.code == 0 && calls > 0 && failed == calls {
			hit++
		} else {
			missed += fmt.Sprintf(" (%s: %d of %d calls, exit %d %s)", name, failed, calls, failing.code,
				failing.stderr)
		}
	}
	wanted := fmt.Sprintf("%d of %[1]d", len(ways))
	c.see(c.name, variable+", disarmed: ways to the fake driver that are as without the shim", wanted,
		fmt.Sprintf("%d of %d%s", unchanged, len(ways), shortened(changed)))
	c.see(c.name, variable+", armed: ways on which every call fails", wanted,
		fmt.Sprintf("%d of %d%s", hit, len(ways), shortened(missed)))
	return nil
}

// shortened keeps the table readable where all goes wrong.
func shortened(text string) string {
	if len(text) > 400 {
		return text[:400] + "..."
	}
	return text
}

// codes counts the probes' lines "... CALL FUNCTION CODE" that have the code, and all; "... NOTE WHAT CODE" is
// something that must not fail.
func codes(stdout, code string) (with, all int) {
	lines := bufio.NewScanner(strings.NewReader(stdout))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 {
			continue
		}
		got := fields[len(fields)-1]
		switch fields[len(fields)-3] {
		case "CALL":
			all++
			if got == code {
				with++
			}
		case "NOTE":
			if got != "0" {
				all++
			}
		}
	}
	return with, all
}
