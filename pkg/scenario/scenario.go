// Package scenario defines the format of exercises: a fault on a real cluster that a person or an AI agent must
// diagnose and fix. A scenario file has a public half, which the candidate may read, and a sealed half with the
// answer. Strings may contain ${CEL} expressions over the drawn parameters (p) and the facts of the cluster
// (facts); see package expr.
//
// Subpackages:
//
// access    the candidate's account, permissions and kubeconfig
// baseline  the state of a cluster, and what has changed since
// check     the sources of checks: objects, logs, events, HTTP responses, permissions
// exercise  running a scenario: start, hints, grading, end
// expr      ${CEL} expressions in strings
// packs     the built-in scenarios
// recorder  records the candidate's API requests
package scenario

import (
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
)

// APIVersion and Kind identify a scenario file.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	Kind       = "Scenario"
)

// Scenario is one exercise: as written in its file, or resolved for an attempt by Resolve.
type Scenario struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Requires   Requires `json:"requires,omitzero"`
	// Params are drawn from the seed in the order of their names. Params with Expr come last and may use the
	// others.
	Params map[string]Param `json:"params,omitempty"`
	// Workload configures the scenario for an existing Deployment of the trainer; nil if the scenario does not support
	// this.
	Workload *Played `json:"workload,omitempty"`
	Public   Public  `json:"public"`
	// Setup creates the healthy environment, which must pass Healthy before the fault is injected.
	Setup   []Step  `json:"setup,omitempty"`
	Healthy []Check `json:"healthy,omitempty"`
	// Inject injects the fault. Objects that the candidate inspects are created broken, so that no history
	// shows them working.
	Inject []Step `json:"inject,omitempty"`
	// Terraform puts some of the objects of Setup and Inject in a Terraform module, for exercises that are
	// started with one.
	Terraform *Terraform `json:"terraform,omitempty"`
	Sealed    Sealed     `json:"sealed"`

	source *source // the file's contents, as read by Parse
}

// Metadata describes the scenario.
type Metadata struct {
	Name       string   `json:"name"`       // as used on the command line: gpu-resources
	Difficulty string   `json:"difficulty"` // junior, mid-level, senior
	Minutes    int      `json:"minutes"`    // time box
	Tags       []string `json:"tags,omitempty"`
}

// Requires are requirements on the cluster.
type Requires struct {
	Nodes         int  `json:"nodes,omitempty"`         // Ready, schedulable nodes with GPUs
	GPUs          int  `json:"gpus,omitempty"`          // nvidia.com/gpu, on each of these nodes
	NetworkPolicy bool `json:"networkPolicy,omitempty"` // a probe verifies that NetworkPolicies are enforced
	NodeAccess    bool `json:"nodeAccess,omitempty"`    // privileged pods must be allowed in the ledger's namespace
	// Otherwise is a built-in scenario that replaces this one if NetworkPolicies are not enforced.
	Otherwise string `json:"otherwise,omitempty"`
	// Toolkit requires the NVIDIA Container Toolkit on the nodes. The toolkit configures a handler for the container
	// runtime. Nodes with simulated GPUs lack this handler.
	Toolkit bool `json:"toolkit,omitempty"`
	// DevicePlugin requires a device plugin on the nodes, so that the kubelet can mark the plugin's GPUs as unhealthy.
	// Simulated GPUs have no device plugin.
	DevicePlugin bool `json:"devicePlugin,omitempty"`
	// Images must be available to the nodes: already on the node, or in a reachable registry.
	Images []string `json:"images,omitempty"`
}

// Simulatable reports whether GPUs that the exercise simulates are sufficient.
func (r Requires) Simulatable() bool { return !r.Toolkit && !r.DevicePlugin }

// Param is a value drawn from the seed. Exactly one of the fields is set.
type Param struct {
	OneOf   []any  `json:"oneOf,omitempty"`
	Between []int  `json:"between,omitempty"` // minimum and maximum, inclusive
	Expr    string `json:"expr,omitempty"`    // CEL over p and facts
}

