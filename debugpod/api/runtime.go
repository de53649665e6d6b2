package api

import (
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// InspectRuntime requests the container runtime that the kubelet uses, and its configuration. It changes nothing.
type InspectRuntime struct{}

// Runtime is the response to InspectRuntime.
type Runtime struct {
	Kubelet Kubelet `json:"kubelet"`
	// Instance is the runtime behind the kubelet's endpoint. It is nil if it cannot be determined; Problem then has the
	// reason.
	Instance *Instance `json:"instance,omitempty"`
	Problem  string    `json:"problem,omitempty"`
	// Decoys are all other containerd instances: processes, and configurations at well-known paths that no process
	// uses.
	Decoys   []Instance `json:"decoys,omitempty"`
	Warnings []string   `json:"warnings,omitempty"`
}

// Kubelet has the settings of the node's kubelet that concern the container runtime.
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
	// Socket is the path of its CRI socket on the node.
	Socket string `json:"socket,omitempty"`
	// Unit is the systemd unit that restarts it, verified by its MainPID; empty if there is none.
	Unit string `json:"unit,omitempty"`
	// ConfigPath is the path of its main configuration file, which need not exist.
	ConfigPath string `json:"configPath,omitempty"`
	// Files are the loaded files in load order: the main file first; later files override earlier ones.
	Files []ConfigFile `json:"files,omitempty"`
	// ConfigError describes why the files could not be found or read.
	ConfigError string `json:"configError,omitempty"`
	// Release is the version that loads the files, as reported by CRI or else by `containerd --version`.
	Release string `json:"release,omitempty"`
	// CRI is the status that it reports over CRI; nil if it does not respond, with the reason in CRIError.
	CRI      *cri.Info `json:"cri,omitempty"`
	CRIError string    `json:"criError,omitempty"`
	// Executables are the paths of the handlers' BinaryName and shims. The value is empty if the path is an executable
	// file, and describes the problem otherwise.
	Executables map[string]string `json:"executables,omitempty"`
}

// ConfigFile is one configuration file.
type ConfigFile struct {
	Path string       `json:"path"`
	Data []byte       `json:"data"`
	Meta deadman.Meta `json:"meta"`
	// Volatile describes why the file at this path is lost when the node restarts; empty if it stays.
	Volatile string `json:"volatile,omitempty"`
	// ReadOnly describes why the file cannot be changed; empty if it can.
	ReadOnly string `json:"readOnly,omitempty"`
}
