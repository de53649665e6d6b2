package containerd

import (
	"fmt"
	"slices"
	"strings"
)

// Handler is one runtime handler.
type Handler struct {
	Name          string
	Type          string  // runtime_type
	BinaryName    string  // options.BinaryName
	SystemdCgroup *bool   // options.SystemdCgroup; nil when not given
	Places        []Place // where it is defined; none when the source is CRI
}

// Place is where a handler is defined.
type Place struct {
	File   string
	Line   int    // from 1
	Plugin string // the plugin table it lies in, as the file has it
}

// Merged is a daemon's configuration, as far as handlers are concerned.
type Merged struct {
	// Version is that of the root file, 1 where it names none; 0 without files, and when the source is CRI.
	Version int
	// DefaultRuntime is the configured default handler. From files it is empty where they name none: then it is runc.
	DefaultRuntime string
	// Handlers are those that the files declare; since 2.0, and before it where they declare none, containerd has runc
	// as well.
	Handlers map[string]Handler
	// Warnings are what the daemon ignores, and what it will not start with.
	Warnings []string
	// Problems are the same for programs.
	Problems []Problem
}

// ProblemKind is what a Problem is about.
type ProblemKind string

// The kinds of problems.
const (
	// handlers under the ID of a plugin that this release does not read in this file
	ProblemUnread     ProblemKind = "unread"
	ProblemReplaces   ProblemKind = "replaces"    // a file replaces CRI's whole table, as releases before 2.0 do
	ProblemUnknownKey ProblemKind = "unknown-key" // a setting at the level of the handler that is none there
	ProblemNoDefault  ProblemKind = "no-default"  // the default handler does not exist: CRI does not load
	ProblemDisabled   ProblemKind = "disabled"    // disabled_plugins has CRI
)

// Problem is something in the files that the daemon ignores, or that keeps CRI from loading.
type Problem struct {
	Kind ProblemKind
	Text string // the warning
	File string // empty where no single file has it
	Line int    // from 1
	// Handlers are those that are concerned: not read, lost because this file replaces another's table, or with the
	// unknown key.
	Handlers []string
	// Key and Value are those of an unknown key.
	Key, Value string
	// Default is the handler that does not exist.
	Default string
}

func (m *Merged) add(p Problem) {
	m.Warnings, m.Problems = append(m.Warnings, p.Text), append(m.Problems, p)
}

// Merged returns what the daemon would have in memory from these files, without its built-in defaults. The error is why
// it would not start.
func (c *Config) Merged() (*Merged, error) {
	e, err := c.effective()
	if err != nil {
		return nil, err
	}
	m := &Merged{DefaultRuntime: e.defaultRuntime(), Handlers: map[string]Handler{}}
	for name, v := range e.runtimes() {
		m.Handlers[name] = newHandler(name, v)
	}
	for i, f := range c.Files {
		doc, tree, err := c.parse(f)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			m.Version = fileVersion(tree)
		}
		for _, plugin := range plugins {
			names := sortedKeys(digTable(tree, runtimesPath(plugin)...))
			for _, name := range names {
				place := Place{File: f.Path, Line: doc.lineOf(handlerPath(plugin, name)), Plugin: plugin}
				if h, ok := m.Handlers[name]; ok {
					h.Places = append(h.Places, place)
					m.Handlers[name] = h
				}
			}
			for _, problem := range c.ignored(e, i, doc, tree, plugin, names) {
				m.add(problem)
			}
		}
	}
	if err := e.loads(c.Release); err != nil {
		name := e.defaultRuntime()
		if name == "" {
			name = "runc"
		}
		m.add(Problem{Kind: ProblemNoDefault, Text: "CRI does not load: " + err.Error(), Default: name})
	}
	if list, ok := e.tree["disabled_plugins"].([]any); ok {
		for _, id := range slices.Concat(plugins, []string{"io.containerd.cri.v1.images"}) {
			if slices.Contains(list, any(id)) {
				m.add(Problem{Kind: ProblemDisabled, Text: "CRI does not load: disabled_plugins has " + id, Value: id})
			}
		}
	}
	return m, nil
}

