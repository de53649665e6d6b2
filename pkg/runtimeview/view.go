// Package runtimeview describes a node's container runtime from the kubelet's point of view, and its problems. It has
// no side effects: its input is data from the node and the cluster. `runtime show` prints a view, and `doctor` uses its
// findings, so that both report the same problems.
package runtimeview

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// View is the output of `runtime show -o json`. It excludes the contents of files, because they may contain registry
// credentials.
type View struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Node       string      `json:"node"`
	Kubelet    api.Kubelet `json:"kubelet"`
	// Problem is the reason why the runtime is unknown or not supported.
	Problem        string         `json:"problem,omitempty"`
	Runtime        *Instance      `json:"runtime,omitempty"`
	Findings       []Finding      `json:"findings"`
	RuntimeClasses []RuntimeClass `json:"runtimeClasses"`
	Decoys         []Instance     `json:"decoys"`
	Toolkits       []Toolkit      `json:"toolkits"`
	Warnings       []string       `json:"warnings,omitempty"`
}

// Instance is a runtime, or a configuration that no runtime loads.
type Instance struct {
	Name        string   `json:"name,omitempty"` // containerd or cri-o; empty for a configuration
	Release     string   `json:"release,omitempty"`
	Ready       bool     `json:"ready"`
	Error       string   `json:"error,omitempty"` // reason why the runtime is not ready or does not respond
	PID         int      `json:"pid,omitempty"`
	Exe         string   `json:"exe,omitempty"`
	Args        []string `json:"args,omitempty"`
	Unit        string   `json:"unit,omitempty"`
	Socket      string   `json:"socket,omitempty"`
	ConfigPath  string   `json:"configPath,omitempty"`
	ConfigError string   `json:"configError,omitempty"` // reason why containerd will fail to start with the files
	Files       []File   `json:"files"`
	// DefaultHandler is the default handler in memory, or on disk if the former is unknown.
	DefaultHandler string            `json:"defaultHandler,omitempty"`
	Handlers       []Handler         `json:"handlers"`
	Executables    map[string]string `json:"executables,omitempty"` // problem with each executable, or ""
	Warnings       []string          `json:"warnings,omitempty"`    // warnings about the configuration

	// Problems are settings in the files that the daemon ignores or cannot load.
	Problems []containerd.Problem `json:"-"`
	// CDI is the value of enable_cdi in memory, or nil if it is unknown.
	CDI *bool `json:"-"`
	// Imports are the imports of the root file, as written in the file.
	Imports []string `json:"-"`

	data map[string][]byte // file contents by path
	// configuredDefault is the default handler that the files set, or "".
	configuredDefault string
}

// File is a configuration file.
type File struct {
	Path     string    `json:"path"`
	Version  int       `json:"version,omitempty"` // version of the configuration format; only set for the first File
	Lines    int       `json:"lines"`
	SHA256   string    `json:"sha256"`
	Mode     string    `json:"mode"` // such as 0644
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	Modified time.Time `json:"modified"`
	Link     string    `json:"link,omitempty"`
	// NotEdited is the reason why `runtime break` does not edit the file, or "".
	NotEdited string `json:"notEdited,omitempty"`
	// Volatile is the reason why the file is lost when the node restarts, or "".
	Volatile string `json:"volatile,omitempty"`
}

// Handler is a runtime handler, as configured on disk and in memory.
type Handler struct {
	Name           string    `json:"name"`
	Default        bool      `json:"default,omitempty"`
	OnDisk         *Settings `json:"onDisk,omitempty"`
	InMemory       *Settings `json:"inMemory,omitempty"`
	Places         []string  `json:"places,omitempty"` // FILE:LINE
	RuntimeClasses []string  `json:"runtimeClasses,omitempty"`
	// Stale reports whether the handler on disk differs from the one that containerd has loaded.
	Stale bool `json:"stale,omitempty"`
}

// Settings are the settings of a handler.
type Settings struct {
	Type          string `json:"type,omitempty"`
	BinaryName    string `json:"binaryName,omitempty"`
	SystemdCgroup *bool  `json:"systemdCgroup,omitempty"`
}

