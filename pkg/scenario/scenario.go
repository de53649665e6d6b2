// Package scenario is the format of the exercises: a broken situation on a real cluster that a person, or an agent, has
// to diagnose and mend. A file has a public half, which the candidate may read, and a sealed one, which has the answer.
// Strings may hold ${CEL}, over the drawn parameters (p) and what the cluster is like (facts); see package expr.
//
// Below it are:
//
//	access    the candidate's account, rights and kubeconfig
//	baseline  what a cluster is like, and what has become different
//	check     what a scenario looks at: objects, logs, events, answers, rights
//	exercise  a scenario that is played: start, hints, grading, end
//	expr      the ${CEL} in texts
//	packs     the scenarios that come with the program
//	recorder  what the candidate asks the API server, written down
package scenario

import (
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
)

// APIVersion and Kind name the versioned form of a file.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	Kind       = "Scenario"
)

// Scenario is one exercise, as its file has it or, after Resolve, as it is played.
type Scenario struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Requires   Requires `json:"requires,omitzero"`
	// Params are drawn by the seed, in the order of their names; those with Expr come last and may use the others.
	Params map[string]Param `json:"params,omitempty"`
	// Workload says how it is played on a Deployment of the trainer's; nil where that makes no sense.
	Workload *Played `json:"workload,omitempty"`
	Public   Public  `json:"public"`
	// Setup makes the healthy surroundings, which must pass Healthy before anything is broken.
	Setup   []Step  `json:"setup,omitempty"`
	Healthy []Check `json:"healthy,omitempty"`
	// Inject breaks. What the candidate looks at is created broken, so that no history shows it whole.
	Inject []Step `json:"inject,omitempty"`
	// Terraform is some of what setup and inject create as a Terraform module, for exercises that are started with one.
	Terraform *Terraform `json:"terraform,omitempty"`
	Sealed    Sealed     `json:"sealed"`

	source *source // what Parse read it from
}

// Metadata says what the scenario is.
type Metadata struct {
	Name       string   `json:"name"`       // as the command line has it: gpu-resources
	Difficulty string   `json:"difficulty"` // junior, middle, senior
	Minutes    int      `json:"minutes"`    // the time box
	Tags       []string `json:"tags,omitempty"`
}

// Requires is what the cluster must have.
type Requires struct {
	Nodes         int  `json:"nodes,omitempty"`         // Ready, schedulable nodes with GPUs
	GPUs          int  `json:"gpus,omitempty"`          // nvidia.com/gpu, on each of these nodes
	NetworkPolicy bool `json:"networkPolicy,omitempty"` // that NetworkPolicies are enforced, which a probe shows
	NodeAccess    bool `json:"nodeAccess,omitempty"`    // privileged pods are allowed in the ledger's namespace
	// Otherwise is a scenario of ours that takes this one's place where NetworkPolicies are not enforced.
	Otherwise string `json:"otherwise,omitempty"`
	// Toolkit is NVIDIA's container toolkit on the nodes: a handler of their container runtime, which GPUs that an
	// exercise simulates lack.
	Toolkit bool `json:"toolkit,omitempty"`
	// Images are those that nodes must be able to start: looked for on the nodes, or in their registry.
	Images []string `json:"images,omitempty"`
}

// Param is a value that the seed draws. One of the fields is set.
type Param struct {
	OneOf   []any  `json:"oneOf,omitempty"`
	Between []int  `json:"between,omitempty"` // both ends included
	Expr    string `json:"expr,omitempty"`    // CEL over p and facts
}

// Public is what the candidate may read.
type Public struct {
	Title string `json:"title"`
	// Briefing tells the symptom as a user of the cluster would, and what is expected; never the cause.
	Briefing string `json:"briefing"`
	Access   Access `json:"access"`
	// Simulated says what in the lab is not the real thing, so that nobody takes it for the fault.
	Simulated string `json:"simulated,omitempty"`
	// Terraform says what the module manages, and what the part of it that is not in the cluster stands for. Only who
	// is given it reads this.
	Terraform string `json:"terraform,omitempty"`
	// Choices are what the interactive submit offers; without them it asks for free text.
	Choices Choices `json:"choices,omitempty"`
}

// Choices are, for each field of the diagnosis, what the interactive submit offers besides free text: the right one
// among others.
type Choices struct {
	Component []string `json:"component,omitempty"`
	Mechanism []string `json:"mechanism,omitempty"`
}