// Public is the half of the scenario that the candidate may read.
type Public struct {
	Title string `json:"title"`
	// Briefing describes the symptom, as a user of the cluster would, and the expected result, but never the cause.
	Briefing string `json:"briefing"`
	Access   Access `json:"access"`
	// Simulated states which parts of the lab are simulated, so that candidates do not mistake them for the fault.
	Simulated string `json:"simulated,omitempty"`
	// Terraform describes what the module manages, and what its resources that are not in the cluster
	// represent. It is shown only to candidates who receive the module.
	Terraform string `json:"terraform,omitempty"`
	// Choices are offered by the interactive submit command; without choices, the command asks for free text.
	Choices Choices `json:"choices,omitempty"`
}

// Choices are the options that the interactive submit command offers for each field of the diagnosis, in addition to
// free text. They include the correct one.
type Choices struct {
	Component []string `json:"component,omitempty"`
	Mechanism []string `json:"mechanism,omitempty"`
}

// Access describes the permissions of the candidate's kubeconfig, in addition to reading nodes, classes and other
// cluster-wide objects that contain no secrets.
type Access struct {
	// Namespaces are the namespaces in which the candidate is admin. The first is the default namespace.
	Namespaces []string `json:"namespaces"`
	// Workload is a workload in a namespace that the scenario does not create. The candidate may view that
	// namespace, and change only this workload.
	Workload *Ref `json:"workload,omitempty"`
	// Read are additional namespaces that the candidate may read, except for Secrets.
	Read []string `json:"read,omitempty"`
	// Rules are additional cluster-wide permissions.
	Rules []rbacv1.PolicyRule `json:"rules,omitempty"`
	// NodeShell allows privileged pods in the first namespace, so the candidate can become root on nodes.
	NodeShell bool `json:"nodeShell,omitempty"`
}

// Home returns the candidate's default namespace, or "" if there is none.
func (a Access) Home() string {
	switch {
	case len(a.Namespaces) > 0:
		return a.Namespaces[0]
	case a.Workload != nil:
		return a.Workload.Namespace
	}
	return ""
}

// Shared returns the namespaces that the scenario does not create, but in which the candidate may change a
// workload.
func (a Access) Shared() []string {
	if a.Workload == nil || slices.Contains(a.Namespaces, a.Workload.Namespace) {
		return nil
	}
	return []string{a.Workload.Namespace}
}

// Terraform is a module with the same fault as the lab. Fixing the module counts as much as fixing the cluster.
type Terraform struct {
	// Manages are the objects in the module. They are in the candidate's namespaces.
	Manages []Ref `json:"manages"`
	// Variables are the module's variables and their values. The module refers to a variable wherever its value
	// occurs.
	Variables map[string]string `json:"variables,omitempty"`
	// Resources are equivalent cloud resources, by type and name: google_compute_firewall. They are never
	// applied; checks of the grade inspect them.
	Resources map[string]map[string]map[string]any `json:"resources,omitempty"`
}

// Sealed is the half of the scenario that contains the answer.
type Sealed struct {
	// Broken must hold before the candidate begins, which verifies that the symptom is present. If it does not
	// hold, the start fails.
	Broken    []Check   `json:"broken"`
	RootCause RootCause `json:"rootCause"`
	// Story is the full explanation, for reveal and the interviewer's guide.
	Story string `json:"story"`
	// Look lists what a good candidate inspects, in order, with the expected findings. It is for the interviewer.
	Look []Look `json:"look,omitempty"`
	// Criteria are qualities that the interviewer assesses in addition to the measured result.
	Criteria []string `json:"criteria,omitempty"`
	Hints    []Hint   `json:"hints,omitempty"`
	Grade    Grade    `json:"grade"`
	// Solutions must all be graded as passed, and WrongFixes as failed; tests verify both. They run with the
	// candidate's permissions.
	Solutions  []Attempt `json:"solutions"`
	WrongFixes []Attempt `json:"wrongFixes"`
}

// RootCause is the expected diagnosis.
type RootCause struct {
	// Component is the part of the stack: workload, scheduler, image, device-plugin, runtime, network, rbac,
	// monitoring, hardware, none.
	Component Answer `json:"component"`
	Object    Answer `json:"object"`    // Kind/name: Deployment/trainer
	Field     Answer `json:"field"`     // path of the field: spec.template.spec.containers[0].resources.limits
	Mechanism Answer `json:"mechanism"` // from a fixed vocabulary: requests-more-than-any-node-has
}