// New returns the view for the given data from the node and the cluster.
func New(nodeName string, found api.Runtime, classes []RuntimeClass, toolkits []Toolkit) View {
	v := View{
		APIVersion: "gpufault.dev/v1alpha1", Kind: "RuntimeView", Node: nodeName,
		Kubelet: found.Kubelet, Problem: found.Problem, Warnings: found.Warnings,
		RuntimeClasses: append([]RuntimeClass{}, classes...), Toolkits: append([]Toolkit{}, toolkits...),
		Decoys: []Instance{},
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

// join adds to each handler the RuntimeClasses that use it.
func (v *View) join() {
	for i, class := range v.RuntimeClasses {
		known := false
		for j, h := range v.Runtime.Handlers {
			if h.Name == class.Handler {
				v.Runtime.Handlers[j].RuntimeClasses = append(h.RuntimeClasses, class.Name)
				known = h.InMemory != nil
			}
		}
		if v.Runtime.ShowsMemory() {
			v.RuntimeClasses[i].Known = &known
		}
	}
}

// ShowsMemory reports whether the runtime returned its in-memory configuration, which always contains a handler.
func (i *Instance) ShowsMemory() bool {
	return slices.ContainsFunc(i.Handlers, func(h Handler) bool { return h.InMemory != nil })
}

func newInstance(from api.Instance) Instance {
	i := Instance{
		Release: from.Release, PID: from.PID, Exe: from.Exe, Args: from.Args, Unit: from.Unit, Socket: from.Socket,
		ConfigPath: from.ConfigPath, ConfigError: from.ConfigError, Executables: from.Executables, Error: from.CRIError,
		Files: []File{}, Handlers: []Handler{}, data: map[string][]byte{},
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
		i.Files, i.data[f.Path] = append(i.Files, newFile(f)), f.Data
		if n == 0 {
			i.Files[0].Version = disk.Version
		}
	}
	i.Warnings, i.Problems = disk.Warnings, disk.Problems
	i.CDI, i.Imports = enabledCDI(from.CRI), imports(from.Files)
	memory, err := from.InMemory()
	if err != nil && from.CRI != nil && from.CRI.Name == "containerd" {
		i.Warnings = append(i.Warnings, "the configuration in memory is unknown: "+err.Error())
	}
	i.Handlers = append(i.Handlers, compare(disk, memory, i.ConfigError == "")...)
	i.markDefault(disk, memory)
	return i
}

func newFile(f api.ConfigFile) File {
	out := File{
		Path: f.Path, Lines: bytes.Count(f.Data, []byte("\n")), SHA256: patch.Sum(f.Data),
		Mode: fmt.Sprintf("%04o", f.Meta.Mode),
		UID:  f.Meta.UID, GID: f.Meta.GID, Modified: f.Meta.ModTime.UTC(), Link: f.Meta.Link, NotEdited: f.ReadOnly,
		Volatile: f.Volatile,
	}
	if len(f.Data) > 0 && f.Data[len(f.Data)-1] != '\n' {
		out.Lines++
	}
	if refused := containerd.Refuse(containerd.File{Path: f.Path, Data: f.Data}); refused != nil &&
		out.NotEdited == "" {
		out.NotEdited = refused.Reason
	}
	return out
}

// compare returns the handlers on disk and in memory. memory is nil if it is unknown. If trust is false, because the
// files do not load, no handler is marked stale.
func compare(disk, memory *containerd.Merged, trust bool) []Handler {
	names := map[string]bool{}
	for name := range disk.Handlers {
		names[name] = true
	}
	if memory != nil {
		for name := range memory.Handlers {
			names[name] = true
		}
	}
	var all []Handler
	for name := range names {
		h := Handler{Name: name}
		if d, ok := disk.Handlers[name]; ok {
			h.OnDisk = &Settings{d.Type, d.BinaryName, d.SystemdCgroup}
			for _, place := range d.Places {
				h.Places = append(h.Places, fmt.Sprintf("%s:%d", place.File, place.Line))
			}
		}
		if memory != nil {
			if m, ok := memory.Handlers[name]; ok {
				h.InMemory = &Settings{m.Type, m.BinaryName, m.SystemdCgroup}
			}
			h.Stale = trust && h.differs()
		}
		all = append(all, h)
	}
	sorting.Func(all, func(a, b Handler) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// differs reports whether a restart would change the handler.
func (h Handler) differs() bool {
	switch {
	case h.OnDisk == nil: // runc is built in with default settings
		return h.Name != "runc" || h.InMemory.BinaryName != ""
	case h.InMemory == nil:
		return true
	}
	disk, memory := *h.OnDisk, *h.InMemory
	return disk.Type != "" && disk.Type != memory.Type || disk.BinaryName != memory.BinaryName ||
		disk.Systemd() != memory.Systemd()
}

// Systemd reports whether SystemdCgroup is true. The default is false.
func (s Settings) Systemd() bool { return s.SystemdCgroup != nil && *s.SystemdCgroup }

func (i *Instance) markDefault(disk, memory *containerd.Merged) {
	i.DefaultHandler, i.configuredDefault = disk.DefaultRuntime, disk.DefaultRuntime
	if memory != nil && memory.DefaultRuntime != "" {
		i.DefaultHandler = memory.DefaultRuntime
	}
	for n := range i.Handlers {
		i.Handlers[n].Default = i.Handlers[n].Name == i.DefaultHandler
	}
}

// Effective returns the settings in memory, or those on disk if the former are unknown.
func (h Handler) Effective() Settings {
	if h.InMemory != nil {
		return *h.InMemory
	}
	return *h.OnDisk
}

// enabledCDI returns the value of enable_cdi in the configuration that CRI returned, or nil.
func enabledCDI(said *cri.Info) *bool {
	if said == nil {
		return nil
	}
	raw := []byte(said.Config)
	if text := ""; json.Unmarshal(raw, &text) == nil { // CRI's info is a map of strings that contain JSON
		raw = []byte(text)
	}
	var config struct{ EnableCDI *bool }
	if json.Unmarshal(raw, &config) != nil {
		return nil
	}
	return config.EnableCDI
}

// imports returns the imports of the root file, or none if it cannot be read.
func imports(files []api.ConfigFile) []string {
	var root struct{ Imports []string }
	if len(files) == 0 || toml.Unmarshal(files[0].Data, &root) != nil {
		return nil
	}
	return root.Imports
}

// Line returns a line of a configuration file by its number, starting at 1, or "" if the line does not exist.
func (i *Instance) Line(file string, number int) string {
	lines := bytes.Split(i.data[file], []byte("\n"))
	if number < 1 || number > len(lines) {
		return ""
	}
	return string(bytes.TrimSpace(lines[number-1]))
}
