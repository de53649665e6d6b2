package containerd

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Plugin tables that contain handlers, by the schema that introduced them. Files can mix them; for example, AKS uses
// `version = 2` with pluginRuntime.
const (
	pluginShort   = "cri"                          // version 1
	pluginGRPC    = "io.containerd.grpc.v1.cri"    // version 2
	pluginRuntime = "io.containerd.cri.v1.runtime" // versions 3 and 4
)

var plugins = []string{pluginShort, pluginGRPC, pluginRuntime}

func runtimesPath(plugin string) []string {
	return []string{"plugins", plugin, "containerd", "runtimes"}
}

func handlerPath(plugin, handler string, below ...string) []string {
	return slices.Concat(runtimesPath(plugin), []string{handler}, below)
}

// effective is the configuration that the daemon computes from all files.
type effective struct {
	tree   map[string]any // merged configuration without imports
	plugin string         // plugin table that CRI reads
}

// effective merges the files with the rules of the release:
//
//   - Before 2.0, a plugin table in a later file replaces the entire table in an earlier file. The last `version`
//     determines which plugin ID is read.
//   - Releases 2.0 to 2.2 merge the tables, and then move settings from the version 2 plugin ID to the version 3 ID,
//     unless the version 3 ID already has them.
//   - Since 2.3, the settings are moved in each file before the tables are merged.
func (c *Config) effective() (*effective, error) {
	e := &effective{tree: map[string]any{}, plugin: pluginRuntime}
	for i, f := range c.Files {
		tree, err := c.decode(f.Data)
		if err != nil {
			return nil, fmt.Errorf("containerd cannot load %s: %w", f.Path, err)
		}
		if err := c.acceptable(i, tree); err != nil {
			return nil, err
		}
		delete(tree, "imports")
		if c.Release.AtLeast(2, 0) {
			if fileVersion(tree) < 2 {
				lengthenIDs(tree)
			}
			if c.Release.AtLeast(2, 3) && fileVersion(tree) < c.Release.schema() {
				moveRuntimes(tree)
			}
			overlay(e.tree, tree)
			continue
		}
		plugins := digTable(e.tree, "plugins")
		overlay(e.tree, tree)
		if later := digTable(tree, "plugins"); plugins != nil && later != nil {
			maps.Copy(plugins, later)
			e.tree["plugins"] = plugins
		}
	}
	if len(c.Files) > 0 && !c.Release.AtLeast(2, 0) {
		if err := c.versioned(c.Files[0].Path, e.tree); err != nil {
			return nil, err
		}
	}
	switch version := fileVersion(e.tree); {
	case !c.Release.AtLeast(2, 0) && version == 1:
		e.plugin = pluginShort
	case !c.Release.AtLeast(2, 0):
		e.plugin = pluginGRPC
	case !c.Release.AtLeast(2, 3) && version < c.Release.schema():
		moveRuntimes(e.tree)
	}
	return e, nil
}

// acceptable returns an error if the daemon rejects the i-th file for a reason other than syntax.
func (c *Config) acceptable(i int, tree map[string]any) error {
	name, version := c.Files[i].Path, fileVersion(tree)
	if v, ok := tree["version"]; ok {
		if _, ok := v.(int64); !ok {
			return fmt.Errorf("containerd cannot load %s: version is not a number", name)
		}
	}
	if c.Release.AtLeast(2, 0) { // earlier releases check only the merged configuration
		if err := c.versioned(name, tree); err != nil {
			return err
		}
	}
	if highest := c.Release.schema(); version > highest && c.Release.AtLeast(2, 0) {
		return fmt.Errorf("containerd %s cannot load %s: version = %d, but this release supports at most %d",
			c.Release, name, version, highest)
	}
	// 2.3.7 no longer has this check. The behavior of 2.3.5 and 2.3.6 is unknown.
	if c.Release.Major == 2 && c.Release.Minor == 3 && c.Release.Patch < 5 && i > 0 {
		root, err := c.decode(c.Files[0].Data)
		if err == nil && root["version"] != nil && version > fileVersion(root) && tree["version"] != nil {
			return fmt.Errorf(
				"containerd %s cannot load %s: drop-in config version %d higher than root config version %d", c.Release,
				name, version, fileVersion(root),
			)
		}
	}
	for _, key := range []string{"plugins", "proxy_plugins", "timeouts", "stream_processors"} {
		if _, isTable := tree[key].(map[string]any); tree[key] != nil && !isTable {
			return fmt.Errorf("containerd cannot load %s: %s is not a table", name, key)
		}
	}
	for _, plugin := range plugins {
		if err := c.tables(name, tree, plugin); err != nil {
			return err
		}
	}
	return nil
}

