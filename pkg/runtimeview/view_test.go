package runtimeview

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
)

const (
	table3 = `[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]` +
		"\nruntime_type = \"io.containerd.runc.v2\"\n"
	table2 = `[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]` +
		"\nruntime_type = \"io.containerd.runc.v2\"\n"
	runc2 = `[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]` +
		"\nruntime_type = \"io.containerd.runc.v2\"\n"
)

// loaded returns a containerd with these files (path, text, ...), and what it has in memory: "NAME=BINARY", or nothing
// when it does not serve.
func loaded(release string, memory []string, files ...string) api.Runtime {
	i := &api.Instance{
		PID: 50, Unit: "containerd.service", Release: release, ConfigPath: files[0], Executables: map[string]string{},
	}
	for n := 0; n < len(files); n += 2 {
		i.Files = append(i.Files, api.ConfigFile{Path: files[n], Data: []byte(files[n+1])})
	}
	if memory == nil {
		i.CRIError = "the CRI plugin is disabled"
		return api.Runtime{Instance: i}
	}
	runtimes := map[string]any{}
	for _, h := range memory {
		name, binary, _ := strings.Cut(h, "=")
		runtimes[name] = map[string]any{
			"runtimeType": "io.containerd.runc.v2", "options": map[string]any{"BinaryName": binary},
		}
	}
	raw, _ := json.Marshal(map[string]any{
		"enableCDI": false, "containerd": map[string]any{"defaultRuntimeName": "runc", "runtimes": runtimes},
	})
	i.CRI = &cri.Info{Name: "containerd", Version: release, Ready: true, Config: raw}
	return api.Runtime{Instance: i}
}

// What only the files have is marked: a restart would bring it, and until then nothing fails by it.
func TestFindings(t *testing.T) {
	t.Parallel()
	const file, dropIn = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
	for name, test := range map[string]struct {
		found api.Runtime
		want  string // ID, with ~ when only the files have it, and - when nothing fails by it alone
	}{
		"a misplaced option": {
			loaded("2.1.4", []string{"runc=", "nvidia="}, file, "version = 3\n"+table3+"BinaryName = \"/x\"\n"),
			"rt.option-misplaced",
		},
		"a misplaced option, not loaded": {
			loaded("2.1.4", []string{"runc=", "nvidia=/x"}, file, "version = 3\n"+table3+"BinaryName = \"/x\"\n"),
			"rt.edited-not-restarted- rt.option-misplaced~",
		},
		"a key that nobody knows": {
			loaded("2.1.4", []string{"runc=", "nvidia="}, file, "version = 3\n"+table3+"snapshoter = \"x\"\n"), "",
		},
		"a shadow": {
			loaded("1.7.28", nil, file, "version = 2\n"+runc2, dropIn, "version = 2\n"+table2),
			"rt.not-ready rt.dropin-shadow",
		},
		"a shadow, not loaded": {
			loaded("1.7.28", []string{"runc=", "nvidia="}, file, "version = 2\n"+runc2, dropIn, "version = 2\n"+table2),
			"rt.dropin-shadow~",
		},
		"a drop-in that 2.0 merges": {
			loaded("2.0.5", []string{"runc=", "nvidia="}, file, "version = 2\n"+runc2, dropIn, "version = 2\n"+table2),
			"",
		},
		"a drop-in with all that there was": {loaded("1.7.28", []string{"runc=", "nvidia="}, file,
			"version = 2\n"+runc2, dropIn, "version = 2\n"+runc2+table2), ""},
		"a drop-in that takes a handler away": {
			loaded("1.7.28", []string{"runc="}, file, "version = 2\n"+runc2+table2, dropIn, "version = 2\n"+runc2),
			"rt.dropin-shadow-",
		},
		"CRI is disabled": {
			loaded("1.7.28", nil, file, "disabled_plugins = [\"cri\"]\n"), "rt.not-ready rt.cri-disabled",
		},
		"an ID that 1.7 does not read": {
			loaded("1.7.28", []string{"runc="}, file, "version = 2\n"+runc2+table3), "rt.version-skew-ids",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range New("gpu-1", test.found, nil, nil).Findings {
				text := f.ID
				if f.Latent {
					text += "~"
				}
				if f.Mild {
					text += "-"
				}
				got = append(got, text)
				if f.Title == "" || f.Message == "" || len(f.Quotes) == 0 {
					t.Errorf("%s lacks a title, a message or quotations: %+v", f.ID, f)
				}
			}
			if fmt.Sprint(strings.Join(got, " ")) != test.want {
				t.Errorf("findings %q, want %q", got, test.want)
			}
		})
	}
}

// The toolkit's drop-in has to lie where the root file imports it from.
func TestToolkitEnv(t *testing.T) {
	t.Parallel()
	for imports, want := range map[string]string{
		``:                               "/opt/c/conf.d/99-nvidia.toml",
		`imports = ["/etc/more/*.toml"]`: "/etc/more/99-nvidia.toml",
		`imports = ["drop/*.toml"]`:      "/opt/c/drop/99-nvidia.toml",
		`imports = ["/one/file.toml", "/two/*.toml"]`: "/two/99-nvidia.toml",
		`imports = 7`: "/opt/c/conf.d/99-nvidia.toml",
	} {
		v := New("gpu-1", loaded("2.1.4", []string{"runc="}, "/opt/c/config.toml", "version = 3\n"+imports+"\n"), nil,
			nil)
		env := v.ToolkitEnv()
		if len(env) != 4 || env[2].Name != "RUNTIME_DROP_IN_CONFIG" || env[2].Value != want ||
			env[3].Value != "file=/opt/c/config.toml" {
			t.Errorf("%s: %v, want the drop-in %s", imports, env, want)
		}
	}
	if env := (&View{}).ToolkitEnv(); env != nil {
		t.Errorf("of an unknown runtime something is known: %v", env)
	}
}

// A path of the toolkit's container says nothing of the node, unless its mounts do.
func TestToolkitConfig(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"": "/etc/containerd/config.toml", "/opt/config.toml": "/opt/config.toml",
		"/runtime/config-dir/config.toml": "",
	} {
		var set appsv1.DaemonSet
		set.Spec.Template.Spec.Containers = []corev1.Container{
			{Image: "container-toolkit", Env: []corev1.EnvVar{{Name: "RUNTIME_CONFIG", Value: value}}},
		}
		if got := ToolkitsOf(set, nil)[0].Config(); got != want {
			t.Errorf("told %q it edits %q, want %q", value, got, want)
		}
	}
}

// Whatever lies in the files of a node, a view of it is made, and has nothing of their contents.
func FuzzView(f *testing.F) {
	f.Add("2.1.4", "version = 3\n"+table3+"BinaryName = \"/x\"\n", "", `{"containerd":{"runtimes":{"nvidia":{}}}}`)
	f.Add("1.7.28", "version = 2\n"+runc2, "version = 2\n"+table2, `"{}"`)
	f.Fuzz(func(t *testing.T, release, root, dropIn, memory string) {
		r := loaded(release, []string{}, "/etc/containerd/config.toml", "# secret-in-a-comment\n"+root,
			"/etc/containerd/conf.d/x.toml", dropIn)
		r.Instance.CRI.Config = json.RawMessage(memory)
		r.Decoys = []api.Instance{*r.Instance}
		raw, err := json.Marshal(New("gpu-1", r, []RuntimeClass{{"nvidia", "nvidia", nil}}, nil))
		if err != nil || strings.Contains(string(raw), "secret-in-a-comment") {
			t.Errorf("the view has contents of files, or cannot be printed: %v", err)
		}
	})
}
