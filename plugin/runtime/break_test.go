package runtime

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/ttl"
)

func broken(change func(*breaking)) *breaking {
	b := newBreaking()
	b.Nodes.Names, b.mode = []string{"gpu-1"}, "missing-handler"
	if change != nil {
		change(b)
	}
	return b
}

// Bad input is refused before a cluster is asked, with a way out.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*breaking)
		want   string // in the error; empty: fine
	}{
		"fine":              {nil, ""},
		"no mode":           {func(b *breaking) { b.mode = "" }, "--mode MODE"},
		"unknown mode":      {func(b *breaking) { b.mode = "smash" }, "missing-handler"},
		"no node":           {func(b *breaking) { b.Nodes.Names = nil }, "no target"},
		"node loss":         {func(b *breaking) { b.mode = "unparsable" }, "--allow-node-loss"},
		"node loss allowed": {func(b *breaking) { b.mode, b.nodeLoss = "unparsable", true }, ""},
		"node loss, too short": {
			func(b *breaking) { b.mode, b.nodeLoss, b.TTL.TTL = "unparsable", true, 20*time.Second }, "takes 15s",
		},
		"node loss, edit only": {func(b *breaking) { b.mode, b.noRestart = "unparsable", true }, ""},
		"node loss for ever": {func(b *breaking) {
			b.mode, b.nodeLoss, b.TTL = "unparsable", true, ttl.Flags{Reason: "because"}
		}, "requires a TTL above 0"},
		"probe without restart": {func(b *breaking) { b.probe, b.noRestart = true, true }, "--no-restart"},
		"probe without error": {
			func(b *breaking) { b.mode, b.probe = "option-misplaced", true }, "but have no GPU",
		},
		"empty handler": {func(b *breaking) { b.handler = " " }, "--handler"},
		"negative TTL":  {func(b *breaking) { b.TTL.TTL = -time.Minute }, "negative"},
		"dry run":       {func(b *breaking) { b.DryRun = "maybe" }, "client"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := broken(test.change).validate(true)
			if test.want == "" && err != nil ||
				test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// A mode that takes the node away is short by default, as only the node itself can end it.
func TestNodeLossIsShort(t *testing.T) {
	t.Parallel()
	b := broken(func(b *breaking) { b.mode, b.nodeLoss = "unparsable", true })
	if err := b.validate(false); err != nil || b.TTL.TTL != 5*time.Minute {
		t.Errorf("%v, %s", err, b.TTL.TTL)
	}
}

const gpuConfig = `version = 3
# ours
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
  BinaryName = '/usr/bin/nvidia-container-runtime'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
`

func onGPUNode(change func(*api.Runtime)) api.Runtime {
	r := api.Runtime{Instance: &api.Instance{
		PID: 1, Unit: "containerd.service", Socket: "/run/containerd/containerd.sock", Release: "v2.3.7",
		ConfigPath: "/etc/containerd/config.toml",
		Files:      []api.ConfigFile{{Path: "/etc/containerd/config.toml", Data: []byte(gpuConfig)}},
		CRI: &cri.Info{
			Name: "containerd", Version: "v2.3.7",
			Config: []byte(`{"containerd":{"runtimes":{"nvidia":{},"runc":{}}}}`),
		},
	}}
	if change != nil {
		change(&r)
	}
	return r
}

// What is decided holds exactly the edits and the sums with which the node can check them, and take them back.
func TestDecide(t *testing.T) {
	t.Parallel()
	b := broken(nil)
	if err := b.validate(true); err != nil {
		t.Fatal(err)
	}
	d, err := b.decide("gpu-1", onGPUNode(nil))
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Change.Files) != 1 || d.Change.Service == nil || d.Change.Service.Config == "" || d.Change.MayFail {
		t.Fatalf("%+v", d.Change)
	}
	file := d.Change.Files[0]
	after, err := patch.Apply([]byte(gpuConfig), file.Edits)
	if err != nil || patch.Sum(after) != file.After || patch.Sum([]byte(gpuConfig)) != file.Before ||
		strings.Contains(string(after), "nvidia") {
		t.Errorf("%v, after:\n%s", err, after)
	}
	if _, err := d.Landed(
		&cri.Info{Config: []byte(`{"containerd":{"runtimes":{"nvidia":{},"runc":{}}}}`)},
	); err == nil {
		t.Error("it landed though CRI still has the handler")
	}
	if said, err := d.Landed(&cri.Info{Config: []byte(`{"containerd":{"runtimes":{"runc":{}}}}`)}); err != nil ||
		!strings.Contains(said, "handlers in memory: runc") {
		t.Errorf("%q, %v", said, err)
	}
	if _, err := d.Landed(nil); err == nil {
		t.Error("it landed though containerd does not serve")
	}
}

func TestDecideWithoutRestart(t *testing.T) {
	t.Parallel()
	b := broken(func(b *breaking) { b.noRestart = true })
	if err := b.validate(true); err != nil {
		t.Fatal(err)
	}
	d, err := b.decide("gpu-1", onGPUNode(func(r *api.Runtime) { r.Instance.Unit = "" }))
	if err != nil || d.Change.Service != nil || d.Landed != nil {
		t.Errorf("%v, %+v", err, d)
	}
}

// The handler that moves away must be where the kubelet's containerd does not look: in a decoy that is there, or in a
// new file.
func TestWrongInstanceMovesTheHandlerIntoADecoy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		runtime api.Runtime
		want    string
	}{
		"none": {onGPUNode(nil), containerd.NewDecoy},
		"there": {onGPUNode(func(r *api.Runtime) {
			r.Decoys = []api.Instance{{Files: []api.ConfigFile{{Path: "/opt/c.toml", Data: []byte("version = 2\n")}}}}
		}), "/opt/c.toml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := broken(func(b *breaking) { b.mode = string(containerd.ModeWrongInstance) })
			if err := b.validate(true); err != nil {
				t.Fatal(err)
			}
			d, err := b.decide("gpu-1", test.runtime)
			if err != nil || len(d.Change.Files) != 2 {
				t.Fatalf("%v, %+v", err, d)
			}
			var paths []string
			for _, f := range d.Change.Files {
				paths = append(paths, f.Path)
			}
			if !strings.Contains(strings.Join(paths, " "), test.want) {
				t.Errorf("changes %v, want %s", paths, test.want)
			}
		})
	}
}

func TestDecideRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*api.Runtime)
		want   string
	}{
		"CRI-O":      {func(r *api.Runtime) { r.Problem = "the kubelet uses CRI-O" }, "the kubelet uses CRI-O"},
		"unresolved": {func(r *api.Runtime) { r.Instance = nil }, "runtime show gpu-1"},
		"no unit":    {func(r *api.Runtime) { r.Instance.Unit = "" }, "--no-restart"},
		"read-only": {
			func(r *api.Runtime) { r.Instance.Files[0].ReadOnly = "the file system is read-only" },
			"the file system is read-only",
		},
		"template": {
			func(r *api.Runtime) { r.Instance.Files[0].Data = []byte("root = {{ .Root }}\n") }, "config.toml",
		},
		"no file":    {func(r *api.Runtime) { r.Instance.Files = nil }, "no configuration file to break"},
		"no release": {func(r *api.Runtime) { r.Instance.Release = "" }, "release"},
		"k3s": {func(r *api.Runtime) {
			r.Instance.Files[0].Path = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
		}, "k3s"},
		"no handler": {func(r *api.Runtime) { r.Instance.Files[0].Data = []byte("version = 3\n") }, `"nvidia"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := broken(nil)
			if err := b.validate(true); err != nil {
				t.Fatal(err)
			}
			_, err := b.decide("gpu-1", onGPUNode(test.change))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
