//go:build e2e

package containerd_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// outcome is what a daemon makes of its files.
type outcome struct {
	handlers string // those that are declared, sorted: "nvidia runc"
	noCRI    bool   // the daemon runs without CRI
	refuses  string // the daemon does not start, and says this
}

// merges are the rules by which files become one configuration, with what real daemons do.
var merges = []struct {
	name         string
	files        map[string]string
	old, current outcome
}{{
	name: "a drop-in of version 2 with runc and another handler",
	files: map[string]string{
		rootFile:         full(2, grpcID),
		"conf.d/99.toml": "version = 2\n" + handler(grpcID, "runc", "") + handler(grpcID, "other", nvidia),
	},
	old:     outcome{handlers: "other runc"}, // the drop-in's table replaces the root's
	current: outcome{handlers: "nvidia other runc"},
}, {
	name: "a drop-in with only the handler",
	files: map[string]string{
		rootFile: full(2, grpcID), "conf.d/99.toml": "version = 2\n" + handler(grpcID, "other", nvidia),
	},
	old:     outcome{handlers: "other", noCRI: true},
	current: outcome{handlers: "nvidia other runc"},
}, {
	name: "two drop-ins that change the same handler: the later one wins",
	files: map[string]string{rootFile: full(2, grpcID),
		"conf.d/20.toml": "version = 2\n" + handler(grpcID, "nvidia", "/second"),
		"conf.d/10.toml": "version = 2\n" + handler(grpcID, "nvidia", "/first") + handler(grpcID, "runc", "")},
	old:     outcome{handlers: "nvidia", noCRI: true},
	current: outcome{handlers: "nvidia runc"},
}, {
	name: "a drop-in that concerns another plugin",
	files: map[string]string{
		rootFile: full(2, grpcID), "conf.d/99.toml": "version = 2\n[debug]\n  level = 'debug'\n",
	},
	old:     outcome{handlers: "nvidia runc"},
	current: outcome{handlers: "nvidia runc"},
}, {
	name: "version 2 with the IDs of version 3, as AKS has it",
	files: map[string]string{
		rootFile: root(2) + settings(runtimeID) + handler(runtimeID, "runc", "") + handler(runtimeID, "nvidia", nvidia),
	},
	old:     outcome{},
	current: outcome{handlers: "nvidia runc"},
}, {
	name: "version 2 with the IDs of 2 and of 3",
	files: map[string]string{rootFile: root(2) + settings(grpcID) + handler(grpcID, "runc",
		"") + handler(grpcID, "one", nvidia) + handler(runtimeID, "two", nvidia)},
	old:     outcome{handlers: "one runc"},
	current: outcome{handlers: "two"},
}, {
	name: "a drop-in of a higher version than the root",
	files: map[string]string{
		rootFile: full(2, grpcID), "conf.d/99.toml": "version = 3\n" + handler(runtimeID, "other", nvidia),
	},
	old:     outcome{refuses: "unsupported config version `3`"},
	current: outcome{handlers: "nvidia other runc"}, // 2.3.4 refuses it
}, {
	name: "a drop-in of a lower version than the root",
	files: map[string]string{
		rootFile: full(3, runtimeID), "conf.d/99.toml": "version = 2\n" + handler(grpcID, "other", nvidia),
	},
	old:     outcome{handlers: "other", noCRI: true}, // it looks at the version once, after all files: the last one's
	current: outcome{handlers: "nvidia other runc"},
}, {
	name:    "a drop-in without a version, with the root's IDs",
	files:   map[string]string{rootFile: full(3, runtimeID), "conf.d/99.toml": handler(runtimeID, "other", nvidia)},
	old:     outcome{refuses: "unsupported config version `3`"},
	current: outcome{handlers: "nvidia other runc"},
}, {
	name: "a drop-in without a version, with the IDs of version 2",
	files: map[string]string{
		rootFile: full(2, grpcID), "conf.d/99.toml": handler(grpcID, "runc", "") + handler(grpcID, "other", nvidia),
	},
	old:     outcome{handlers: "other runc"},
	current: outcome{handlers: "nvidia other runc"},
}, {
	name:    "version 4",
	files:   map[string]string{rootFile: full(4, runtimeID)},
	old:     outcome{refuses: "unsupported config version `4`"},
	current: outcome{handlers: "nvidia runc"},
}, {
	name:    "no version, with IDs of version 1",
	files:   map[string]string{rootFile: full(0, shortID)},
	old:     outcome{handlers: "nvidia runc"},
	current: outcome{handlers: "nvidia runc"},
}, {
	name:    "no version, and only the handler: since 2.0 runc stays",
	files:   map[string]string{rootFile: root(0) + settings(shortID) + handler(shortID, "nvidia", nvidia)},
	old:     outcome{handlers: "nvidia", noCRI: true},
	current: outcome{handlers: "nvidia"},
}, {
	name:    "an import by its name that is not there",
	files:   map[string]string{rootFile: root(2, "@DIR@/gone.toml") + settings(grpcID) + handler(grpcID, "runc", "")},
	old:     outcome{refuses: "gone.toml: no such file or directory"},
	current: outcome{refuses: "gone.toml: no such file or directory"},
}, {
	name: "an import by its name, relative to the file",
	files: map[string]string{
		rootFile:         root(2, "more/here.toml") + settings(grpcID),
		"more/here.toml": "version = 2\n" + handler(grpcID, "runc", "") + handler(grpcID, "nvidia", nvidia),
	},
	old:     outcome{handlers: "nvidia runc"},
	current: outcome{handlers: "nvidia runc"},
}, {
	name: "a drop-in that imports another file",
	files: map[string]string{rootFile: full(2, grpcID),
		"conf.d/99.toml": "version = 2\nimports = ['@DIR@/more.toml']\n",
		"more.toml":      "version = 2\n" + handler(grpcID, "runc", "") + handler(grpcID, "other", nvidia)},
	old:     outcome{handlers: "other runc"},
	current: outcome{handlers: "nvidia other runc"},
}, {
	name:    `"cri" disabled, as Docker's package has it`,
	files:   map[string]string{rootFile: "disabled_plugins = ['cri']\n" + root(0)},
	old:     outcome{noCRI: true},
	current: outcome{noCRI: true},
}, {
	name:    `"cri" disabled, in version 2`,
	files:   map[string]string{rootFile: "disabled_plugins = ['cri']\n" + full(2, grpcID)},
	old:     outcome{refuses: "invalid disabled plugin URI \"cri\" expect io.containerd.x.vx"},
	current: outcome{refuses: "invalid disabled plugin URI \"cri\" expect io.containerd.x.vx"},
}, {
	name:    "version 2 with the ID of version 1",
	files:   map[string]string{rootFile: root(2) + settings(shortID) + handler(shortID, "runc", "")},
	old:     outcome{refuses: "invalid plugin key URI \"cri\" expect io.containerd.x.vx"},
	current: outcome{},
}, {
	name:    "not TOML",
	files:   map[string]string{rootFile: full(2, grpcID) + "[[[\n"},
	old:     outcome{refuses: "failed to load TOML: @DIR@/config.toml: ("},
	current: outcome{refuses: "failed to unmarshal TOML at row "},
}}

