package runtime

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// view is what -o json prints. The files' contents are not in it: they may hold a registry's credentials.
type view struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Node       string       `json:"node"`
	Kubelet    node.Kubelet `json:"kubelet"`
	// Problem is why the runtime cannot be told, or cannot be worked with.
	Problem        string         `json:"problem,omitempty"`
	Runtime        *instance      `json:"runtime,omitempty"`
	Findings       []finding      `json:"findings"`
	RuntimeClasses []runtimeClass `json:"runtimeClasses"`
	Decoys         []instance     `json:"decoys"`
	Toolkits       []toolkit      `json:"toolkits"`
	Warnings       []string       `json:"warnings,omitempty"`

	local *time.Location // of times in tables
}

// instance is one runtime, or a configuration that none loads.
type instance struct {
	Name        string   `json:"name,omitempty"` // containerd, cri-o; empty for a configuration
	Release     string   `json:"release,omitempty"`
	Ready       bool     `json:"ready"`
	Error       string   `json:"error,omitempty"` // why it is not ready, or does not answer
	PID         int      `json:"pid,omitempty"`
	Exe         string   `json:"exe,omitempty"`
	Args        []string `json:"args,omitempty"`
	Unit        string   `json:"unit,omitempty"`
	Socket      string   `json:"socket,omitempty"`
	ConfigPath  string   `json:"configPath,omitempty"`
	ConfigError string   `json:"configError,omitempty"` // why containerd would not start with the files
	Files       []file   `json:"files"`
	// DefaultHandler is that of memory, else of the disk.
	DefaultHandler string            `json:"defaultHandler,omitempty"`
	Handlers       []handler         `json:"handlers"`
	Executables    map[string]string `json:"executables,omitempty"` // what is wrong with each; empty when nothing is
	Warnings       []string          `json:"warnings,omitempty"`    // of the configuration
}

// file is one configuration file.
type file struct {
	Path     string    `json:"path"`
	Version  int       `json:"version,omitempty"` // of the configuration's format; only of the first file
	Lines    int       `json:"lines"`
	SHA256   string    `json:"sha256"`
	Mode     string    `json:"mode"` // 0644
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	Modified time.Time `json:"modified"`
	Link     string    `json:"link,omitempty"`
	// NotEdited is why `runtime break` would not touch it; empty when it would.
	NotEdited string `json:"notEdited,omitempty"`
}

// handler is one runtime handler, as it is on disk and in memory.
type handler struct {
	Name           string    `json:"name"`
	Default        bool      `json:"default,omitempty"`
	OnDisk         *settings `json:"onDisk,omitempty"`
	InMemory       *settings `json:"inMemory,omitempty"`
	Places         []string  `json:"places,omitempty"` // FILE:LINE
	RuntimeClasses []string  `json:"runtimeClasses,omitempty"`
	// Stale is whether containerd has not loaded what is on disk.
	Stale bool `json:"stale,omitempty"`
}

// settings are a handler's.
type settings struct {
	Type          string `json:"type,omitempty"`
	BinaryName    string `json:"binaryName,omitempty"`
	SystemdCgroup *bool  `json:"systemdCgroup,omitempty"`
}

// newView puts together what the node and the cluster said.
func newView(nodeName string, found node.Runtime, classes []runtimeClass, toolkits []toolkit) view {
	v := view{
		APIVersion: ledger.APIVersion, Kind: "RuntimeView", Node: nodeName,
		Kubelet: found.Kubelet, Problem: found.Problem, Warnings: found.Warnings,
		RuntimeClasses: append([]runtimeClass{}, classes...), Toolkits: append([]toolkit{}, toolkits...), Decoys: []instance{}, local: time.Local,
	}
	if found.Instance != nil {
		i := newInstance(*found.Instance)
		v.Runtime = &i
		v.join()
	}
	for _, d := range found.Decoys {
		v.Decoys = append(v.Decoys, newInstance(d))
	}
	v.Findings = v.find()
	return v
}

// join tells which RuntimeClass leads to which handler.
func (v *view) join() {
	for i, class := range v.RuntimeClasses {
		known := false
		for j, h := range v.Runtime.Handlers {
			if h.Name == class.Handler {
				v.Runtime.Handlers[j].RuntimeClasses = append(h.RuntimeClasses, class.Name)
				known = h.InMemory != nil
			}
		}
		if v.Runtime.showsMemory() {
			v.RuntimeClasses[i].Known = &known
		}
	}
}

