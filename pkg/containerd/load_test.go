package containerd

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Imports must be found as the daemon finds them, else a fault is put into a file that it does not load.
func TestLoad(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		release Release
		files   map[string]string
		want    string // paths, in order
		err     string
	}{
		{name: "no root file: the defaults", release: recent, files: map[string]string{}},
		{
			name: "one file", release: recent, files: map[string]string{"etc/containerd/config.toml": "version = 3"},
			want: configPath,
		},
		{
			name: "a glob is sorted, relative names belong to the importing file", release: recent,
			files: map[string]string{
				"etc/containerd/config.toml":   `imports = ["conf.d/*.toml", "/etc/more.toml"]`,
				"etc/containerd/conf.d/b.toml": "", "etc/containerd/conf.d/a.toml": "",
				"etc/containerd/conf.d/c.conf": "", "etc/more.toml": "",
			},
			want: configPath + " /etc/containerd/conf.d/a.toml /etc/containerd/conf.d/b.toml /etc/more.toml",
		},
		{
			name: "breadth first, and each file once although they import each other", release: recent,
			files: map[string]string{
				"etc/containerd/config.toml": `imports = ["1.toml", "2.toml"]`,
				"etc/containerd/1.toml":      `imports = ["3.toml", "config.toml"]`,
				"etc/containerd/2.toml":      `imports = ["1.toml"]`, "etc/containerd/3.toml": "",
			},
			want: configPath + " /etc/containerd/1.toml /etc/containerd/2.toml /etc/containerd/3.toml",
		},
		{
			name: "1.7 takes a relative glob from its working directory", release: old,
			files: map[string]string{
				"etc/containerd/config.toml":   `imports = ["conf.d/*.toml", "x.toml"]`,
				"etc/containerd/conf.d/a.toml": "", "conf.d/root.toml": "", "etc/containerd/x.toml": "",
			},
			want: configPath + " /conf.d/root.toml /etc/containerd/x.toml",
		},
		{
			name: "a glob may match nothing", release: recent,
			files: map[string]string{"etc/containerd/config.toml": `imports = ["/nowhere/*.toml"]`}, want: configPath,
		},
		{
			name: "a name without * must exist", release: old,
			files: map[string]string{"etc/containerd/config.toml": `imports = ["/nowhere/x.toml"]`},
			want:  configPath, err: "file does not exist",
		},
		{
			name: "a syntax error says where", release: recent,
			files: map[string]string{"etc/containerd/config.toml": "version = 3\nx = = 1\n"},
			want:  configPath, err: configPath + ": line 2, column 5",
		},
		{
			name: "imports must be a list", release: recent,
			files: map[string]string{"etc/containerd/config.toml": `imports = "a"`}, want: configPath,
			err: "not a list",
		},
		{
			name: "2.x does not know byte order marks", release: recent,
			files: map[string]string{"etc/containerd/config.toml": "\xef\xbb\xbfversion = 2"}, want: configPath,
			err: "line 1",
		},
		{
			name: "1.7 does", release: old,
			files: map[string]string{"etc/containerd/config.toml": "\xef\xbb\xbfversion = 2"}, want: configPath,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			fsys := fstest.MapFS{}
			for name, data := range test.files {
				fsys[name] = &fstest.MapFile{Data: []byte(data)}
			}
			c, err := Load(fsys, configPath, test.release)
			if test.err == "" && err != nil ||
				test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("Load() error %v, want %q", err, test.err)
			}
			var got []string
			for _, f := range c.Files {
				got = append(got, f.Path)
			}
			if !slices.Equal(got, strings.Fields(test.want)) {
				t.Errorf("Load() read %v, want %s", got, test.want)
			}
		})
	}
}

// A file that a change creates must be one that the daemon would load.
func TestGlobs(t *testing.T) {
	t.Parallel()
	root := File{
		Path: configPath, Data: []byte(`imports = ["conf.d/*.toml", "/etc/x/../more/*.toml", "/etc/one.toml"]`),
	}
	imported := File{Path: "/etc/more/a.toml", Data: []byte(`imports = ["*.d/x.toml"]`)}
	broken := File{Path: "/etc/more/b.toml", Data: []byte("x = = 1")}
	for _, test := range []struct {
		release Release
		want    string
	}{
		{recent, "/etc/containerd/conf.d/*.toml /etc/more/*.toml /etc/more/*.d/x.toml"},
		{old, "/conf.d/*.toml /etc/more/*.toml /*.d/x.toml"},
	} {
		c := &Config{Release: test.release, Files: []File{root, imported, broken}}
		if got := strings.Join(c.Globs(), " "); got != test.want {
			t.Errorf("%v: %s, want %s", test.release, got, test.want)
		}
	}
}
