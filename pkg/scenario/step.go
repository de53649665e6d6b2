package scenario

// Step is one change. Exactly one of the actions is set.
type Step struct {
	Name string `json:"name,omitempty"` // for the trainer, such as "the training job"
	When string `json:"when,omitempty"` // CEL over p and facts; empty means always

	// Create creates objects that do not exist yet.
	Create *Create `json:"create,omitempty"`
	// Patch changes an existing object.
	Patch *Patch `json:"patch,omitempty"`
	// XID writes lines to the kernel log, Runtime breaks a containerd configuration, Firewall drops packets on
	// a node, Device makes the kubelet consider GPUs unhealthy, and CUDA injects the shim into a running workload.
	XID      *XID      `json:"xid,omitempty"`
	Runtime  *Runtime  `json:"runtime,omitempty"`
	Firewall *Firewall `json:"firewall,omitempty"`
	Device   *Device   `json:"device,omitempty"`
	CUDA     *CUDA     `json:"cuda,omitempty"`

	// Wait waits until all checks hold.
	Wait []Check `json:"wait,omitempty"`

	// The following actions are for attempts only.
	Delete    *Ref       `json:"delete,omitempty"`    // waits until the object no longer exists
	Replace   []Object   `json:"replace,omitempty"`   // deletes the object with this name, waits, and recreates it
	NodeShell *NodeShell `json:"nodeShell,omitempty"` // a script as root on a node
	InPods    *InPods    `json:"inPods,omitempty"`    // in running pods, bypassing their workload
}

// Object is a manifest.
type Object = map[string]any

// Create creates objects.
type Create struct {
	Objects []Object `json:"objects"`
	// Shim injects the CUDA shim into the pod templates of these objects from their first revision, with inconspicuous
	// names. It simulates hardware that the lab lacks (a GPU with less memory), or a GPU that fails.
	Shim *CUDAFault `json:"shim,omitempty"`
}

// Patch changes an object.
type Patch struct {
	Object Ref            `json:"object"`
	Merge  map[string]any `json:"merge,omitempty"` // JSON merge patch
	JSON   []any          `json:"json,omitempty"`  // JSON patch
	// Subresource is status, or empty for the object itself. It is for setup and inject only.
	Subresource string `json:"subresource,omitempty"`
}

// XID writes XID lines to the kernel log of a node.
type XID struct {
	Codes   string `json:"codes"` // in the format of the xid command: 79
	Node    string `json:"node"`
	GPU     string `json:"gpu,omitempty"` // index, UUID or PCI address; empty means 0
	Cascade bool   `json:"cascade,omitempty"`
}

// Runtime breaks the containerd configuration of a node.
type Runtime struct {
	Mode    string `json:"mode"`
	Node    string `json:"node"`
	Handler string `json:"handler,omitempty"`
}

// Firewall drops packets between a node's pods, or the node itself, and a TCP port, with an nftables rule.
type Firewall struct {
	Node  string `json:"node"`
	Table string `json:"table"` // in family inet; must not exist yet
	Port  int    `json:"port"`  // server port
	// Drop determines which packets to drop: requests, responses, large (responses longer than 576 bytes), or outgoing
	// (requests of the node itself).
	Drop string `json:"drop"`
}

// Device makes the kubelet on a node consider GPUs unhealthy, as if the device plugin had reported them as unhealthy.
// The node then has fewer allocatable GPUs.
type Device struct {
	Node string `json:"node"`
	GPU  string `json:"gpu"` // index, UUID or PCI address, a list such as 0,1, or all
}

// CUDA injects the shim into a workload.
type CUDA struct {
	Workload Ref       `json:"workload"`
	Fault    CUDAFault `json:"fault"`
}

// CUDAFault configures the shim. The fields correspond to the flags of `cuda inject`.
type CUDAFault struct {
	XID      int    `json:"xid,omitempty"`
	Error    string `json:"error,omitempty"`
	MemLimit string `json:"memLimit,omitempty"` // 16Gi
	HideAll  bool   `json:"hideAll,omitempty"`
	// DriverMismatch makes cuInit return error 803, and makes NVML fail.
	DriverMismatch bool     `json:"driverMismatch,omitempty"`
	AfterCalls     int      `json:"afterCalls,omitempty"`
	After          Duration `json:"after,omitempty"`
	// Hang blocks calls forever instead of failing them.
	Hang bool `json:"hang,omitempty"`
	// Nodes are the nodes on which the shim acts; empty means all. A workload recovers when it moves to another
	// node.
	Nodes []string `json:"nodes,omitempty"`
}

// NodeShell runs a script as root on a node, in its mount and PID namespaces, with a privileged pod.
type NodeShell struct {
	Node   string `json:"node"`
	Script string `json:"script"`
}

// InPods acts in all running pods with the labels, without changing their workload, like kubectl exec, kubectl debug,
// kubectl patch --subresource resize, and kubectl label and annotate. Exactly one of Exec, Debug, Resize and Metadata
// is set.
type InPods struct {
	Namespace string `json:"namespace"`
	Labels    string `json:"labels"`
	Container string `json:"container,omitempty"` // empty means the pod's first container
	// Exec runs a command in the container.
	Exec []string `json:"exec,omitempty"`
	// Debug runs a command in a debug container, which sees the processes of the container. The command may keep
	// running after the step.
	Debug []string `json:"debug,omitempty"`
	// Resize sets the container's resources in place.
	Resize map[string]any `json:"resize,omitempty"`
	// Metadata sets labels and annotations of the pod.
	Metadata map[string]any `json:"metadata,omitempty"`
}