// Answer is the correct value and its accepted alternatives. Comparison ignores case, punctuation and indices.
type Answer struct {
	Value   string   `json:"value"`
	Aliases []string `json:"aliases,omitempty"`
}

// Diagnosis is submitted by a candidate.
type Diagnosis struct {
	Component   string `json:"component"`
	Object      string `json:"object"`
	Field       string `json:"field"`
	Mechanism   string `json:"mechanism"`
	Explanation string `json:"explanation,omitempty"` // for the interviewer; not graded
}

// Look is something to inspect.
type Look struct {
	Command string `json:"command"`
	Shows   string `json:"shows"`
}

// Hint is help that costs points.
type Hint struct {
	When string `json:"when,omitempty"`
	Cost int    `json:"cost"`
	Text string `json:"text"`
}

// Grade defines how the result is graded. An attempt passes if all of Fixed hold for StableFor, all of
// Unchanged hold, and nothing else in the cluster was changed. Points are computed separately.
type Grade struct {
	Fixed      []Check    `json:"fixed,omitempty"`
	Unchanged  []Check    `json:"unchanged,omitempty"` // to detect workarounds
	StableFor  Duration   `json:"stableFor,omitempty"`
	Collateral Collateral `json:"collateral,omitempty"`
	// OwnSessions accepts processes in separate sessions, which programs such as torchrun start. Otherwise, these
	// processes are considered to have been started by the candidate with kubectl exec.
	OwnSessions bool    `json:"ownSessions,omitempty"`
	Weights     Weights `json:"weights,omitzero"` // zero: DefaultWeights
}

// Collateral describes the permitted changes. Any other difference from the baseline is damage.
type Collateral struct {
	Allow []Allowed `json:"allow,omitempty"`
	// Nodes are paths on nodes, such as /etc/containerd, that a candidate who can become root there may change.
	Nodes []string `json:"nodes,omitempty"`
}

// Allowed selects objects that may be changed, created or deleted. Empty fields match everything.
type Allowed struct {
	When      string `json:"when,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Fields may differ in a changed object: spec.template, metadata.labels; empty means all fields.
	Fields []string `json:"fields,omitempty"`
	// Deleted allows the deletion of the object; Created allows its creation.
	Deleted bool `json:"deleted,omitempty"`
	Created bool `json:"created,omitempty"`
}

// Weights are points out of 100.
type Weights struct {
	Fixed      int `json:"fixed"`
	Diagnosis  int `json:"diagnosis"`
	Collateral int `json:"collateral"`
	Time       int `json:"time"`
	Hints      int `json:"hints"`
}

// DefaultWeights apply to scenarios that do not set weights.
var DefaultWeights = Weights{Fixed: 50, Diagnosis: 25, Collateral: 10, Time: 10, Hints: 5}

// Attempt is something that a candidate might do.
type Attempt struct {
	Name  string `json:"name"`
	When  string `json:"when,omitempty"`
	Why   string `json:"why"` // why the attempt is correct, or why it must fail
	Steps []Step `json:"steps"`
	// Terraform applies the steps to the module, and submits the module. The module's cloud resources are objects with
	// the apiVersion terraform.
	Terraform bool `json:"terraform,omitempty"`
}

// Ref identifies an object.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// Check is a source to inspect and a condition on it. Exactly one of the sources is set.
type Check struct {
	Name string `json:"name"` // the condition in words, such as "the trainer's pods run on both nodes"
	When string `json:"when,omitempty"`

	// Object reads one object and provides it as o, which is null if the object does not exist. Objects lists objects
	// and provides list. The was variable contains the value at the baseline.
	Object  *Ref      `json:"object,omitempty"`
	Objects *Selector `json:"objects,omitempty"`
	// With contains additional objects, by name, that Expect can compare with the source, for example as with.classes.
	With map[string]Selector `json:"with,omitempty"`
	// Logs reads the concatenated logs of the pods' containers as text.
	Logs *Logs `json:"logs,omitempty"`
	// Events lists events about an object or, if the name is empty, about all objects of the kind in the namespace. It
	// provides list.
	Events *Ref `json:"events,omitempty"`
	// Exec runs a command in a container, and provides stdout, stderr and code.
	Exec *Exec `json:"exec,omitempty"`
	// HTTP sends a request from inside the cluster, and provides status (0 if there is no response) and body.
	HTTP *HTTP `json:"http,omitempty"`
	// Can checks whether a user may do something, and provides allowed and reason.
	Can *Can `json:"can,omitempty"`
	// Probe creates a pod, waits until the pod terminates or Within expires, and deletes the pod. It provides o, text
	// (the pod's log) and list (the pod's events).
	Probe *Probe `json:"probe,omitempty"`
	// Handler reads a runtime handler that the container runtime on a node has loaded. It provides o, with type,
	// binaryName, lasts and lost; o is null if the handler does not exist. lasts reports whether the node's files
	// contain the same handler, in a location that persists when the node restarts; lost is the reason if they do not.
	// The handler is read once, by a pod on the node.
	Handler *Handler `json:"handler,omitempty"`
	// Terraform lists the resources of a type in the submitted module, and provides list. The check is skipped if there
	// is no module.
	Terraform string `json:"terraform,omitempty"`

	// Expect is a CEL expression over the variables of the source and over p, facts and now. It must be true. It is not
	// interpolated.
	Expect string `json:"expect"`
	// Message describes the problem if the check fails, for the report after the exercise.
	Message string `json:"message,omitempty"`
	// Within is the time that the condition may take to become true; zero means that it must be true immediately.
	Within Duration `json:"within,omitempty"`
	// Sustained is the time for which the condition must stay true.
	Sustained Duration `json:"sustained,omitempty"`
}

// Selector selects objects of a kind.
type Selector struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"` // empty means all
	Labels     string `json:"labels,omitempty"`
	Fields     string `json:"fields,omitempty"`
}

