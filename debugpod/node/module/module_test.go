package module

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
	"github.com/gpu-fault/kubectl-gpu-fault/kmod/kmodtest"
)

const testRelease = "6.1.0-56-amd64"

// moduleNode returns a node whose kernel takes any module, but for what a test writes into it.
func moduleNode(t *testing.T, files map[string]string) hostfs.Host {
	t.Helper()
	host := hostfs.Host{Root: t.TempDir(), Proc: t.TempDir(), Kmsg: "/nonexistent"}
	all := map[string]string{
		"proc/modules": "", "proc/sys/kernel/osrelease": testRelease + "\n", "proc/sys/kernel/modules_disabled": "0\n",
		"proc/sys/kernel/printk":                   "4\t4\t1\t7\n",
		"sys/module/module/parameters/sig_enforce": "N\n",
		"sys/kernel/security/lockdown":             "[none] integrity confidentiality\n",
	}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		path := filepath.Join(host.Root, name)
		if rest, ok := strings.CutPrefix(name, "proc/"); ok {
			path = filepath.Join(host.Proc, rest)
		}
		if text == "-" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return host
}

// Everything that would keep the module out must show before it is built or loaded, with what to do and with the way
// that works.
func TestMayLoad(t *testing.T) {
	t.Parallel()
	fits := kmod.File{Release: testRelease, Arch: runtime.GOARCH}
	signed, other, foreign := fits, fits, fits
	signed.Signed, other.Release, foreign.Arch = true, "5.15.0-1", "riscv64"
	const efi = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	for name, tc := range map[string]struct {
		files map[string]string
		file  *kmod.File
		code  api.Code
		says  []string
	}{
		"fine":              {nil, &fits, "", nil},
		"fine, to be built": {nil, nil, "", nil},
		"no lockdown in this kernel": {
			map[string]string{"sys/kernel/security/lockdown": "-", "sys/module/module/parameters/sig_enforce": "-"},
			&fits, "", nil,
		},
		"Secure Boot alone": {map[string]string{efi: "\x06\x00\x00\x00\x01"}, &fits, "", nil},
		"no modules": {
			map[string]string{"proc/modules": "-"}, &fits, api.CodeNoModules, []string{"CONFIG_MODULES"},
		},
		"does not accept modules": {
			map[string]string{"proc/sys/kernel/modules_disabled": "1\n"}, nil, api.CodeNoModules,
			[]string{"modules_disabled"},
		},
		"loaded by a run": {
			map[string]string{"sys/module/gpu_fault_xid/parameters/run": "xid-abcdef\n"}, &fits, api.CodeLoaded,
			[]string{"revert xid-abcdef"},
		},
		"loaded by hand": {
			map[string]string{"sys/module/gpu_fault_xid/parameters/run": "\n"}, nil, api.CodeLoaded,
			[]string{"by another program", "rmmod gpu_fault_xid"},
		},
		"sig_enforce": {
			map[string]string{"sys/module/module/parameters/sig_enforce": "Y\n"}, &fits, api.CodeUntrusted,
			[]string{"sig_enforce", "--ko", "docs/kmod.md"},
		},
		"sig_enforce, to be built": {
			map[string]string{"sys/module/module/parameters/sig_enforce": "Y\n"}, nil, api.CodeUntrusted,
			[]string{"sign the module"},
		},
		"sig_enforce, signed": {
			map[string]string{"sys/module/module/parameters/sig_enforce": "Y\n"}, &signed, "", nil,
		},
		"lockdown, for Secure Boot": {
			map[string]string{
				"sys/kernel/security/lockdown": "none [integrity] confidentiality\n", efi: "\x06\x00\x00\x00\x01",
			},
			&fits, api.CodeUntrusted, []string{`"integrity"`, "Secure Boot is enabled"},
		},
		"another kernel":    {nil, &other, api.CodeVermagic, []string{"5.15.0-1", testRelease}},
		"another processor": {nil, &foreign, api.CodeVermagic, []string{"riscv64", runtime.GOARCH}},
		"signed, but for another kernel": {
			map[string]string{"sys/module/module/parameters/sig_enforce": "Y\n"},
			&kmod.File{Release: "1", Signed: true}, api.CodeVermagic, nil,
		},
		"no modules, whatever else there": {
			map[string]string{"proc/modules": "-", "sys/module/module/parameters/sig_enforce": "Y\n"}, &other,
			api.CodeNoModules, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failure := mayLoad(moduleNode(t, tc.files), tc.file)
			if failure == nil || tc.code == "" {
				if failure != nil || tc.code != "" {
					t.Errorf("%v, wanted code %q", failure, tc.code)
				}
				return
			}
			if failure.Code != tc.code || !failure.Code.BeforeLoad() {
				t.Errorf("code %q, wanted %q, one of those after which nothing is loaded", failure.Code, tc.code)
			}
			for _, want := range append(tc.says, "--via kmsg") {
				if !strings.Contains(failure.Message, want) {
					t.Errorf("%q does not say %q", failure.Message, want)
				}
			}
		})
	}
}

