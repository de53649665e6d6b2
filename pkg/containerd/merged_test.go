package containerd

import (
	"fmt"
	"strings"
	"testing"
)

const (
	grpcNvidia = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/grpc"
`
	grpcRoot = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/root"
SystemdCgroup = true
`
)

func cri3(version, binary string) string {
	return version + `
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
BinaryName = '` + binary + `'
`
}

// How files merge differs between releases; who gets it wrong breaks the wrong file and proves nothing.
func TestMerged(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		release string
		files   []string
		want    string // NAME=BINARY/SYSTEMD, sorted; then the default
		warning string
		err     string
	}{
		{
			name: "version 2 on 1.7", release: "1.7.28", files: []string{grpcRoot},
			want: "nvidia=/root/true runc=/- default=runc",
		},
		{
			name: "version 2 on 2.3", release: "2.3.7", files: []string{grpcRoot},
			want: "nvidia=/root/true runc=/- default=runc",
		},
		{
			name: "version 2 on 2.1", release: "2.1.4", files: []string{grpcRoot},
			want: "nvidia=/root/true runc=/- default=runc",
		},
		{
			name: "a drop-in replaces CRI's whole table on 1.7", release: "1.7.28",
			files: []string{grpcRoot, grpcNvidia},
			want:  "nvidia=/grpc/- default=", warning: "replaces the entire CRI table in " + configPath,
		},
		{
			name: "and then CRI does not load", release: "1.7.28", files: []string{grpcRoot, grpcNvidia},
			want: "nvidia=/grpc/- default=", warning: "the CRI plugin does not load: the default runtime runc is not defined",
		},
		{
			name: "2.0 merges it", release: "2.0.5", files: []string{grpcRoot, grpcNvidia},
			want: "nvidia=/grpc/true runc=/- default=runc",
		},
		{
			name: "2.3 merges it", release: "2.3.4", files: []string{grpcRoot, grpcNvidia},
			want: "nvidia=/grpc/true runc=/- default=runc",
		},
		{
			name: "the ID of version 3 in a file of version 2 counts on 2.x", release: "2.3.4",
			files: []string{cri3("version = 2", "/3")}, want: "nvidia=/3/- default=",
		},
		{
			name: "and is ignored on 1.7", release: "1.7.28", files: []string{cri3("version = 2", "/3")},
			want:    "default=",
			warning: `:2: containerd 1.7.28 ignores the handlers nvidia under "io.containerd.cri.v1.runtime"`,
		},
		{
			name: "of both IDs in one file the later one counts", release: "2.3.4",
			files: []string{grpcRoot + strings.TrimPrefix(cri3("", "/3"), "\n")},
			want:  "nvidia=/3/- default=runc", warning: "ignores the handlers nvidia, runc",
		},
		{
			name: "on 2.3 a later file of version 2 overrides one of version 3", release: "2.3.4",
			files: []string{cri3("version = 3", "/3"), grpcNvidia}, want: "nvidia=/grpc/- default=",
		},
		{
			name: "on 2.1 the ID of version 3 wins over all files", release: "2.1.4",
			files: []string{cri3("version = 3", "/3"), grpcNvidia}, want: "nvidia=/3/- default=",
		},
		{
			name: "the ID of version 2 in a file of version 4", release: "2.3.7",
			files: []string{strings.Replace(grpcNvidia, "version = 2", "version = 4", 1)}, want: "default=",
			warning: "with version = 4, it reads",
		},
		{
			name: "version 1 on 1.7", release: "1.7.28",
			files: []string{"[plugins.cri.containerd.runtimes.x]\nruntime_type='y'"}, want: "x=/- default=",
			warning: "CRI plugin does not load",
		},
		{
			name: "version 1 on 2.3", release: "2.3.7",
			files: []string{"[plugins.\"cri\".containerd.runtimes.x]\nruntime_type='y'"}, want: "x=/- default=",
		},
		{name: "version 3 on 1.7", release: "1.7.28", files: []string{"version = 3"}, err: "supports at most 2"},
		{name: "version 4 on 2.2", release: "2.2.1", files: []string{"version = 4"}, err: "supports at most 3"},
		{
			name: "a drop-in newer than the root on 2.3.4", release: "2.3.4",
			files: []string{"version = 2", "version = 3"},
			err:   "drop-in config version 3 higher than root config version 2",
		},
		{name: "2.3.7 takes it", release: "2.3.7", files: []string{"version = 2", "version = 3"}, want: "default="},
		{
			name: "an option at the level of handler", release: "2.3.7", files: []string{
				"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\nBinaryName = '/x'\n",
			},
			want: "nvidia=/- default=", warning: configPath + ":3: containerd ignores BinaryName",
		},
		{
			name: "disabled", release: "1.7.28", files: []string{`disabled_plugins = ["cri"]`}, want: "default=",
			warning: "disabled_plugins contains cri",
		},
		{
			name: "a default that does not exist", release: "2.3.7",
			files: []string{
				"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'x'",
			},
			want: "default=x", warning: "the default runtime x is not defined",
		},
		{
			name: "a handler that is no table", release: "2.3.7",
			files: []string{"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]\nx = 1"},
			err:   "runtime x is not a table",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			release, err := ParseRelease(test.release)
			if err != nil {
				t.Fatal(err)
			}
			m, err := config(release, test.files...).Merged()
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("Merged() error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, name := range sortedKeys(m.Handlers) {
				got += fmt.Sprintf("%s=%s/%s ", name, m.Handlers[name].BinaryName, flag(m.Handlers[name].SystemdCgroup))
			}
			if got += "default=" + m.DefaultRuntime; got != test.want {
				t.Errorf("Merged() = %s, want %s", got, test.want)
			}
			if test.warning != "" && !hasWarning(m, test.warning) {
				t.Errorf("the warnings %q have no %q", m.Warnings, test.warning)
			}
		})
	}
}

// People are told where a handler is defined: file, line, and the ID it lies under.
func TestMergedPlaces(t *testing.T) {
	t.Parallel()
	m := merged(t, config(recent, grpcRoot, cri3("version = 3", "/3")))
	if got := fmt.Sprint(m.Handlers["nvidia"].Places); got != "[{"+configPath+
		" 6 io.containerd.grpc.v1.cri} {/etc/containerd/conf.d/1.toml 2 io.containerd.cri.v1.runtime}]" {
		t.Errorf("nvidia is defined at %s", got)
	}
	if m.Version != 2 {
		t.Errorf("the version is %d, want the root file's", m.Version)
	}
	for _, r := range both {
		if m := merged(t, &Config{Release: r}); m.Version != 0 || len(m.Handlers) > 0 || len(m.Warnings) > 0 {
			t.Errorf("%v without files: %+v", r, m)
		}
	}
}