// Access is what the candidate's kubeconfig may do, besides reading nodes, classes and what has no secrets in the whole
// cluster.
type Access struct {
	// Namespaces are those in which the candidate is admin. The first is the default one.
	Namespaces []string `json:"namespaces"`
	// Workload is a workload in a namespace of others, which the candidate may view: they change it, and nothing else
	// there.
	Workload *Ref `json:"workload,omitempty"`
	// Read are further namespaces that may be read (no Secrets).
	Read []string `json:"read,omitempty"`
	// Rules are further rights in the whole cluster.
	Rules []rbacv1.PolicyRule `json:"rules,omitempty"`
	// NodeShell allows privileged pods in the first namespace: the candidate is root on nodes.
	NodeShell bool `json:"nodeShell,omitempty"`
}

// Home returns the namespace in which the candidate works first; empty when there is none.
func (a Access) Home() string {
	switch {
	case len(a.Namespaces) > 0:
		return a.Namespaces[0]
	case a.Workload != nil:
		return a.Workload.Namespace
	}
	return ""
}

// Shared returns the namespaces of others in which the candidate has a workload to change.
func (a Access) Shared() []string {
	if a.Workload == nil || slices.Contains(a.Namespaces, a.Workload.Namespace) {
		return nil
	}
	return []string{a.Workload.Namespace}
}

// Terraform is a module as broken as the lab: mending it counts as much as mending the cluster.
type Terraform struct {
	// Manages are the objects. They are in the candidate's namespaces.
	Manages []Ref `json:"manages"`
	// Variables are the module's, with their values: wherever such a value stands, the module refers to its variable.
	Variables map[string]string `json:"variables,omitempty"`
	// Resources stand for the same in a cloud, by type and name: google_compute_firewall. Nobody applies them: checks
	// of the grade look at them.
	Resources map[string]map[string]map[string]any `json:"resources,omitempty"`
}

// Sealed is the half with the answer.
type Sealed struct {
	// Broken must hold before the candidate begins: the symptom is really there. Otherwise the start has failed, not
	// the candidate.
	Broken    []Check   `json:"broken"`
	RootCause RootCause `json:"rootCause"`
	// Story tells it all, for reveal and the interviewer's guide.
	Story string `json:"story"`
	// Look is what a good candidate looks at, in order, with what it shows: for the interviewer.
	Look []Look `json:"look,omitempty"`
	// Criteria are what the interviewer values besides what is measured.
	Criteria []string `json:"criteria,omitempty"`
	Hints    []Hint   `json:"hints,omitempty"`
	Grade    Grade    `json:"grade"`
	// Solutions must each be graded as passed, and WrongFixes each as failed; tests hold both. They are made with the
	// candidate's rights.
	Solutions  []Attempt `json:"solutions"`
	WrongFixes []Attempt `json:"wrongFixes"`
}

// RootCause is what the diagnosis is compared with.
type RootCause struct {
	// The part of the stack: workload, scheduler, image, device-plugin, runtime, network, rbac, monitoring, hardware,
	// none
	Component Answer `json:"component"`
	Object    Answer `json:"object"`    // Kind/name: Deployment/trainer
	Field     Answer `json:"field"`     // where: spec.template.spec.containers[0].resources.limits
	Mechanism Answer `json:"mechanism"` // one of a vocabulary: requests-more-than-any-node-has
}

// Answer is what is right, with what else is accepted. Comparing ignores case, punctuation and indices.
type Answer struct {
	Value   string   `json:"value"`
	Aliases []string `json:"aliases,omitempty"`
}

// Diagnosis is what a candidate submits.
type Diagnosis struct {
	Component   string `json:"component"`
	Object      string `json:"object"`
	Field       string `json:"field"`
	Mechanism   string `json:"mechanism"`
	Explanation string `json:"explanation,omitempty"` // for the interviewer; not graded
}

// Look is one thing to look at.
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

// Grade is how the result is judged. It passes when all of Fixed hold for StableFor, all of Unchanged hold, and nothing
// else in the cluster was changed. The rest is points.
type Grade struct {
	Fixed      []Check    `json:"fixed,omitempty"`
	Unchanged  []Check    `json:"unchanged,omitempty"` // against workarounds
	StableFor  Duration   `json:"stableFor,omitempty"`
	Collateral Collateral `json:"collateral,omitempty"`
	Weights    Weights    `json:"weights,omitzero"` // zero: DefaultWeights
}

// Collateral is what the candidate may change. Everything else that differs from the baseline is damage.
type Collateral struct {
	Allow []Allowed `json:"allow,omitempty"`
}

