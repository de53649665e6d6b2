package containerd

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/aymanbagabas/go-udiff"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// Every mode, on every way of writing a configuration, by each release that loads it, as a diff that people can judge:
// testdata/golden.
func TestBreakGolden(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("testdata/nodes")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		t.Run(entry.Name(), func(t *testing.T) {
			t.Parallel()
			data := nodeFile(t, entry.Name())
			handler := "nvidia"
			if strings.Contains(data, "nvidia-container-runtime]") {
				handler = "nvidia-container-runtime"
			}
			var out strings.Builder
			for _, mode := range Modes() {
				var last string
				for _, release := range both {
					c := config(release, data)
					got := described(t, c,
						Request{Mode: mode.Mode, Handler: handler, Decoy: File{Path: "/var/lib/other/config.toml"}})
					if got == last {
						continue // both releases alike
					}
					last = got
					fmt.Fprintf(&out, "=== %s, containerd %s\n%s", mode.Mode, release, got)
				}
			}
			golden.Compare(t, "golden/"+strings.TrimSuffix(entry.Name(), ".toml")+".txt", out.String())
		})
	}
}

// described breaks the configuration, proves that it can be restored, and returns the fault as text.
func described(t *testing.T, c *Config, r Request) string {
	t.Helper()
	b, err := c.Break(r)
	if err != nil {
		return "refused: " + err.Error() + "\n"
	}
	restores(t, b)
	out := b.Summary + "\n"
	if b.NodeLoss {
		out += "(node loss)\n"
	}
	for _, f := range b.Files {
		from := f.Path
		if f.Before == nil {
			from = "/dev/null"
		}
		out += strings.NewReplacer("\r\n", "^M\n", "\xef\xbb\xbf",
			"<BOM>").Replace(udiff.Unified(from, f.Path, string(f.Before), string(f.After)))
	}
	return out
}

// What a fault means, read back by the same rules as the daemon's: one handler differs, in one way.
func TestBreakMeaning(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"v1-docker.toml", "v2-kubeadm.toml", "v2-scattered.toml", "v2-crlf-no-final-newline.toml", "v3-dotted.toml",
		"v3-inline.toml", "v4-toolkit.toml", "v2-eks-only-nvidia.toml", "v2-bom.toml",
	} {
		for _, release := range both {
			before := config(release, nodeFile(t, name))
			if _, err := before.Merged(); err != nil {
				continue // the golden files hold why
			}
			for _, mode := range []Mode{
				ModeMissingHandler, ModeBinaryMissing, ModeWrongRuntimeType, ModeCgroupDriver, ModeOptionMisplaced,
			} {
				t.Run(fmt.Sprint(name, " ", release, " ", mode), func(t *testing.T) {
					t.Parallel()
					b, err := before.Break(Request{Mode: mode, Handler: "nvidia"})
					if err != nil {
						t.Fatal(err)
					}
					restores(t, b)
					was, is, there := onlyChanged(t, before, broken(before, b, false), "nvidia")
					want, wantThere := was, true
					switch mode {
					case ModeMissingHandler:
						wantThere = false
					case ModeBinaryMissing:
						want.BinaryName += ".gpu-fault-missing"
					case ModeWrongRuntimeType:
						want.Type = "io.containerd.gpu-fault-nosuch.v2"
					case ModeCgroupDriver:
						on := flag(was.SystemdCgroup) != "true"
						want.SystemdCgroup = &on
					case ModeOptionMisplaced:
						want.BinaryName = ""
						if m := merged(t, broken(before, b, false)); !hasWarning(
							m, "ignores BinaryName at the level of handler nvidia",
						) {
							t.Errorf("nothing says that BinaryName is at the wrong level: %q", m.Warnings)
						}
					}
					if there != wantThere || there && !alike(is, want) {
						t.Errorf("nvidia is %+v (there: %t), want %+v (there: %t)", is, there, want, wantThere)
					}
				})
			}
		}
	}
}