// ignored returns the problems of one plugin table of the i-th file.
func (c *Config) ignored(
	e *effective, i int, doc *document, tree map[string]any, plugin string, handlers []string,
) []Problem {
	var all []Problem
	found := func(kind ProblemKind, path []string, format string, args ...any) *Problem {
		file, line := c.Files[i].Path, doc.lineOf(path)
		all = append(all, Problem{
			Kind: kind, File: file, Line: line, Text: fmt.Sprintf("%s:%d: ", file, line) + fmt.Sprintf(format, args...),
		})
		return &all[len(all)-1]
	}
	if why := c.unread(e, plugin, tree); why != "" && len(handlers) > 0 {
		p := found(ProblemUnread, runtimesPath(plugin), "containerd %s ignores the handlers %s under %q: %s", c.Release,
			strings.Join(handlers, ", "), plugin, why)
		p.Handlers = handlers
	}
	if i > 0 && !c.Release.AtLeast(2, 0) && plugin == e.plugin && digTable(tree, "plugins", plugin) != nil {
		for _, earlier := range c.Files[:i] {
			if before, err := c.decode(earlier.Data); err == nil && digTable(before, "plugins", plugin) != nil {
				p := found(ProblemReplaces, []string{"plugins", plugin},
					"this file replaces the whole table of CRI in %s: containerd merges such tables only since 2.0",
					earlier.Path)
				for _, name := range sortedKeys(digTable(before, runtimesPath(plugin)...)) {
					if !slices.Contains(handlers, name) {
						p.Handlers = append(p.Handlers, name)
					}
				}
			}
		}
	}
	for _, name := range handlers {
		table := digTable(tree, handlerPath(plugin, name)...)
		for _, key := range sortedKeys(table) {
			if !slices.Contains(handlerKeys, key) {
				p := found(ProblemUnknownKey, handlerPath(plugin, name, key),
					"containerd ignores %s at the level of the handler %s: it belongs under options, or is unknown",
					key, name)
				p.Handlers, p.Key, p.Value = []string{name}, key, fmt.Sprint(table[key])
			}
		}
	}
	return all
}

// unread returns why the daemon does not read handlers under plugin in a file; empty when it does.
func (c *Config) unread(e *effective, plugin string, tree map[string]any) string {
	switch {
	case !c.Release.AtLeast(2, 0) && plugin != e.plugin:
		return fmt.Sprintf("with this version it reads %q", e.plugin)
	case !c.Release.AtLeast(2, 0) || plugin == pluginRuntime:
		return ""
	case plugin == pluginShort && fileVersion(tree) > 1:
		return "that is an ID of version 1"
	case fileVersion(tree) >= c.Release.schema():
		return fmt.Sprintf("with version = %d it reads %q", fileVersion(tree), pluginRuntime)
	case digTable(tree, runtimesPath(pluginRuntime)...) != nil:
		return fmt.Sprintf("the file has handlers under %q too", pluginRuntime)
	}
	return ""
}

// handlerKeys are the settings of a handler, of all releases from 1.3 on; others are ignored.
var handlerKeys = []string{
	"runtime_type", "runtime_path", "runtime_engine", "runtime_root", "options", "pod_annotations",
	"container_annotations",
	"privileged_without_host_devices", "privileged_without_host_devices_all_devices_allowed", "cgroup_writable",
	"base_runtime_spec",
	"cni_conf_dir", "cni_max_conf_num", "snapshotter", "sandbox_mode", "sandboxer", "io_type",
}

func newHandler(name string, v any) Handler {
	table, _ := v.(map[string]any)
	h := Handler{Name: name, Type: digText(table, "runtime_type"), BinaryName: digText(table, "options", "BinaryName")}
	if systemd, ok := dig(table, "options", "SystemdCgroup"); ok {
		if on, ok := systemd.(bool); ok {
			h.SystemdCgroup = &on
		}
	}
	return h
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
