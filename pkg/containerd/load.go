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

// File is a configuration file.
type File struct {
	Path string // absolute path on the node
	Data []byte
}

// Config is the configuration of one daemon.
type Config struct {
	Release Release
	// Files are in load order, starting with the root file. Later files override earlier ones.
	Files []File
}

// Load reads the file at root, an absolute path on the node, and all its imports. fsys is the node's root directory.
//
// Imports follow the rules of the daemon: they are read breadth first, each file once. Names without a * must exist,
// and are relative to the importing file. Before release 2.0, relative names with a * are relative to the daemon's
// working directory, which is / under systemd. Without a root file, containerd uses its defaults, and there are no
// files. If Load returns an error, the Config contains the files read so far, including the one that cannot be parsed.
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

// imports returns the paths of the files that the named file imports.
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

// patterns returns the imports in the named file as absolute paths.
func (c *Config) patterns(name string, tree map[string]any) ([]string, error) {
	list, ok := tree["imports"].([]any)
	if _, there := tree["imports"]; there && !ok {
		return nil, fmt.Errorf("containerd cannot load %s: imports is not a list", name)
	}
	var all []string
	for _, v := range list {
		pattern, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("containerd cannot load %s: imports contains a value that is not a string", name)
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

// Globs returns the import patterns as absolute paths for path.Match. The daemon would load a new file that matches a
// pattern.
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

// inFS returns the name of an absolute path in an fs.FS whose root is /.
func inFS(name string) string {
	if name = strings.TrimPrefix(path.Clean(name), "/"); name == "" {
		return "."
	}
	return name
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// bom returns the length of a byte order mark if this release skips it. Since 2.0, a byte order mark is a syntax error.
func (c *Config) bom(data []byte) int {
	if !c.Release.AtLeast(2, 0) && bytes.HasPrefix(data, byteOrderMark) {
		return len(byteOrderMark)
	}
	return 0
}

// decode decodes a file. The error starts with the position of a syntax error. It accepts TOML 1.1, while containerd up
// to 2.3 rejects line breaks and trailing commas in inline tables. A running daemon's files cannot contain these, and
// no edit made by this package adds them.
func (c *Config) decode(data []byte) (map[string]any, error) {
	tree := map[string]any{}
	err := toml.Unmarshal(data[c.bom(data):], &tree)
	if syntax := (*toml.DecodeError)(nil); errors.As(err, &syntax) {
		row, column := syntax.Position()
		return nil, fmt.Errorf("line %d, column %d: %w", row, column, err)
	}
	return tree, err
}