// fakeKernel is a kernel that a test watches.
type fakeKernel struct {
	calls  []string
	fails  map[string]error
	before func(call string)
}

func (k *fakeKernel) did(call string) error {
	k.calls = append(k.calls, call)
	if k.before != nil {
		k.before(call)
	}
	word, _, _ := strings.Cut(call, " ")
	return k.fails[word]
}

func (k *fakeKernel) load(_ []byte, parameters string) error     { return k.did("load " + parameters) }
func (k *fakeKernel) unload(name string) error                   { return k.did("unload " + name) }
func (k *fakeKernel) open(number string) (moduleDevice, error)   { return nil, k.did("open " + number) }
func (k *fakeKernel) history() string                            { return strings.Join(k.calls, ", ") }
func (k *fakeKernel) failing(word string, err error) *fakeKernel { k.fails[word] = err; return k }

// After the module was loaded, whatever fails, it is unloaded; before, nothing is.
func TestWriteModuleAlwaysUnloads(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("there are no kernel logs elsewhere")
	}
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	denied := errors.New("denied")
	for name, tc := range map[string]struct {
		files   map[string]string
		kernel  *fakeKernel
		code    api.Code
		history string
	}{
		"refused beforehand": {map[string]string{"proc/modules": "-"}, &fakeKernel{}, api.CodeNoModules, ""},
		"the log cannot be read": {
			map[string]string{"proc/sys/kernel/printk_devkmsg": "off\n"}, &fakeKernel{}, api.CodeDevkmsgOff, "",
		},
		"not loaded": {
			nil, (&fakeKernel{fails: map[string]error{}}).failing("load", denied), api.CodeNotLoaded,
			"load run=xid-abcdef",
		},
		"not trusted": {
			nil, (&fakeKernel{fails: map[string]error{}}).failing("load", errUntrusted), api.CodeUntrusted,
			"load run=xid-abcdef",
		},
		"device not opened": {
			map[string]string{"sys/class/misc/gpu_fault_xid/dev": "10:125\n"},
			(&fakeKernel{fails: map[string]error{}}).failing("open", denied), api.CodeKmsg,
			"load run=xid-abcdef, open 10:125, unload gpu_fault_xid",
		},
		"and not unloaded": {nil,
			(&fakeKernel{fails: map[string]error{}}).failing("open", denied).failing("unload", errModuleInUse),
			api.CodeStays,
			"load run=xid-abcdef, open , unload gpu_fault_xid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := api.WriteModule{
				Module: kmodtest.File(machine, testRelease), Records: []api.KmsgRecord{{Data: "<4>NVRM: x\n"}},
			}
			failure := writeModule(context.Background(), "xid-abcdef", req, moduleNode(t, tc.files), tc.kernel,
				func(api.Answer) error { return nil })
			if failure == nil || failure.Code != tc.code {
				t.Errorf("%v, wanted code %q", failure, tc.code)
			}
			if got := tc.kernel.history(); got != tc.history {
				t.Errorf("the kernel saw %q, wanted %q", got, tc.history)
			}
		})
	}
}

// What somebody else loaded stays.
func TestRemoveModule(t *testing.T) {
	t.Parallel()
	const param = "sys/module/gpu_fault_xid/parameters/run"
	for name, tc := range map[string]struct {
		files   map[string]string
		want    api.RemovedModule
		history string
	}{
		"ours": {
			map[string]string{param: "xid-abcdef\n"}, api.RemovedModule{Removed: true}, "unload gpu_fault_xid",
		},
		"not there": {nil, api.RemovedModule{}, ""},
		"another's": {map[string]string{param: "xid-999999\n"}, api.RemovedModule{Other: "run xid-999999"}, ""},
		"a user's":  {map[string]string{param: "\n"}, api.RemovedModule{Other: "another program"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kernel := &fakeKernel{}
			got, failure := removeModule("xid-abcdef", moduleNode(t, tc.files), kernel)
			if failure != nil || *got != tc.want || kernel.history() != tc.history {
				t.Errorf("%+v, %v, the kernel saw %q; wanted %+v, %q", got, failure, kernel.history(), tc.want,
					tc.history)
			}
		})
	}
}