// Removing the handler from one file must not let another one's definition through.
func TestBreakAllFiles(t *testing.T) {
	t.Parallel()
	before := config(recent, grpcRoot, cri3("version = 3", "/3"), grpcNvidia)
	b, err := before.Break(Request{Mode: ModeMissingHandler, Handler: "nvidia"})
	if err != nil {
		t.Fatal(err)
	}
	restores(t, b)
	if _, _, there := onlyChanged(t, before, broken(before, b, false), "nvidia"); there || len(b.Files) != 3 ||
		b.NodeLoss {
		t.Errorf("nvidia is still there (%t), or not all three files are edited: %s", there, b.Summary)
	}
	b, err = before.Break(Request{Mode: ModeBinaryMissing, Handler: "nvidia"})
	if err != nil {
		t.Fatal(err)
	}
	if _, is, _ := onlyChanged(
		t, before, broken(before, b, false), "nvidia",
	); is.BinaryName != "/grpc.gpu-fault-missing" ||
		len(b.Files) != 3 {
		t.Errorf("BinaryName is %s, %d files are edited", is.BinaryName, len(b.Files))
	}
}

// On 1.7 a fault in the files of a shadowing drop-in would uncover the rest: refused, not done wrong.
func TestBreakShadowed(t *testing.T) {
	t.Parallel()
	dropin := grpcNvidia +
		"[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\nruntime_type='io.containerd.runc.v2'\n"
	b, err := config(old, grpcRoot, dropin).Break(Request{Mode: ModeMissingHandler, Handler: "nvidia"})
	if err != nil || len(b.Files) != 2 {
		t.Errorf("the drop-in keeps its table, so this is possible: %v", err)
	}
	only := strings.Replace(grpcNvidia, "[plugins",
		"[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name='nvidia'\n[plugins", 1)
	b, err = config(old, grpcRoot, strings.Replace(only, "default_runtime_name='nvidia'\n", "", 1)).Break(
		Request{Mode: ModeMissingHandler, Handler: "nvidia"},
	)
	if refused := (*RefusedError)(nil); !errors.As(err, &refused) {
		t.Errorf("CRI does not even load: %v, %v", b, err)
	}
	b, err = config(old, only).Break(Request{Mode: ModeMissingHandler, Handler: "nvidia"})
	if err != nil || !b.NodeLoss || !strings.Contains(b.Summary, "the CRI plugin will not load: the default runtime nvidia is not defined") {
		t.Errorf("without its only and default handler CRI does not load, and that must be said: %+v, %v", b, err)
	}
}

// Moving the handler: into a new file of the same version, or to the end of one that is there.
func TestWrongInstance(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ file, decoy, want, err string }{
		"created": {file: "v2-kubeadm.toml", want: "/usr/local/nvidia/toolkit/nvidia-container-runtime"},
		"dotted":  {file: "v3-dotted.toml", want: "/usr/bin/nvidia-container-runtime"},
		"inline":  {file: "v3-inline.toml", want: "/usr/bin/nvidia-container-runtime"},
		"appended": {
			file: "v2-kubeadm.toml", decoy: "version = 2\n[plugins]",
			want: "/usr/local/nvidia/toolkit/nvidia-container-runtime",
		},
		"empty": {
			file: "v2-kubeadm.toml", decoy: "\n", want: "/usr/local/nvidia/toolkit/nvidia-container-runtime",
		},
		"there already":  {file: "v2-kubeadm.toml", decoy: grpcNvidia, want: "/grpc"},
		"not TOML":       {file: "v2-kubeadm.toml", decoy: "= =", err: "invalid TOML"},
		"template":       {file: "v2-kubeadm.toml", decoy: "{{ x }}", err: "the file is a template"},
		"inline runtime": {file: "v2-kubeadm.toml", decoy: "plugins = {}\n", err: "cannot be added"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := config(recent, nodeFile(t, test.file))
			decoy := File{Path: "/var/lib/other/config.toml"}
			if test.decoy != "" {
				decoy.Data = []byte(test.decoy)
			}
			b, err := before.Break(Request{Mode: ModeWrongInstance, Handler: "nvidia", Decoy: decoy})
			if test.err != "" {
				if refused := (*RefusedError)(nil); !errors.As(err, &refused) || refused.Path != decoy.Path ||
					!strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			restores(t, b)
			if _, _, there := onlyChanged(t, before, broken(before, b, false), "nvidia"); there {
				t.Error("the handler is still in its own instance")
			}
			for _, f := range b.Files {
				if f.Path == decoy.Path {
					decoy.Data = f.After
				}
			}
			other := merged(t, config(recent, string(decoy.Data)))
			if h := other.Handlers["nvidia"]; h.BinaryName != test.want || h.Type != "io.containerd.runc.v2" {
				t.Errorf("the other instance has %+v\n%s", h, decoy.Data)
			}
		})
	}
	if _, err := config(recent, grpcRoot).Break(
		Request{Mode: ModeWrongInstance, Handler: "nvidia", Decoy: File{Path: configPath}},
	); err == nil || !strings.Contains(err.Error(), "kubelet's containerd") {
		t.Errorf("the decoy is the loaded file itself: %v", err)
	}
}