// full returns a root file with two handlers, and drop-ins.
func full(version int, plugin string) string {
	return root(version, "@DIR@/conf.d/*.toml") + settings(plugin) + handler(plugin, "runc", "") +
		handler(plugin, "nvidia", nvidia)
}

func TestMergedIsWhatTheDaemonHas(t *testing.T) {
	for _, m := range merges {
		for _, d := range []daemon{old, current} {
			want := m.current
			if d.release == old.release {
				want = m.old
			}
			t.Run(m.name+"/"+d.release.String(), func(t *testing.T) {
				t.Parallel()
				in := newInstance(t, d, m.files)
				ours, err := in.merged()
				if want.refuses != "" {
					if err == nil {
						t.Errorf("Merged expects that this loads, with %v", slices.Sorted(maps.Keys(ours.Handlers)))
					}
					// That of a disabled plugin comes only at the start.
					if said, want := in.complaint(t), strings.ReplaceAll(
						want.refuses, "@DIR@", in.dir,
					); !strings.Contains(said, want) {
						t.Errorf("it does not say %q:\n%s", want, said)
					}
					return
				}
				if err != nil {
					t.Fatalf("Merged expects that this does not load: %v", err)
				}
				if got := strings.Join(slices.Sorted(maps.Keys(ours.Handlers)), " "); got != want.handlers {
					t.Errorf("Merged has the handlers %q, wanted %q", got, want.handlers)
				}
				if warned := slices.ContainsFunc(
					ours.Warnings, func(w string) bool { return strings.Contains(w, "CRI plugin does not load") },
				); warned != want.noCRI {
					t.Errorf("Merged warns that CRI does not load: %t, wanted %t: %q", warned, want.noCRI,
						ours.Warnings)
				}
				dump, err := in.dump(t)
				if err != nil {
					t.Fatalf("config dump: %v", err)
				}
				compare(t, "config dump", ours, dumped(dump, d.plugin))

				in.start(t)
				config := in.config(t)
				if want.noCRI {
					if !strings.Contains(config, "unknown service runtime.v1.RuntimeService") {
						t.Errorf("CRI answers, or not as if it were absent: %s", config)
					}
					return
				}
				running, err := containerd.Running([]byte(config))
				if err != nil {
					t.Fatalf("CRI's configuration: %v\n%s", err, config)
				}
				compare(t, "CRI", ours, running.Handlers)
			})
		}
	}
}

