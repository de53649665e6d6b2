package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// File is one configuration file.
type File struct {
	Path string // absolute, on the node
	Data []byte
}

// Config is what one daemon loads.
type Config struct {
	Release Release
	// Files are in the order in which they are loaded: the root first, later ones override.
	Files []File
}

// Load reads the file at root, an absolute path on the node, and all that it imports; fsys is the node's root
// directory.
//
// As in the daemon: imports are read breadth first, each file once; names without a * must exist; they are relative to
// the importing file. Only releases before 2.0 take a relative name with a * as relative to their working directory,
// which is / under systemd. Without a root file containerd runs on its defaults, and there are no files. With an error,
// the Config holds the files that were read until then, the one that cannot be parsed included.
func Load(fsys fs.FS, root string, release Release) (*Config, error) {
	c := &Config{Release: release}
	pending, loaded := []string{path.Clean(root)}, map[string]bool{}
	for len(pending) > 0 {
		name := pending[0]
		pending = pending[1:]
		if loaded[name] {
			continue
		}
		data, err := fs.ReadFile(fsys, inFS(name))
		if errors.Is(err, fs.ErrNotExist) && len(loaded) == 0 {
			return c, nil
		}
		if err != nil {
			return c, fmt.Errorf("containerd cannot load its configuration: %w", err)
		}
		loaded[name] = true
		c.Files = append(c.Files, File{Path: name, Data: data})
		tree, err := c.decode(data)
		if err != nil {
			return c, fmt.Errorf("containerd cannot load %s: %w", name, err)
		}
		imports, err := c.imports(fsys, name, tree)
		if err != nil {
			return c, err
		}
		pending = append(pending, imports...)
	}
	return c, nil
}

// imports returns the paths of the files that the one at name imports.
func (c *Config) imports(fsys fs.FS, name string, tree map[string]any) ([]string, error) {
	patterns, err := c.patterns(name, tree)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, pattern := range patterns {
		if !isGlob(pattern) {
			all = append(all, pattern)
			continue
		}
		found, err := fs.Glob(fsys, inFS(pattern))
		if err != nil {
			return nil, fmt.Errorf("containerd cannot load %s: imports %q: %w", name, pattern, err)
		}
		for _, f := range found {
			all = append(all, "/"+f)
		}
	}
	return all, nil
}

// patterns returns the imports of the file at name, as absolute paths.
func (c *Config) patterns(name string, tree map[string]any) ([]string, error) {
	list, ok := tree["imports"].([]any)
	if _, there := tree["imports"]; there && !ok {
		return nil, fmt.Errorf("containerd cannot load %s: imports is not a list", name)
	}
	var all []string
	for _, v := range list {
		pattern, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("containerd cannot load %s: imports holds something that is not text", name)
		}
		if !path.IsAbs(pattern) {
			from := path.Dir(name)
			if isGlob(pattern) && !c.Release.AtLeast(2, 0) {
				from = "/"
			}
			pattern = path.Join(from, pattern)
		}
		all = append(all, path.Clean(pattern))
	}
	return all, nil
}

func isGlob(pattern string) bool { return strings.Contains(pattern, "*") }

// Globs returns the patterns of the imports, as absolute paths for path.Match: the daemon would load a new file that
// matches one.
func (c *Config) Globs() []string {
	var globs []string
	for _, f := range c.Files {
		tree, err := c.decode(f.Data)
		if err != nil {
			continue // the daemon does not load it either
		}
		patterns, err := c.patterns(f.Path, tree)
		if err != nil {
			continue
		}
		for _, pattern := range patterns {
			if isGlob(pattern) {
				globs = append(globs, pattern)
			}
		}
	}
	return globs
}

// inFS returns the name of an absolute path in an fs.FS that stands for /.
func inFS(name string) string {
	if name = strings.TrimPrefix(path.Clean(name), "/"); name == "" {
		return "."
	}
	return name
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// bom returns the length of the byte order mark that this release skips. Since 2.0 containerd skips none, and then it
// is a syntax error.
func (c *Config) bom(data []byte) int {
	if !c.Release.AtLeast(2, 0) && bytes.HasPrefix(data, byteOrderMark) {
		return len(byteOrderMark)
	}
	return 0
}

// decode returns what a file says. The error begins with the place of a syntax error. It reads TOML 1.1, of which
// containerd up to 2.3 takes no line breaks and final commas in inline tables; what the daemon runs with has none then,
// and no edit of ours makes any.
func (c *Config) decode(data []byte) (map[string]any, error) {
	tree := map[string]any{}
	err := toml.Unmarshal(data[c.bom(data):], &tree)
	if syntax := (*toml.DecodeError)(nil); errors.As(err, &syntax) {
		row, column := syntax.Position()
		return nil, fmt.Errorf("line %d, column %d: %w", row, column, err)
	}
	return tree, err
}