// The shadowing drop-in must come last, also where drop-ins are in use already.
func TestDropinShadow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ root, dropin, want string }{
		"no imports": {root: grpcRoot, want: "/etc/containerd/zz-gpu-fault.toml"},
		"empty":      {root: "imports = [ ]\n" + grpcRoot, want: "/etc/containerd/zz-gpu-fault.toml"},
		"folder not used": {
			root: "imports = [\n  \"/etc/containerd/conf.d/*.toml\",\n]\n" + grpcRoot,
			want: "/etc/containerd/zz-gpu-fault.toml",
		},
		"folder in use": {
			root: "imports = [\"/etc/containerd/conf.d/*.toml\"]\n" + grpcRoot, dropin: "version = 2\noom_score = 1\n",
			want: "/etc/containerd/conf.d/zz-gpu-fault.toml",
		},
		"version 1": {root: nodeFile(t, "v1-docker.toml"), want: "/etc/containerd/zz-gpu-fault.toml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := []string{test.root}
			if test.dropin != "" {
				files = append(files, test.dropin)
			}
			before := config(old, files...)
			b, err := before.Break(Request{Mode: ModeDropinShadow, Handler: "nvidia"})
			if err != nil {
				t.Fatal(err)
			}
			restores(t, b)
			after := broken(before, b, true)
			m := merged(t, after)
			if last := after.Files[len(after.Files)-1].Path; last != test.want || !b.NodeLoss || len(m.Handlers) != 1 ||
				!hasWarning(m, "the CRI plugin does not load: the default runtime runc is not defined") {
				t.Errorf("the drop-in is %s; merged: %+v", last, m)
			}
		})
	}
}

