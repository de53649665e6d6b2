package containerd

import (
	"fmt"
	"slices"
	"strings"
)

// Handler is a runtime handler.
type Handler struct {
	Name          string
	Type          string  // runtime_type
	BinaryName    string  // options.BinaryName
	SystemdCgroup *bool   // options.SystemdCgroup; nil if not set
	Places        []Place // locations of the definitions; empty if the source is CRI
}

// Place is the location of a handler's definition.
type Place struct {
	File   string
	Line   int    // starts at 1
	Plugin string // enclosing plugin table, as written in the file
}

// Merged is the part of a daemon's configuration that is about handlers.
type Merged struct {
	// Version is the version of the root file, or 1 if it has none. It is 0 if there are no files or the configuration
	// was read from CRI.
	Version int
	// DefaultRuntime is the configured default handler. It is empty if the configuration was read from files and they
	// do not set a default handler; the default is then runc.
	DefaultRuntime string
	// Handlers are the handlers that the files declare. Since 2.0, and before 2.0 if no handler is declared, containerd
	// also has a built-in runc.
	Handlers map[string]Handler
	// Warnings describe settings that the daemon ignores or with which it cannot start.
	Warnings []string
	// Problems contains the warnings in machine-readable form.
	Problems []Problem
}

// ProblemKind is the kind of a Problem.
type ProblemKind string

// Kinds of problems.
const (
	// handlers under a plugin ID that this release ignores in configuration files with this version number
	ProblemUnread     ProblemKind = "unread"
	ProblemReplaces   ProblemKind = "replaces"    // a file replaces the entire CRI table, as in releases before 2.0
	ProblemUnknownKey ProblemKind = "unknown-key" // an unknown setting of a handler
	ProblemNoDefault  ProblemKind = "no-default"  // the default handler does not exist, so the CRI plugin does not load
	ProblemDisabled   ProblemKind = "disabled"    // disabled_plugins includes CRI
)

// Problem is a setting that the daemon ignores, or that prevents CRI from loading.
type Problem struct {
	Kind ProblemKind
	Text string // the warning
	File string // empty if the problem is not in a single file
	Line int    // starts at 1
	// Handlers are the affected handlers: those that are not read, are replaced by this file's table, or contain the
	// unknown key.
	Handlers []string
	// Key and Value are the unknown setting.
	Key, Value string
	// Default is the name of the default handler, for which no definition exists.
	Default string
}

func (m *Merged) add(p Problem) {
	m.Warnings, m.Problems = append(m.Warnings, p.Text), append(m.Problems, p)
}

// Merged returns the configuration that the daemon would have in memory with these files, without its built-in
// defaults. It returns an error if the daemon would not start.
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
		m.add(Problem{Kind: ProblemNoDefault, Text: "the CRI plugin does not load: " + err.Error(), Default: name})
	}
	if list, ok := e.tree["disabled_plugins"].([]any); ok {
		for _, id := range slices.Concat(plugins, []string{"io.containerd.cri.v1.images"}) {
			if slices.Contains(list, any(id)) {
				m.add(Problem{Kind: ProblemDisabled, Text: "the CRI plugin does not load: disabled_plugins contains " + id, Value: id})
			}
		}
	}
	return m, nil
}

// ignored returns the problems of one plugin table in the i-th file.
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
					"this file replaces the entire CRI table in %s: containerd merges such tables only since 2.0",
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
					"containerd ignores %s at the level of handler %s: the setting belongs under options or is unknown",
					key, name)
				p.Handlers, p.Key, p.Value = []string{name}, key, fmt.Sprint(table[key])
			}
		}
	}
	return all
}

// unread returns the reason why the daemon does not read handlers under plugin in a file, or "".
func (c *Config) unread(e *effective, plugin string, tree map[string]any) string {
	switch {
	case !c.Release.AtLeast(2, 0) && plugin != e.plugin:
		return fmt.Sprintf("with this version, it reads %q", e.plugin)
	case !c.Release.AtLeast(2, 0) || plugin == pluginRuntime:
		return ""
	case plugin == pluginShort && fileVersion(tree) > 1:
		return "this is a version 1 ID"
	case fileVersion(tree) >= c.Release.schema():
		return fmt.Sprintf("with version = %d, it reads %q", fileVersion(tree), pluginRuntime)
	case digTable(tree, runtimesPath(pluginRuntime)...) != nil:
		return fmt.Sprintf("the file also contains handlers under %q", pluginRuntime)
	}
	return ""
}

// handlerKeys are the settings of a handler in all releases since 1.3. The daemon ignores other settings.
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
	for key, value := range digTable(table, "options") {
		// containerd also accepts the spelling systemdCgroup, which is common.
		if on, ok := value.(bool); ok && strings.EqualFold(key, "SystemdCgroup") {
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