func (in *instance) merged() (*containerd.Merged, error) {
	c, err := in.load()
	if err != nil {
		return nil, err
	}
	return c.Merged()
}

// compare holds what Merged says against the handlers that the daemon has. runc is built in, so it may have that
// besides.
func compare(t *testing.T, source string, ours *containerd.Merged, theirs map[string]containerd.Handler) {
	t.Helper()
	for name, h := range theirs {
		mine, ok := ours.Handlers[name]
		if !ok && name == "runc" {
			continue
		}
		if got, want := describe(mine), describe(h); !ok || got != want {
			t.Errorf("handler %s: Merged says %s, and %s %s", name, got, source, want)
		}
	}
	for name := range ours.Handlers {
		if _, ok := theirs[name]; !ok {
			t.Errorf("handler %s: Merged has it, and %s has not", name, source)
		}
	}
}

func describe(h containerd.Handler) string {
	cgroup := "not given"
	if h.SystemdCgroup != nil {
		cgroup = fmt.Sprint(*h.SystemdCgroup)
	}
	return fmt.Sprintf("{type %q, BinaryName %q, SystemdCgroup %s}", h.Type, h.BinaryName, cgroup)
}

// dumped returns the handlers in the daemon's own dump.
func dumped(tree map[string]any, plugin string) map[string]containerd.Handler {
	at := func(tree any, keys ...string) any {
		for _, key := range keys {
			table, _ := tree.(map[string]any)
			tree = table[key]
		}
		return tree
	}
	all, _ := at(tree, "plugins", plugin, "containerd", "runtimes").(map[string]any)
	handlers := map[string]containerd.Handler{}
	for name, v := range all {
		h := containerd.Handler{Name: name}
		h.Type, _ = at(v, "runtime_type").(string)
		h.BinaryName, _ = at(v, "options", "BinaryName").(string)
		if systemd, ok := at(v, "options", "SystemdCgroup").(bool); ok {
			h.SystemdCgroup = &systemd
		}
		handlers[name] = h
	}
	return handlers
}
