//go:build shim

package shim

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// route is one way by which a program comes to the driver.
type route struct {
	name    string
	on      platform
	program string   // a probe, or an absolute path
	args    []string // a word that names a probe's file is replaced by its path
	before  string   // a probe's library in LD_PRELOAD before the shim
	after   string   // and after it
	audit   bool     // the shim by LD_AUDIT
	nvml    bool     // the calls are NVML's
	idle    bool     // the shim must not act at all
}

func routes(t *testing.T) []route {
	t.Helper()
	testdata, err := filepath.Abs(filepath.Join(probe, "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	ctypesProgram, ctypesArgs := "loaded", []string{"default"} // without Python the same calls
	ctypesFile, err := filepath.Abs(filepath.Join(probe, "ctypes_probe.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		if path, err := exec.LookPath(python); err == nil {
			ctypesProgram, ctypesArgs = path, []string{ctypesFile}
			break
		}
	}
	cudart11 := []string{filepath.Join(testdata, "cudart-11.8.tsv"), "v1"}
	cudart12 := []string{filepath.Join(testdata, "cudart-12.4.tsv"), "v2"}
	cudart13 := []string{filepath.Join(testdata, "cudart-13.0.tsv"), "v2"}
	both := []route{
		{name: "linked", program: "linked"},
		{name: "linked, -fno-plt", program: "linked-addresses"},
		{name: "linked, per-thread default stream", program: "linked-twins"},
		{name: "dlopen + dlsym", program: "loaded", args: []string{"dlsym"}},
		{name: "dlopen + dlsym, per-thread twins", program: "loaded", args: []string{"dlsym-twins"}},
		{name: "dlsym(RTLD_DEFAULT)", program: "loaded", args: []string{"default"}},
		{name: "static cudart 11.8, 384 look-ups", program: "cudart", args: cudart11},
		{name: "static cudart 12.4, 409 look-ups", program: "cudart", args: cudart12},
		{name: "static cudart 13.0, 440 look-ups", program: "cudart", args: cudart13},
		{name: "cuGetProcAddress", program: "loaded", args: []string{"v1"}},
		{name: "cuGetProcAddress_v2", program: "loaded", args: []string{"v2"}},
		{name: "cuGetProcAddress, flags 2", program: "loaded", args: []string{"v1-twins"}},
		{name: "cuGetProcAddress_v2, flags 2", program: "loaded", args: []string{"v2-twins"}},
		{name: "cudaGetDriverEntryPoint", program: "loaded", args: []string{"entry-point"}},
		{name: "plugin, RTLD_LOCAL, linked", program: "loaded", args: []string{"plugin", "plugin.so"}},
		{name: "plugin, RTLD_LOCAL, static cudart", program: "loaded", args: []string{"plugin", "static.so"}},
		{name: "plugin, RTLD_DEEPBIND, linked", program: "loaded", args: []string{"deepbind", "plugin.so"}},
		{name: "plugin, RTLD_DEEPBIND, linked, -z now", program: "loaded", args: []string{"deepbind", "bound.so"}},
		{name: "plugin, RTLD_DEEPBIND, static cudart", program: "loaded", args: []string{"deepbind", "static.so"}},
		{name: "dlsym of libc's handle", program: "loaded", args: []string{"libc-dlsym"}},
		{name: "dlsym, RTLD_LAZY | RTLD_LOCAL", program: "loaded", args: []string{"lazy"}},
		{name: "dlsym(RTLD_NEXT)", program: "loaded", args: []string{"next"}},
		{name: "the driver by RTLD_DEEPBIND", program: "loaded", args: []string{"deepbind-driver"}},
		{name: "dlsym of dlsym", program: "loaded", args: []string{"dlsym-of-dlsym"}},
		{name: "dlvsym of dlsym", program: "loaded", args: []string{"dlvsym-of-dlsym"}},
		{name: "dlopen, RTLD_NOLOAD", program: "loaded", args: []string{"no-load"}},
		{name: "dlopen by full path", program: "loaded", args: []string{"full-path"}},
		{name: "end of a thread", program: "loaded", args: []string{"thread-exit"}},
		{name: "atexit", program: "loaded", args: []string{"at-exit"}},
		{name: "dlmopen, a namespace of its own", program: "loaded", args: []string{"namespace"}},
		{name: "two copies of the driver", program: "loaded", args: []string{"copies"}},
		{name: "dlclose and dlopen again", program: "loaded", args: []string{"reopen"}},
		{name: "fork, parent and child", program: "loaded", args: []string{"fork"}},
		{name: "64 threads", program: "loaded", args: []string{"threads"}},
		{name: "graph capture, cuGraphLaunch", program: "loaded", args: []string{"graph"}},
		{name: "beside an interposer after us", program: "linked", after: "neighbor.so"},
		{name: "beside an interposer before us", program: "linked", before: "neighbor.so"},
		{name: "dlsym, beside a sharer after us", program: "loaded", args: []string{"dlsym"}, after: "vgpu.so"},
		{
			name: "cuGetProcAddress_v2, beside a sharer after us", program: "loaded", args: []string{"v2"},
			after: "vgpu.so",
		},
		{
			name: "cuGetProcAddress, beside a sharer before us", program: "loaded", args: []string{"v1"},
			before: "vgpu.so",
		},
		{name: "NVML, dlopen + dlsym", program: "nvml", nvml: true},
		{name: "NVML, nvmlInitWithFlags", program: "nvml", args: []string{"init-flags"}, nvml: true},
		{name: "NVML, linked", program: "nvml-linked", nvml: true},
	}
	var list []route
	add := func(on platform, routes ...route) {
		for _, one := range routes {
			one.on = on
			list = append(list, one)
		}
	}
	add(x86, both...)
	add(x86,
		route{name: "old binary, dlsym@GLIBC_2.2.5", program: "loaded", args: []string{"old-dlsym"}},
		route{name: "ctypes", program: ctypesProgram, args: ctypesArgs},
		route{name: "posix_spawn child", program: "loaded", args: []string{"spawn"}},
		route{name: "vfork, execv", program: "loaded", args: []string{"vfork"}},
		route{name: "exec", program: "loaded", args: []string{"exec"}},
		route{name: "execve, an environment of its own", program: "loaded", args: []string{"clean-exec"}},
		route{name: "fork, execvp, an environment of its own", program: "loaded", args: []string{"clean-fork"}},
		route{name: "posix_spawn, an environment of its own", program: "loaded", args: []string{"clean-spawn"}},
		route{name: "unset LD_PRELOAD, execv", program: "loaded", args: []string{"unset-exec"}},
		route{name: "env -i", program: "loaded", args: []string{"env-i"}},
		route{
			name: "plugin, RTLD_DEEPBIND, linked (LD_AUDIT)", program: "loaded",
			args: []string{"deepbind", "plugin.so"}, audit: true,
		},
		route{
			name: "plugin, RTLD_DEEPBIND, static cudart (LD_AUDIT)", program: "loaded",
			args: []string{"deepbind", "static.so"}, audit: true,
		},
		route{name: "static cudart 12.4 (LD_AUDIT)", program: "cudart", args: cudart12, audit: true},
		route{name: "linked (LD_AUDIT)", program: "linked", audit: true},
	)
	add(arm, both...)
	add(musl, route{name: "any program: idle", program: "idle", idle: true})
	return list
}

// run runs the program by the route, with the shim that lies there; "" is none.
func (r route) run(p *pod, shim string) result {
	p.t.Helper()
	delete(p.env, "LD_AUDIT")
	var preload []string
	for _, file := range []string{r.before, shim, r.after} {
		switch {
		case file == "":
		case file == shim && r.audit:
			p.env["LD_AUDIT"] = shim
		case file == shim:
			preload = append(preload, shim)
		default:
			preload = append(preload, p.program(file))
		}
	}
	p.env["LD_PRELOAD"] = strings.Join(preload, ":")
	args := make([]string, len(r.args))
	for i, arg := range r.args {
		args[i] = arg
		if strings.HasSuffix(arg, ".so") {
			args[i] = p.program(arg)
		}
	}
	name := r.program
	if !filepath.IsAbs(name) {
		name = p.program(name)
	}
	return p.runProgram(name, args...)
}

// hits counts the calls that failed as they were told to, and the calls. What must succeed and did not is an error.
func hits(r result, code int) (hit, calls int, err error) {
	lines := bufio.NewScanner(strings.NewReader(r.stdout))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 {
			continue
		}
		kind, name, got := fields[len(fields)-3], fields[len(fields)-2], fields[len(fields)-1]
		switch {
		case kind == "CALL":
			calls++
			if got == fmt.Sprint(code) {
				hit++
			}
		case kind == "NOTE" && got != "0" && err == nil:
			err = fmt.Errorf("%s gave %s", name, got)
		}
	}
	if err == nil && r.code != 0 {
		err = fmt.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	return hit, calls, err
}

// armed returns the state under which each of the calls of a route fails, and the code with which.
func (r route) armed() (cudafault.State, int) {
	s := all(cudafault.State{Error: 999, Flags: cudafault.FlagQuiet,
		Classes: cudafault.ClassAlloc | cudafault.ClassCopy | cudafault.ClassLaunch | cudafault.ClassSync})
	if r.nvml {
		s.NVMLError = 15
		return s, 15
	}
	return s, 999
}

// try runs a route without a shim, with it unarmed (no state file; a disarmed one), and armed. Its answer is for the
// matrix, ok is for the count.
func (r route) try(t *testing.T, shim string) (answer string, ok bool) {
	p := newPodOn(t, r.on)
	bare := r.run(p, "")
	if _, calls, err := hits(bare, 0); err != nil || (calls == 0) != r.idle {
		return fmt.Sprintf("does not work without a shim: %v", err), false
	}
	if got := r.run(p, shim); got != bare {
		t.Logf("%s %s without a state file: %+v\nwithout a shim: %+v", r.on.name, r.name, got, bare)
		return "changes the program without a state", false
	}
	p.disarm()
	if got := r.run(p, shim); got != bare {
		t.Logf("%s %s disarmed: %+v\nwithout a shim: %+v", r.on.name, r.name, got, bare)
		return "changes the program while disarmed", false
	}
	state, code := r.armed()
	p.arm(state)
	got := r.run(p, shim)
	if r.idle {
		if got != bare {
			t.Logf("%s %s armed: %+v\nwithout a shim: %+v", r.on.name, r.name, got, bare)
			return "not idle", false
		}
		return "idle", true
	}
	hit, calls, err := hits(got, code)
	switch {
	case err != nil:
		return "broken: " + strings.TrimSpace(err.Error()), false
	case hit < calls:
		return fmt.Sprintf("miss %d of %d calls", calls-hit, calls), false
	}
	return "hit", true
}

// TestRuntimeLayer is the other library, which hooks cudart's exports and nothing else: a program linked to cudart is
// hit, cudaGetLastError agrees, and the driver's library does not act for a state that is meant for the runtime's, nor
// the other way round.
func TestRuntimeLayer(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			p := newPodOn(t, on)
			run := func(shim string) result {
				p.env["LD_PRELOAD"] = shim
				return p.runProgram(p.program("runtime"))
			}
			bare := run("")
			runtime, driver := on.file(t, "libgpufault-cudart.so"), on.library(t)
			if got := run(runtime); got != bare {
				t.Errorf("without a state: %+v\nwithout a shim: %+v", got, bare)
			}
			s, code := route{}.armed()
			s.Flags |= cudafault.FlagRuntime
			p.arm(s)
			got := run(runtime)
			if hit, calls, err := hits(got, code); err != nil || hit != calls || calls != 4 {
				t.Errorf("%d of %d calls hit: %v\n%s", hit, calls, err, got.stdout)
			}
			if !strings.Contains(got.stdout, "last error 999 999 0\n") {
				t.Errorf("cudaPeekAtLastError, cudaGetLastError twice: %s", got.stdout)
			}
			if got := run(driver); got != bare {
				t.Errorf("the driver's library: %+v", got)
			}
			p.env["LD_PRELOAD"] = driver
			if hit, _, err := hits(p.runProgram(p.program("linked")), code); err != nil || hit != 0 {
				t.Errorf("the driver's library acts for the runtime's state: %d calls hit, %v", hit, err)
			}
		})
	}
}

// TestPaths protects the claim that no way leads past the shim, and that it changes nothing unless armed. The variant
// that exports its hooks and nothing more is tried for comparison, and may miss.
func TestPaths(t *testing.T) {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "PLATFORM\tPATH\tOURS\tEXPORT-ONLY")
	count, good := 0, 0
	for _, r := range routes(t) {
		ours, ok := r.try(t, r.on.library(t))
		count++
		if ok {
			good++
		}
		other := "-"
		if r.on.name == x86.name {
			r.audit = false // it cannot be an audit module
			other, _ = r.try(t, r.on.exportOnly(t))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.on.name, r.name, ours, other)
	}
	table.Flush()
	fmt.Fprintf(&text, "paths hit %d of %d\n", good, count)
	if report := os.Getenv("PATHS_REPORT"); report != "" {
		if err := os.WriteFile(report, []byte(text.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
	if good < count {
		t.Errorf("\n%s", text.String())
	}
}