// versioned returns an error if the daemon rejects the plugin names in a tree: since version 2, they must be full
// names. (See config.go in both release lines.)
func (c *Config) versioned(name string, tree map[string]any) error {
	version := fileVersion(tree)
	if version < 2 {
		return nil
	}
	full := func(id string) bool { return strings.Contains(id, ".") }
	if !c.Release.AtLeast(2, 0) {
		full = func(id string) bool { return strings.HasPrefix(id, "io.containerd.") && strings.Count(id, ".") >= 3 }
	}
	for _, kind := range []string{"disabled", "required"} {
		ids, _ := tree[kind+"_plugins"].([]any)
		for _, v := range ids {
			if id, ok := v.(string); ok && !full(id) {
				return fmt.Errorf("containerd cannot load %s: invalid %s plugin URI %q expect io.containerd.x.vx", name,
					kind, id)
			}
		}
	}
	if c.Release.AtLeast(2, 0) {
		return nil
	}
	if highest := c.Release.schema(); version > highest {
		return fmt.Errorf("containerd %s cannot load %s: version = %d, but this release supports at most %d",
			c.Release, name, version, highest)
	}
	for _, id := range slices.Sorted(maps.Keys(digTable(tree, "plugins"))) {
		if !full(id) {
			return fmt.Errorf("containerd cannot load %s: invalid plugin key URI %q expect io.containerd.x.vx", name,
				id)
		}
	}
	return nil
}

// tables returns an error if a value in the CRI plugin's configuration must be a table but is not. The plugin or the
// daemon then does not load.
func (c *Config) tables(name string, tree map[string]any, plugin string) error {
	path := runtimesPath(plugin)
	for n := 2; n <= len(path); n++ {
		v, ok := dig(tree, path[:n]...)
		if _, isTable := v.(map[string]any); ok && !isTable {
			return fmt.Errorf("containerd cannot load %s: %s is not a table", name, strings.Join(path[:n], "."))
		}
	}
	for handler, v := range digTable(tree, path...) {
		table, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("containerd cannot load %s: runtime %s is not a table", name, handler)
		}
		if _, isTable := table["options"].(map[string]any); table["options"] != nil && !isTable {
			return fmt.Errorf("containerd cannot load %s: the options of the runtime %s are not a table", name, handler)
		}
	}
	return nil
}

// fileVersion returns the schema version of a file, or 1 if the file has no version.
func fileVersion(tree map[string]any) int {
	if v, ok := tree["version"].(int64); ok && v > 0 && v < 1000 {
		return int(v)
	}
	return 1
}

// lengthenIDs replaces the version 1 ID of the relevant plugin with its version 2 ID.
func lengthenIDs(tree map[string]any) {
	table := digTable(tree, "plugins")
	if short, ok := table[pluginShort]; ok {
		table[pluginGRPC] = short
		delete(table, pluginShort)
	}
}

// moveRuntimes copies the handlers from the version 2 plugin ID to the version 3 ID. Existing handlers are kept: if
// both IDs have a runtimes table, only the one for version 3 is used.
func moveRuntimes(tree map[string]any) {
	all := digTable(tree, "plugins")
	from, ok := digTable(all, pluginGRPC)["containerd"].(map[string]any)
	if !ok {
		return
	}
	moved := map[string]any{"containerd": cloneTable(from)}
	if old := digTable(all, pluginRuntime); old != nil {
		if containerd := digTable(old, "containerd"); containerd != nil {
			both := moved["containerd"].(map[string]any)
			maps.Copy(both, containerd)
			old["containerd"] = both
			return
		}
		old["containerd"] = moved["containerd"]
		return
	}
	all[pluginRuntime] = moved
}

func (e *effective) runtimes() map[string]any { return digTable(e.tree, runtimesPath(e.plugin)...) }

func (e *effective) defaultRuntime() string {
	return digText(e.tree, "plugins", e.plugin, "containerd", "default_runtime_name")
}

// loads returns an error if the CRI plugin would not load because its default handler does not exist. Before 2.0, the
// built-in runc exists only if no handler is declared.
func (e *effective) loads(r Release) error {
	name := e.defaultRuntime()
	if name == "" {
		name = "runc"
	}
	handlers := e.runtimes()
	builtIn := name == "runc" && (r.AtLeast(2, 0) || len(handlers) == 0)
	if _, ok := handlers[name]; ok || builtIn {
		return nil
	}
	if !r.AtLeast(2, 0) && digText(e.tree, "plugins", e.plugin, "containerd", "default_runtime", "runtime_type") != "" {
		return nil // the deprecated table default_runtime defines a handler "default", which becomes the default
	}
	return fmt.Errorf("the default runtime %s is not defined", name)
}