// Allowed is objects that may be changed, created or deleted. Empty fields mean any.
type Allowed struct {
	When      string `json:"when,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Fields are those of a changed object that may differ: spec.template, metadata.labels; empty means all.
	Fields []string `json:"fields,omitempty"`
	// Deleted reports whether it may also be gone; Created whether it may be new.
	Deleted bool `json:"deleted,omitempty"`
	Created bool `json:"created,omitempty"`
}

// Weights are points of 100.
type Weights struct {
	Fixed      int `json:"fixed"`
	Diagnosis  int `json:"diagnosis"`
	Collateral int `json:"collateral"`
	Time       int `json:"time"`
	Hints      int `json:"hints"`
}

// DefaultWeights are those of a scenario that says nothing of them.
var DefaultWeights = Weights{Fixed: 50, Diagnosis: 25, Collateral: 10, Time: 10, Hints: 5}

// Attempt is something a candidate might do.
type Attempt struct {
	Name  string `json:"name"`
	When  string `json:"when,omitempty"`
	Why   string `json:"why"` // why it is right, or why it must not count
	Steps []Step `json:"steps"`
	// Terraform makes the steps in the module, and hands that in. Resources of a cloud are objects of apiVersion
	// terraform there.
	Terraform bool `json:"terraform,omitempty"`
}

// Ref names an object.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// Step is one change. Exactly one of the actions is set.
type Step struct {
	Name string `json:"name,omitempty"` // for the trainer: "the training job"
	When string `json:"when,omitempty"` // CEL over p and facts; empty means always

	// Create makes objects that do not exist yet.
	Create *Create `json:"create,omitempty"`
	// Patch changes an object that exists.
	Patch *Patch `json:"patch,omitempty"`
	// XID writes lines to the kernel log, Runtime breaks a containerd configuration, Firewall has a node drop packets,
	// CUDA loads the shim into a running workload.
	XID      *XID      `json:"xid,omitempty"`
	Runtime  *Runtime  `json:"runtime,omitempty"`
	Firewall *Firewall `json:"firewall,omitempty"`
	CUDA     *CUDA     `json:"cuda,omitempty"`

	// Wait goes on when all checks hold.
	Wait []Check `json:"wait,omitempty"`

	// These are for attempts only.
	Delete    *Ref       `json:"delete,omitempty"`    // and waits until it is gone
	Replace   []Object   `json:"replace,omitempty"`   // deletes what has the name, waits, and creates it
	NodeShell *NodeShell `json:"nodeShell,omitempty"` // a script as root on a node
}

// Object is a manifest.
type Object = map[string]any

// Create makes objects.
type Create struct {
	Objects []Object `json:"objects"`
	// Shim puts the CUDA shim into the pod templates of these objects from their first revision on, under neutral
	// names: the part of the lab that stands for hardware which is not there (a GPU with less memory), or for a GPU
	// that breaks.
	Shim *CUDAFault `json:"shim,omitempty"`
}

// Patch changes an object.
type Patch struct {
	Object Ref            `json:"object"`
	Merge  map[string]any `json:"merge,omitempty"` // JSON merge patch
	JSON   []any          `json:"json,omitempty"`  // JSON patch
}

// XID writes XID lines to the kernel log of a node.
type XID struct {
	Codes   string `json:"codes"` // as the xid command takes them: 79
	Node    string `json:"node"`
	GPU     string `json:"gpu,omitempty"` // 0, a UUID or a PCI address; empty means 0
	Cascade bool   `json:"cascade,omitempty"`
}

// Runtime breaks the containerd configuration of a node.
type Runtime struct {
	Mode    string `json:"mode"`
	Node    string `json:"node"`
	Handler string `json:"handler,omitempty"`
}

// Firewall has a node drop packets between its pods and a TCP port, by a rule of nftables.
type Firewall struct {
	Node  string `json:"node"`
	Table string `json:"table"` // of the family inet; there must be none of that name
	Port  int    `json:"port"`  // that servers listen on
	Drop  string `json:"drop"`  // requests, answers, or large: answers that are longer than 576 bytes
}

// CUDA loads the shim into a workload.
type CUDA struct {
	Workload Ref       `json:"workload"`
	Fault    CUDAFault `json:"fault"`
}

// CUDAFault is what the shim does. The fields are those of `cuda inject`.
type CUDAFault struct {
	XID        int      `json:"xid,omitempty"`
	Error      string   `json:"error,omitempty"`
	MemLimit   string   `json:"memLimit,omitempty"` // 16Gi
	HideAll    bool     `json:"hideAll,omitempty"`
	AfterCalls int      `json:"afterCalls,omitempty"`
	After      Duration `json:"after,omitempty"`
	// Hang makes calls wait for ever in the place of failing.
	Hang bool `json:"hang,omitempty"`
	// Nodes are those on which it acts; empty means all. So a workload recovers when it moves.
	Nodes []string `json:"nodes,omitempty"`
}

// NodeShell runs a script as root on a node, in its mount and PID namespaces, by a privileged pod.
type NodeShell struct {
	Node   string `json:"node"`
	Script string `json:"script"`
}

// Check is something to look at, and what must be true of it. Exactly one of the sources is set.
type Check struct {
	Name string `json:"name"` // what holds when it passes: "the trainer's pods run on both nodes"
	When string `json:"when,omitempty"`

	// Object reads one object (o; null when it does not exist); Objects lists (list). was is the same at the baseline.
	Object  *Ref      `json:"object,omitempty"`
	Objects *Selector `json:"objects,omitempty"`
	// Logs reads the containers' logs of pods, joined (text).
	Logs *Logs `json:"logs,omitempty"`
	// Events lists those about an object, or without its name about all of the kind in the namespace (list).
	Events *Ref `json:"events,omitempty"`
	// Exec runs a command in a container (stdout, stderr, code).
	Exec *Exec `json:"exec,omitempty"`
	// HTTP asks from inside of the cluster (status, 0 when there is no answer; body).
	HTTP *HTTP `json:"http,omitempty"`
	// Can asks whether somebody may do something (allowed, reason).
	Can *Can `json:"can,omitempty"`
	// Probe creates a pod, waits until it has ended or Within is over, and deletes it (o, text: its log, list: its
	// events).
	Probe *Probe `json:"probe,omitempty"`
	// Terraform lists the resources of a type in the module that was handed in (list). Without one the check does not
	// count.
	Terraform string `json:"terraform,omitempty"`

	// Expect is CEL over the variables of the source, p, facts and now; it must be true. It is not interpolated.
	Expect string `json:"expect"`
	// Message says what is wrong when it is not: for the report after the exercise.
	Message string `json:"message,omitempty"`
	// Within is how long it may take to become true; zero means at once.
	Within Duration `json:"within,omitempty"`
	// Sustained is how long it must stay true.
	Sustained Duration `json:"sustained,omitempty"`
}

// Selector picks objects of a kind.
type Selector struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"` // empty means all
	Labels     string `json:"labels,omitempty"`
	Fields     string `json:"fields,omitempty"`
}