// Logs selects pods and the part of their logs to read.
type Logs struct {
	Namespace string   `json:"namespace"`
	Labels    string   `json:"labels,omitempty"`
	Pod       string   `json:"pod,omitempty"`
	Container string   `json:"container,omitempty"`
	Previous  bool     `json:"previous,omitempty"` // from the container before its last restart, if any
	Since     Duration `json:"since,omitempty"`
	Tail      int64    `json:"tail,omitempty"` // number of lines; zero means 200
}

// Exec runs a command in the first ready pod that matches the labels.
type Exec struct {
	Namespace string   `json:"namespace"`
	Labels    string   `json:"labels,omitempty"`
	Pod       string   `json:"pod,omitempty"`
	Container string   `json:"container,omitempty"`
	Command   []string `json:"command"`
	Timeout   Duration `json:"timeout,omitempty"` // zero means 10s
}

// HTTP sends a request to a URL from a pod in a namespace, or to a Service through the API server's proxy.
type HTTP struct {
	Namespace string   `json:"namespace"`
	Service   string   `json:"service,omitempty"` // NAME:PORT, accessed through the API server's proxy
	Path      string   `json:"path,omitempty"`
	URL       string   `json:"url,omitempty"`    // requested from a pod
	Labels    Labels   `json:"labels,omitempty"` // of the pod
	Timeout   Duration `json:"timeout,omitempty"`
}

// Labels are the labels of a pod.
type Labels = map[string]string

// Can is an access review by the API server's authorizer.
type Can struct {
	User      string `json:"user"` // system:serviceaccount:NS:NAME
	Verb      string `json:"verb"`
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"` // pods, pods/exec
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// Handler identifies a handler of a node's container runtime.
type Handler struct {
	Node string `json:"node"`
	Name string `json:"name"`
}

// Probe is a pod that is created to observe its result.
type Probe struct {
	Pod Object `json:"pod"`
	// Peer is a pod that is started first. Because its address cannot be known in advance, the containers of Pod get
	// the address in $PEER.
	Peer Object `json:"peer,omitempty"`
}

// Duration is a time.Duration that is written in YAML as 90s, for example.
type Duration time.Duration
