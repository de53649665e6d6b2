package api

import (
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// InspectRuntime requests information about the container runtime that the kubelet uses, and about the runtime's
// configuration. It changes nothing.
type InspectRuntime struct{}

// Runtime is the response to InspectRuntime.
type Runtime struct {
	Kubelet Kubelet `json:"kubelet"`
	// Instance is the runtime behind the kubelet's endpoint. It is nil if it cannot be determined; Problem then
	// contains the reason.
	Instance *Instance `json:"instance,omitempty"`
	Problem  string    `json:"problem,omitempty"`
	// Decoys are all other containerd instances: processes, and configurations at well-known paths that no process
	// uses.
	Decoys   []Instance `json:"decoys,omitempty"`
	Warnings []string   `json:"warnings,omitempty"`
}

// Kubelet contains the kubelet settings that affect the container runtime.
type Kubelet struct {
	PID      int    `json:"pid,omitempty"`
	Exe      string `json:"exe,omitempty"`
	Endpoint string `json:"endpoint"` // such as unix:///run/containerd/containerd.sock
	// EndpointFrom is the source of Endpoint: "--container-runtime-endpoint", "/var/lib/kubelet/config.yaml", "default"
	// or "k3s".
	EndpointFrom string `json:"endpointFrom"`
	CgroupDriver string `json:"cgroupDriver,omitempty"` // cgroupfs or systemd; empty if not configured
}

// Instance is one container runtime on the node.
type Instance struct {
	PID  int      `json:"pid,omitempty"` // 0 for a configuration on disk without a process
	Exe  string   `json:"exe,omitempty"`
	Args []string `json:"args,omitempty"`
	// Socket is the path of the runtime's CRI socket on the node.
	Socket string `json:"socket,omitempty"`
	// Unit is the systemd unit that restarts the runtime, verified by its MainPID. It is empty if there is none.
	Unit string `json:"unit,omitempty"`
	// ConfigPath is the path of the main configuration file, which may not exist.
	ConfigPath string `json:"configPath,omitempty"`
	// Files are the loaded files in load order: the main file first; later files override earlier ones.
	Files []ConfigFile `json:"files,omitempty"`
	// ConfigError describes why the files could not be found or read.
	ConfigError string `json:"configError,omitempty"`
	// Release is the version of the runtime that loads the files, as reported by CRI or, if CRI does not respond, by
	// `containerd --version`.
	Release string `json:"release,omitempty"`
	// CRI is the status that the runtime reports through CRI. It is nil if CRI does not respond; CRIError then contains
	// the reason.
	CRI      *cri.Info `json:"cri,omitempty"`
	CRIError string    `json:"criError,omitempty"`
	// Executables is keyed by the paths of the handlers' BinaryName and shims. A value is empty if the path is an
	// executable file; otherwise, the value describes the problem.
	Executables map[string]string `json:"executables,omitempty"`
}

// ConfigFile is one configuration file.
type ConfigFile struct {
	Path string       `json:"path"`
	Data []byte       `json:"data"`
	Meta deadman.Meta `json:"meta"`
	// Volatile describes why the file at this path is lost when the node restarts. It is empty if the file persists.
	Volatile string `json:"volatile,omitempty"`
	// ReadOnly explains why the file cannot be changed. It is empty if the file can be changed.
	ReadOnly string `json:"readOnly,omitempty"`
}