// showsMemory is whether the runtime told what it has in memory. It always has a handler.
func (i *instance) showsMemory() bool {
	return slices.ContainsFunc(i.Handlers, func(h handler) bool { return h.InMemory != nil })
}

func newInstance(from node.Instance) instance {
	i := instance{
		Release: from.Release, PID: from.PID, Exe: from.Exe, Args: from.Args, Unit: from.Unit, Socket: from.Socket,
		ConfigPath: from.ConfigPath, ConfigError: from.ConfigError, Executables: from.Executables, Error: from.CRIError,
		Files: []file{}, Handlers: []handler{},
	}
	if from.PID != 0 || from.Socket != "" {
		i.Name = "containerd"
	}
	if from.CRI != nil {
		i.Name, i.Ready, i.Error = from.CRI.Name, from.CRI.Ready, from.CRI.NotReady
	}
	disk, err := from.OnDisk()
	if err != nil && i.ConfigError == "" {
		i.ConfigError = err.Error()
	}
	if disk == nil {
		disk = &containerd.Merged{}
	}
	for n, f := range from.Files {
		i.Files = append(i.Files, newFile(f))
		if n == 0 {
			i.Files[0].Version = disk.Version
		}
	}
	i.Warnings = disk.Warnings
	memory, err := from.InMemory()
	if err != nil && from.CRI != nil && from.CRI.Name == "containerd" {
		i.Warnings = append(i.Warnings, "what is in memory is unknown: "+err.Error())
	}
	i.Handlers = append(i.Handlers, compare(disk, memory, i.ConfigError == "")...)
	i.markDefault(disk, memory)
	return i
}

func newFile(f node.ConfigFile) file {
	out := file{
		Path: f.Path, Lines: bytes.Count(f.Data, []byte("\n")), SHA256: patch.Sum(f.Data), Mode: fmt.Sprintf("%04o", f.Meta.Mode),
		UID: f.Meta.UID, GID: f.Meta.GID, Modified: f.Meta.ModTime.UTC(), Link: f.Meta.Link, NotEdited: f.ReadOnly,
	}
	if len(f.Data) > 0 && f.Data[len(f.Data)-1] != '\n' {
		out.Lines++
	}
	if refused := containerd.Refuse(containerd.File{Path: f.Path, Data: f.Data}); refused != nil && out.NotEdited == "" {
		out.NotEdited = refused.Reason
	}
	return out
}

// compare lists the handlers of disk and memory; memory is nil when it is not known. Without trust in the disk, which does not load,
// nothing on it is called stale.
func compare(disk, memory *containerd.Merged, trust bool) []handler {
	names := map[string]bool{}
	for name := range disk.Handlers {
		names[name] = true
	}
	if memory != nil {
		for name := range memory.Handlers {
			names[name] = true
		}
	}
	var all []handler
	for name := range names {
		h := handler{Name: name}
		if d, ok := disk.Handlers[name]; ok {
			h.OnDisk = &settings{d.Type, d.BinaryName, d.SystemdCgroup}
			for _, place := range d.Places {
				h.Places = append(h.Places, fmt.Sprintf("%s:%d", place.File, place.Line))
			}
		}
		if memory != nil {
			if m, ok := memory.Handlers[name]; ok {
				h.InMemory = &settings{m.Type, m.BinaryName, m.SystemdCgroup}
			}
			h.Stale = trust && h.differs()
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b handler) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// differs is whether a restart would change the handler.
func (h handler) differs() bool {
	switch {
	case h.OnDisk == nil: // runc is built in, with its defaults
		return h.Name != "runc" || h.InMemory.BinaryName != ""
	case h.InMemory == nil:
		return true
	}
	disk, memory := *h.OnDisk, *h.InMemory
	return disk.Type != "" && disk.Type != memory.Type || disk.BinaryName != memory.BinaryName || disk.systemd() != memory.systemd()
}

// systemd is SystemdCgroup, which is false where it is not given.
func (s settings) systemd() bool { return s.SystemdCgroup != nil && *s.SystemdCgroup }

func (i *instance) markDefault(disk, memory *containerd.Merged) {
	i.DefaultHandler = disk.DefaultRuntime
	if memory != nil && memory.DefaultRuntime != "" {
		i.DefaultHandler = memory.DefaultRuntime
	}
	for n := range i.Handlers {
		i.Handlers[n].Default = i.Handlers[n].Name == i.DefaultHandler
	}
}

// effective are a handler's settings in memory, else on disk.
func (h handler) effective() settings {
	if h.InMemory != nil {
		return *h.InMemory
	}
	return *h.OnDisk
}