// Faults that have no meaning, or another one than asked for, are refused with what to do instead.
func TestBreakRefuses(t *testing.T) {
	t.Parallel()
	kata :=
		"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\nruntime_type='io.containerd.kata.v2'\nruntime_path='/opt/kata'\n"
	tests := map[string]struct {
		c       *Config
		request Request
		want    string
		refused bool
	}{
		"no such handler": {
			config(recent, grpcRoot), Request{Mode: ModeMissingHandler, Handler: "kata"},
			`runtime handler "kata" not found in containerd's configuration; supported values: nvidia, runc`, false,
		},
		"no handlers": {
			config(recent, "version = 3"), Request{Mode: ModeMissingHandler, Handler: "nvidia"}, "has no handlers",
			false,
		},
		"no files": {
			&Config{Release: recent}, Request{Mode: ModeUnparsable}, "uses its defaults", false,
		},
		"no such mode": {
			config(recent, grpcRoot), Request{Mode: "oops"}, "supported modes: missing-handler, wrong-instance", false,
		},
		"built-in handler": {
			config(recent, grpcRoot), Request{Mode: ModeMissingHandler, Handler: "runc"},
			"runc is built into containerd", true,
		},
		"shadow on 2.x": {
			config(recent, grpcRoot), Request{Mode: ModeDropinShadow, Handler: "nvidia"}, "merges drop-ins", true,
		},
		"shadow with runc": {
			config(old, grpcRoot), Request{Mode: ModeDropinShadow, Handler: "runc"},
			"contains the default handler", true,
		},
		"not runc: binary": {
			config(recent, kata), Request{Mode: ModeBinaryMissing, Handler: "kata"}, "does not read runc's options",
			true,
		},
		"not runc: cgroup": {
			config(recent, kata), Request{Mode: ModeCgroupDriver, Handler: "kata"}, "does not read runc's options",
			true,
		},
		"runtime_path": {
			config(recent, kata), Request{Mode: ModeWrongRuntimeType, Handler: "kata"}, "runtime_type has no effect",
			true,
		},
		"nothing to misplace": {
			config(recent, grpcRoot), Request{Mode: ModeOptionMisplaced, Handler: "runc"}, "has no BinaryName", true,
		},
		"broken already": {
			config(recent, grpcRoot+"= ="), Request{Mode: ModeUnparsable}, "configuration does not load", true,
		},
		"default missing already": {
			config(recent,
				"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name='x'"),
			Request{Mode: ModeUnparsable}, "CRI plugin does not load with the current configuration", true,
		},
		"template": {
			config(recent, "version = {{ .Version }}"), Request{Mode: ModeUnparsable}, "the file is a template", true,
		},
		"generated": {
			config(recent, "# k0s_managed=true\n"+grpcRoot), Request{Mode: ModeMissingHandler, Handler: "nvidia"},
			"/etc/k0s/containerd.d", true,
		},
		"comments in imports": {
			config(old, "imports = [ # none\n]\n"+grpcRoot), Request{Mode: ModeDropinShadow, Handler: "nvidia"},
			"the imports contain comments", true,
		},
		"no decoy": {
			config(recent, grpcRoot), Request{Mode: ModeWrongInstance, Handler: "nvidia"},
			"requires the configuration file of another", false,
		},
		"ignored by the release": {
			config(old, cri3("version = 2", "/x")), Request{Mode: ModeMissingHandler, Handler: "nvidia"},
			"has no handlers", false,
		},
		"array of tables as value": {
			config(recent,
				"version = 3\n[[plugins.x]]\n[[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]]"),
			Request{Mode: ModeMissingHandler, Handler: "nvidia"}, "not a table", true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := test.c.Break(test.request)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("Break() = %+v, %v; want %q", b, err, test.want)
			}
			if refused := (*RefusedError)(nil); errors.As(err, &refused) != test.refused ||
				test.refused && (refused.Way == "" || refused.Path == "") {
				t.Errorf("refused: %+v, want %t", refused, test.refused)
			}
		})
	}
}

// A default handler is named where CRI reads it, whatever the file looks like.
func TestDefaultMissing(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"replaced": grpcRoot, "no CRI at all, version 2": "version = 2", "version 3": "version = 3\n",
		"version 1": "oom_score = 1\n", "only a handler": cri3("version = 3", "/x"),
		"inline":          "version = 3\nplugins = { 'io.containerd.cri.v1.runtime' = { containerd = {} } }",
		"dotted":          "version = 3\nplugins.'io.containerd.cri.v1.runtime'.containerd.x = 1\n",
		"only the plugin": "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n",
	} {
		before := config(recent, data)
		b, err := before.Break(Request{Mode: ModeDefaultMissing})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		restores(t, b)
		if m := merged(t, broken(before, b, false)); m.DefaultRuntime != "gpu-fault-missing" || !b.NodeLoss {
			t.Errorf("%s: %+v\n%s", name, m, b.Files[0].After)
		}
	}
}
