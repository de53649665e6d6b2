package api

import (
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// InspectRuntime asks which container runtime the kubelet uses, with which configuration. It changes nothing.
type InspectRuntime struct{}

// Runtime is what InspectRuntime found.
type Runtime struct {
	Kubelet Kubelet `json:"kubelet"`
	// Instance is the runtime behind the kubelet's endpoint; nil when it cannot be told, and Problem says why.
	Instance *Instance `json:"instance,omitempty"`
	Problem  string    `json:"problem,omitempty"`
	// Decoys are all other containerds: processes, and configurations in well-known places that no process uses.
	Decoys   []Instance `json:"decoys,omitempty"`
	Warnings []string   `json:"warnings,omitempty"`
}

// Kubelet is the node's kubelet, as far as it concerns the container runtime.
type Kubelet struct {
	PID      int    `json:"pid,omitempty"`
	Exe      string `json:"exe,omitempty"`
	Endpoint string `json:"endpoint"` // unix:///run/containerd/containerd.sock
	// EndpointFrom is who says so: "--container-runtime-endpoint", "/var/lib/kubelet/config.yaml", "default", "k3s".
	EndpointFrom string `json:"endpointFrom"`
	CgroupDriver string `json:"cgroupDriver,omitempty"` // cgroupfs, systemd; empty when not configured
}

// Instance is one container runtime on the node.
type Instance struct {
	PID  int      `json:"pid,omitempty"` // 0: no process, only a configuration on disk
	Exe  string   `json:"exe,omitempty"`
	Args []string `json:"args,omitempty"`
	// Socket is its CRI socket on the node.
	Socket string `json:"socket,omitempty"`
	// Unit is the systemd unit that restarts it, checked by its MainPID; empty when there is none.
	Unit string `json:"unit,omitempty"`
	// ConfigPath is the root of its configuration; it need not exist.
	ConfigPath string `json:"configPath,omitempty"`
	// Files are what is loaded, in the order in which it is: the root first, later ones override.
	Files []ConfigFile `json:"files,omitempty"`
	// ConfigError is why the files could not be found or read.
	ConfigError string `json:"configError,omitempty"`
	// Release is the version that loads them: CRI's, else that of `containerd --version`.
	Release string `json:"release,omitempty"`
	// CRI is what it says about itself; nil when it does not answer, with CRIError.
	CRI      *cri.Info `json:"cri,omitempty"`
	CRIError string    `json:"criError,omitempty"`
	// Executables are the files that handlers' BinaryName and shims lead to: whether they are there and can be
	// executed.
	Executables map[string]string `json:"executables,omitempty"` // path -> "" when fine, else what is wrong
}

// ConfigFile is one configuration file.
type ConfigFile struct {
	Path string       `json:"path"`
	Data []byte       `json:"data"`
	Meta deadman.Meta `json:"meta"`
	// ReadOnly is why the file cannot be changed; empty when it can.
	ReadOnly string `json:"readOnly,omitempty"`
}
