package runtimeview

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An edit that doctor hands out to be pasted mends what the finding says, and breaks nothing else: sed makes it of the
// very file, and the view of what comes out has no such finding. Where the right edit is not known, there is none.
func TestEdits(t *testing.T) {
	t.Parallel()
	sed, err := exec.LookPath("sed")
	if err != nil {
		t.Skip("there is no sed here")
	}
	const file = "/etc/containerd/config.toml"
	options := strings.TrimSuffix(table3, "]\nruntime_type = \"io.containerd.runc.v2\"\n") + ".options]\n"
	runc := "[plugins.\"io.containerd.cri.v1.runtime\".containerd]\ndefault_runtime_name = \"runc\"\n" +
		strings.ReplaceAll(table3, "nvidia", "runc") + strings.ReplaceAll(options, "nvidia", "runc") +
		"  SystemdCgroup = true\n"
	for name, test := range map[string]struct {
		release, text, id string
		want              string // a line below another, in the file that comes out; empty when there is no edit
	}{
		"an option, and a table for it below": {
			"2.1.4", "version = 3\n" + table3 + "  BinaryName = \"/x\"\n\n  " + options + "  SystemdCgroup = true\n",
			"rt.option-misplaced",
			".options]\n  BinaryName = \"/x\"\n  SystemdCgroup",
		},
		"an option without a table": {
			"2.1.4", "version = 3\n" + table3 + "BinaryName = \"/x\"\npod_annotations = []\n", "rt.option-misplaced",
			"pod_annotations = []\n" + options + "BinaryName = \"/x\"\n",
		},
		"an option in the last line": {
			"2.1.4", "version = 3\n" + table3 + "BinaryName = \"/x\"\n", "rt.option-misplaced", "",
		},
		"an option in an inline table": {
			"2.1.4",
			"version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes]\nnvidia = {BinaryName = \"/x\"}\n#\n",
			"rt.option-misplaced", "",
		},
		"a cgroup driver": {
			"2.1.4", "version = 3\n" + runc + table3 + options + "SystemdCgroup = false\nBinaryName = \"/false\"\n",
			"rt.cgroup-driver", "SystemdCgroup = true\nBinaryName = \"/false\"",
		},
		"a cgroup driver that is unsaid": {"2.1.4", "version = 3\n" + runc + table3, "rt.cgroup-driver", ""},
		"CRI alone is disabled": {
			"1.7.28", "disabled_plugins = [\"cri\"]\n", "rt.cri-disabled", "disabled_plugins = []\n",
		},
		"CRI is disabled first": {
			"1.7.28", "disabled_plugins = [\"cri\", \"zfs\"]\n", "rt.cri-disabled", "disabled_plugins = [\"zfs\"]\n",
		},
		"CRI is disabled last": {
			"1.7.28", "disabled_plugins = [\"zfs\" , \"cri\"]\n", "rt.cri-disabled", "disabled_plugins = [\"zfs\"]\n",
		},
		"CRI is disabled in many lines": {"1.7.28", "disabled_plugins = [\n  \"cri\",\n]\n", "rt.cri-disabled", ""},
	} {
		find := func(text string) *Finding {
			v := New("gpu-1", loaded(test.release, nil, file, text), nil, nil)
			for i := range v.Findings {
				if v.Findings[i].ID == test.id {
					return &v.Findings[i]
				}
			}
			return nil
		}
		found := find(test.text)
		if found == nil || (found.Edit == nil) != (test.want == "") {
			t.Errorf("%s: found %+v", name, found)
			continue
		}
		if found.Edit == nil {
			continue
		}
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(sed, "-i.bak", found.Edit.Sed, path).CombinedOutput(); err != nil {
			t.Errorf("%s: sed %q: %v: %s", name, found.Edit.Sed, err, out)
			continue
		}
		mended, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if still := find(string(mended)); still != nil || !strings.Contains(string(mended), test.want) {
			t.Errorf("%s: sed %q leaves %v in:\n%s", name, found.Edit.Sed, still, mended)
		}
	}
	generated := loaded("1.7.28", nil, file, "disabled_plugins = [\"cri\"]\n")
	generated.Instance.Files[0].ReadOnly = "k3s regenerates the file on each start"
	if f := New("gpu-1", generated, nil, nil).Findings; f[len(f)-1].Edit != nil {
		t.Error("an edit of a file that is regenerated at each start has no effect")
	}
}

// At 3 a.m. a title has to name what is wrong: the handler, the program, the file.
func TestTitlesNameThings(t *testing.T) {
	t.Parallel()
	const file, dropIn = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
	missing := loaded("2.1.4", []string{"runc=", "nvidia=/usr/bin/nvidia-container-runtime"}, file,
		"version = 3\n"+table3)
	missing.Instance.Executables["/usr/bin/nvidia-container-runtime"] = "missing"
	shim := loaded("2.1.4", []string{"runc="}, file, "version = 3\n"+strings.ReplaceAll(table3, "runc.v2", "kata.v2"))
	shim.Instance.Executables["containerd-shim-kata-v2"] = "not found in PATH (/usr/bin)"
	decoy := loaded("2.1.4", []string{"runc="}, file, "version = 3\n")
	decoy.Decoys = append(decoy.Decoys,
		*loaded("2.1.4", nil, "/opt/containerd/config.toml", "version = 3\n"+table3).Instance)
	for id, test := range map[string]struct {
		view View
		want string
	}{
		"rt.binary-missing": {
			New("gpu-1", missing, nil, nil),
			"handler nvidia starts /usr/bin/nvidia-container-runtime, which does not exist",
		},
		"rt.runtime-type": {
			New("gpu-1", shim, nil, nil),
			"handler nvidia has a runtime type whose shim, containerd-shim-kata-v2, is not in containerd's PATH",
		},
		"rt.wrong-instance": {
			New("gpu-1", decoy, nil, nil),
			"handler nvidia is in /opt/containerd/config.toml:2, which the kubelet's containerd does not load",
		},
		"rt.option-misplaced": {
			New("gpu-1", loaded("2.1.4", nil, file, "version = 3\n"+table3+"BinaryName = \"/x\"\n"), nil, nil),
			"BinaryName of handler nvidia is one level too high in " + file + ", where containerd ignores it",
		},
		"rt.dropin-shadow": {
			New("gpu-1", loaded("1.7.28", nil, file, "version = 2\n"+runc2, dropIn, "version = 2\n"+table2), nil, nil),
			"the drop-in " + dropIn + " replaces the entire CRI configuration, so the CRI plugin does not load",
		},
		"rt.version-skew-ids": {
			New("gpu-1", loaded("1.7.28", []string{"runc="}, file, "version = 2\n"+runc2+table3), nil, nil),
			"handler nvidia is in " + file + " under a plugin ID that containerd 1.7.28 ignores in a configuration file with this version number",
		},
	} {
		var got []string
		for _, f := range test.view.Findings {
			if f.ID == id {
				got = append(got, f.Title)
			}
		}
		if len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: titles %q, want %q", id, got, test.want)
		}
	}
}