// Logs picks pods and what is read of them.
type Logs struct {
	Namespace string   `json:"namespace"`
	Labels    string   `json:"labels,omitempty"`
	Pod       string   `json:"pod,omitempty"`
	Container string   `json:"container,omitempty"`
	Previous  bool     `json:"previous,omitempty"` // of the container before the last restart, where there is one
	Since     Duration `json:"since,omitempty"`
	Tail      int64    `json:"tail,omitempty"` // lines; zero means 200
}

// Exec runs a command in the first ready pod of those picked.
type Exec struct {
	Namespace string   `json:"namespace"`
	Labels    string   `json:"labels,omitempty"`
	Pod       string   `json:"pod,omitempty"`
	Container string   `json:"container,omitempty"`
	Command   []string `json:"command"`
	Timeout   Duration `json:"timeout,omitempty"` // zero means 10s
}

// HTTP asks a URL, from a pod of ours in a namespace, or of a service by the API server's proxy.
type HTTP struct {
	Namespace string   `json:"namespace"`
	Service   string   `json:"service,omitempty"` // NAME:PORT, asked by the API server's proxy
	Path      string   `json:"path,omitempty"`
	URL       string   `json:"url,omitempty"`    // asked from a pod
	Labels    Labels   `json:"labels,omitempty"` // of the pod
	Timeout   Duration `json:"timeout,omitempty"`
}

// Labels are a pod's.
type Labels = map[string]string

// Can is one question to the API server's authorizer.
type Can struct {
	User      string `json:"user"` // system:serviceaccount:NS:NAME
	Verb      string `json:"verb"`
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"` // pods, pods/exec
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// Probe is a pod that is made to see what becomes of it.
type Probe struct {
	Pod Object `json:"pod"`
}

// Duration is a time.Duration that YAML writes as 90s.
type Duration time.Duration
