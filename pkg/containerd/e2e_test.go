//go:build e2e

package containerd

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// What we say the daemon makes of files is what a real containerd prints for them: our own configurations, drop-ins of
// all versions, and each of them with each fault in it.
func TestMergedAsContainerd(t *testing.T) {
	node := cluster.Require(t).Workers()[0]
	fields := strings.Fields(node.Sh(t, "containerd", "--version"))
	release, err := ParseRelease(fields[len(fields)-1])
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(node.Sh(t, "mktemp", "-d", "/tmp/containerd-config-XXXXXX"))
	t.Cleanup(func() { node.Sh(t, "rm", "-rf", dir) })

	imports := "imports = ['conf.d/*.toml']\n"
	cases := map[string]map[string]string{
		"version 2, drop-in of version 2": {"config.toml": imports + grpcRoot, "conf.d/1.toml": grpcNvidia},
		"version 3, drop-in of version 2": {
			"config.toml": imports + cri3("version = 3", "/3"), "conf.d/1.toml": grpcNvidia,
		},
		"version 2, drop-in of version 3": {
			"config.toml": imports + grpcRoot, "conf.d/1.toml": cri3("version = 3", "/3"),
		},
		"version 4, drop-in without one": {
			"config.toml":   imports + cri3("version = 4", "/4"),
			"conf.d/1.toml": strings.TrimPrefix(grpcNvidia, "version = 2\n"),
		},
		"version 2, both IDs in one file": {"config.toml": grpcRoot + strings.TrimPrefix(cri3("", "/3"), "\n")},
		"version 4, the ID of version 2": {
			"config.toml": strings.Replace(grpcRoot, "version = 2", "version = 4", 1),
		},
		"version 3, the ID of version 2": {
			"config.toml": strings.Replace(grpcRoot, "version = 2", "version = 3", 1),
		},
		"three drop-ins, sorted": {
			"config.toml": imports + grpcRoot, "conf.d/b.toml": cri3("version = 2", "/b"),
			"conf.d/a.toml": cri3("version = 2", "/a"), "conf.d/c.txt": "= =",
		},
		"a drop-in that imports": {
			"config.toml":   imports + grpcRoot,
			"conf.d/1.toml": "version = 2\nimports = ['../x.toml', '../config.toml']\n", "x.toml": grpcNvidia,
		},
		"a drop-in that sets false over true": {
			"config.toml":   imports + grpcRoot,
			"conf.d/1.toml": "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\nSystemdCgroup = false\nBinaryName = ''\n",
		},
		"an import that is missing":  {"config.toml": "version = 3\nimports = ['x.toml']\n"},
		"a version that is too high": {"config.toml": "version = 5\n"},
		"an unknown key at the handler's level": {
			"config.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.x]\nBinaryName = '/x'\n",
		},
		"a handler with nothing in it": {
			"config.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.x]\n",
		},
		"a handler that is no table": {
			"config.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]\nx = 1\n",
		},
	}
	entries, err := os.ReadDir("testdata/nodes")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		cases[entry.Name()] = map[string]string{"config.toml": nodeFile(t, entry.Name())}
	}
	for name, files := range cases {
		t.Run(name, func(t *testing.T) {
			compare(t, node, release, dir, files)
			for _, mode := range Modes() {
				c, err := load(release, dir, files)
				if err != nil {
					continue
				}
				b, err := c.Break(Request{Mode: mode.Mode, Handler: "nvidia", Decoy: File{Path: "/decoy.toml"}})
				if err != nil {
					continue
				}
				after := map[string]string{}
				for name, data := range files {
					after[name] = data
				}
				for _, f := range b.Files {
					if strings.HasPrefix(f.Path, dir) {
						after[strings.TrimPrefix(f.Path, dir+"/")] = string(f.After)
					}
				}
				t.Run(string(mode.Mode), func(t *testing.T) { compare(t, node, release, dir, after) })
			}
		})
	}
}

// load reads files as if they were in dir.
func load(release Release, dir string, files map[string]string) (*Config, error) {
	fsys := fstest.MapFS{}
	for name, data := range files {
		fsys[strings.TrimPrefix(dir, "/")+"/"+name] = &fstest.MapFile{Data: []byte(data)}
	}
	return Load(fsys, dir+"/config.toml", release)
}

// compare lets containerd print what it makes of the files, and us too.
func compare(t *testing.T, node cluster.Node, release Release, dir string, files map[string]string) {
	t.Helper()
	script := "rm -rf " + dir + "/*; mkdir -p " + dir + "/conf.d; cd " + dir
	for name, data := range files {
		script += "; echo '" + base64.StdEncoding.EncodeToString([]byte(data)) + "' | base64 -d >" + name
	}
	out, dumpErr := node.TrySh(t.Context(), "sh", "-c",
		script+"; cd /; containerd -c "+dir+"/config.toml config dump 2>"+dir+"/err || { cat "+dir+
			"/err >&2; exit 1; }")

	c, err := load(release, dir, files)
	var m *Merged
	if err == nil {
		m, err = c.Merged()
	}
	if (err == nil) != (dumpErr == nil) {
		// `config dump` takes a missing import for a missing root file, and prints the defaults.
		if dumpErr == nil && strings.Contains(err.Error(), "file does not exist") {
			return
		}
		t.Fatalf("we say %v, containerd %v", err, dumpErr)
	}
	if err != nil {
		return
	}
	var dump map[string]any
	if err := toml.Unmarshal([]byte(out), &dump); err != nil {
		t.Fatal(err)
	}
	dumped := digTable(dump, runtimesPath(pluginRuntime)...)
	if got, want := m.DefaultRuntime, digText(
		dump, "plugins", pluginRuntime, "containerd", "default_runtime_name",
	); got != want && (got != "" || want != "runc") {
		t.Errorf("the default runtime is %q, containerd says %q", got, want)
	}
	ours, theirs := "", ""
	for _, name := range sortedKeys(dumped) {
		if h, ok := m.Handlers[name]; ok || name != "runc" {
			ours += summary(h)
			theirs += summary(newHandler(name, dumped[name]))
		}
	}
	if ours != theirs || len(m.Handlers) > len(dumped) {
		t.Errorf("the handlers are\n%sfor us, with %d in all, and for containerd\n%swith %d", ours, len(m.Handlers),
			theirs, len(dumped))
	}
}

// summary leaves out how a setting is absent: the built-in defaults of runc are no part of ours.
func summary(h Handler) string {
	kind := h.Type
	if h.Name == "runc" && kind == "" {
		kind = "io.containerd.runc.v2"
	}
	return fmt.Sprintf("%s %s %q %t\n", h.Name, kind, h.BinaryName, h.SystemdCgroup != nil && *h.SystemdCgroup)
}