// The driver prints without a level, so the node decides which its lines have; NVSwitches' are errors everywhere.
func TestExpectedThroughTheModule(t *testing.T) {
	t.Parallel()
	host := moduleNode(t, map[string]string{"proc/sys/kernel/printk": "7\t5\t1\t7\n"})
	log := moduleLog{level: defaultLevel(host)}
	for data, want := range map[string]int{"<4>NVRM: x\n": 5, "<3>nvidia-nvswitch0: x\n": 3} {
		if priority, text := log.Stored(data); priority != want || strings.HasSuffix(text, "\n") {
			t.Errorf("%q is expected as %d %q, wanted priority %d, whose facility is the kernel's", data, priority,
				text, want)
		}
	}
	if level := defaultLevel(moduleNode(t, map[string]string{"proc/sys/kernel/printk": "-"})); level != levelWarning {
		t.Errorf("level %d where the node does not tell", level)
	}
}

// Headers are found where packages put them, on the node or in a driver container, through absolute links of the
// node's.
func TestFindHeaders(t *testing.T) {
	t.Parallel()
	put := func(dir string) map[string]string {
		return map[string]string{dir + "/Makefile": "", dir + "/include/config/auto.conf": "", dir + "/scripts/x": ""}
	}
	for name, tc := range map[string]struct {
		dir, link, given string
		want             string
	}{
		"a link": {
			dir: "usr/src/linux-headers-x", link: "lib/modules/" + testRelease + "/build",
			want: "/lib/modules/" + testRelease + "/build",
		},
		"Red Hat": {dir: "usr/src/kernels/" + testRelease, want: "/usr/src/kernels/" + testRelease},
		"driver container": {
			dir:  "run/nvidia/driver/usr/src/linux-headers-" + testRelease,
			want: "/run/nvidia/driver/usr/src/linux-headers-" + testRelease,
		},
		"given":            {dir: "opt/headers", given: "/opt/headers", want: "/opt/headers"},
		"given, elsewhere": {dir: "usr/src/linux-headers-" + testRelease, given: "/opt/headers"},
		"another kernel's": {dir: "usr/src/linux-headers-5.15.0-1-amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := moduleNode(t, put(tc.dir))
			if tc.link != "" {
				if err := errors.Join(
					os.MkdirAll(filepath.Join(host.Root, filepath.Dir(tc.link)), 0o755),
					os.Symlink("/"+tc.dir, filepath.Join(host.Root, tc.link)),
				); err != nil {
					t.Fatal(err)
				}
			}
			got, failure := findHeaders(host, tc.given)
			if tc.want == "" {
				if failure == nil || failure.Code != api.CodeNoHeaders ||
					!strings.Contains(failure.Message, "--via kmsg") {
					t.Errorf("%v, wanted %s", failure, api.CodeNoHeaders)
				}
				return
			}
			if failure != nil || got.shown != tc.want || got.real != filepath.Join(host.Root, tc.dir) {
				t.Errorf("%+v, %v; wanted %s", got, failure, tc.want)
			}
		})
	}
}

// The kernel's own compiler is best; any gcc will do; clang's kernels need clang.
func TestChooseCompiler(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"gcc", "gcc-12"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	for config, want := range map[string]string{
		`CONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14) 12.2.0"`:               "gcc-12",
		`CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0) 13.2.0"`: "gcc",
		`CONFIG_CC_VERSION_TEXT=gcc-12 (Debian 12.2.0-14) 12.2.0`:                 "gcc-12",
		"CONFIG_SMP=y": "gcc",
		"CONFIG_CC_VERSION_TEXT=\"Debian clang version 16\"\nCONFIG_CC_IS_CLANG=y": "",
	} {
		dir := t.TempDir()
		if err := errors.Join(
			os.MkdirAll(filepath.Join(dir, "include/config"), 0o755),
			os.WriteFile(filepath.Join(dir, "include/config/auto.conf"), []byte(config), 0o600),
		); err != nil {
			t.Fatal(err)
		}
		got, err := chooseCompiler(dir)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; wanted %q", config, got, err, want)
		}
	}
}
