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
	// Handlers are those that the files declare; since 2.0, and before it where they declare none, containerd has runc as well.
	Handlers map[string]Handler
	// Warnings are what the daemon ignores, and what it will not start with.
	Warnings []string
}

// Merged returns what the daemon would have in memory from these files, without its built-in defaults. The error is why it would not start.
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
			m.Warnings = append(m.Warnings, c.ignored(e, i, doc, tree, plugin, names)...)
		}
	}
	if err := e.loads(c.Release); err != nil {
		m.Warnings = append(m.Warnings, "CRI does not load: "+err.Error())
	}
	if list, ok := e.tree["disabled_plugins"].([]any); ok {
		for _, id := range slices.Concat(plugins, []string{"io.containerd.cri.v1.images"}) {
			if slices.Contains(list, any(id)) {
				m.Warnings = append(m.Warnings, "CRI does not load: disabled_plugins has "+id)
			}
		}
	}
	return m, nil
}

// ignored are the warnings about one plugin table of the i-th file.
func (c *Config) ignored(e *effective, i int, doc *document, tree map[string]any, plugin string, handlers []string) []string {
	var all []string
	at := func(path []string) string { return fmt.Sprintf("%s:%d: ", c.Files[i].Path, doc.lineOf(path)) }
	if why := c.unread(e, plugin, tree); why != "" && len(handlers) > 0 {
		all = append(all, at(runtimesPath(plugin))+fmt.Sprintf("containerd %s ignores the handlers %s under %q: %s", c.Release, strings.Join(handlers, ", "), plugin, why))
	}
	if i > 0 && !c.Release.AtLeast(2, 0) && plugin == e.plugin && digTable(tree, "plugins", plugin) != nil {
		for _, earlier := range c.Files[:i] {
			if before, err := c.decode(earlier.Data); err == nil && digTable(before, "plugins", plugin) != nil {
				all = append(all, at([]string{"plugins", plugin})+fmt.Sprintf("this file replaces the whole table of CRI in %s: containerd merges such tables only since 2.0", earlier.Path))
			}
		}
	}
	for _, name := range handlers {
		for _, key := range sortedKeys(digTable(tree, handlerPath(plugin, name)...)) {
			if !slices.Contains(handlerKeys, key) {
				all = append(all, at(handlerPath(plugin, name, key))+fmt.Sprintf("containerd ignores %s at the level of the handler %s: it belongs under options, or is unknown", key, name))
			}
		}
	}
	return all
}

// unread is why the daemon does not read handlers under plugin in a file; empty when it does.
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
	"runtime_type", "runtime_path", "runtime_engine", "runtime_root", "options", "pod_annotations", "container_annotations",
	"privileged_without_host_devices", "privileged_without_host_devices_all_devices_allowed", "cgroup_writable", "base_runtime_spec",
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
