package exercise

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// APIVersion and the kinds identify the versioned formats for storing and printing these types.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	Kind       = "Exercise"
	KindReport = "Report"
	KindEnding = "Ending"
)

// Phase is the progress of an exercise.
type Phase string

// Phases, in order.
const (
	Starting   Phase = "Starting"   // recorded; the environment is being created
	Healthy    Phase = "Healthy"    // the environment works
	Injected   Phase = "Injected"   // the fault is in place
	Broken     Phase = "Broken"     // the symptom is verified
	InProgress Phase = "InProgress" // the lab was handed to the candidate
	Graded     Phase = "Graded"     // graded at least once; may be graded again
	Ended      Phase = "Ended"      // reverted; changes that could not be reverted were reported
	Failed     Phase = "Failed"     // the lab did not become ready and was reverted; see Message
)

// Exercise is the stored state of a started scenario, without the answer. Times are from the API server's clock.
type Exercise struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID       string          `json:"id"` // also the ID of the run
	Scenario string          `json:"scenario"`
	Public   scenario.Public `json:"public"`
	Seed     int64           `json:"seed"`
	Params   map[string]any  `json:"params,omitempty"`
	Minutes  int             `json:"minutes"`
	By       string          `json:"by,omitempty"`   // the trainer's user name, according to the API server
	From     string          `json:"from,omitempty"` // the trainer's host
	// Group is shared by exercises that were started together; empty for an exercise that was started alone.
	Group string `json:"group,omitempty"`

	Phase   Phase  `json:"phase"`
	Message string `json:"message,omitempty"` // the reason for a failure, or details about the phase

	Created    time.Time `json:"created"`
	HealthyAt  time.Time `json:"healthyAt,omitzero"`
	InjectedAt time.Time `json:"injectedAt,omitzero"`
	BrokenAt   time.Time `json:"brokenAt,omitzero"`
	// Started is the time at which the candidate got the lab, and Until the end of the candidate's time.
	Started time.Time `json:"started,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`

	// Namespaces are reserved for the exercise: the exercise creates objects there, or the candidate may write there.
	Namespaces []string `json:"namespaces,omitempty"`
	// Owned are the objects outside these namespaces that the exercise creates or changes.
	Owned []scenario.Ref `json:"owned,omitempty"`
	// Nodes are the nodes that the exercise breaks, or that a solution changes.
	Nodes []string `json:"nodes,omitempty"`
	// FaultUntil is the expiry of node and process faults; zero if there are none.
	FaultUntil time.Time `json:"faultUntil,omitzero"`

	Account Account `json:"account,omitzero"`
	// Probe is the value of a label on all pods that are started by checks.
	Probe string `json:"probe,omitempty"`

	// Snapshots is the number of parts of each snapshot of the cluster.
	Snapshots map[string]int `json:"snapshots,omitempty"`
	// Conditions are the node conditions that reported problems before the exercise.
	Conditions []Condition `json:"conditions,omitempty"`

	Hints     []Taken             `json:"hints,omitempty"`
	HintsLeft int                 `json:"hintsLeft,omitempty"`
	Diagnosis *scenario.Diagnosis `json:"diagnosis,omitempty"`
	Submitted time.Time           `json:"submitted,omitzero"`
	// SubmittedState is the digest, at submission, of everything that the candidate may change; empty if it could not
	// be determined.
	SubmittedState string `json:"submittedState,omitempty"`
	// Module is the Terraform module that the candidate submitted. Brought are the objects that it added to the
	// cluster.
	Module   *terraform.Module `json:"module,omitempty"`
	ModuleAt time.Time         `json:"moduleAt,omitzero"`
	Brought  []scenario.Ref    `json:"brought,omitempty"`

	Revealed time.Time `json:"revealed,omitzero"`
	Grades   []Report  `json:"grades,omitempty"` // the latest one is last
	Ending   *Ending   `json:"ending,omitempty"`

	// Kubeconfig is the candidate's kubeconfig. Only Start returns it; it is never stored.
	Kubeconfig []byte `json:"-"`

	secret version
	seals  map[string]string // for the parts that were read; see verifySeals
}

// version identifies the stored Secret that an exercise was read from.
type version struct{ uid, resourceVersion string }

// Account is the candidate's ServiceAccount.
type Account struct {
	ID        string    `json:"id,omitempty"` // the names are derived from it
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	Until     time.Time `json:"until,omitzero"` // when the token expires
}

// Taken is a hint that was given.
type Taken struct {
	At   time.Time `json:"at"`
	Cost int       `json:"cost"`
	Text string    `json:"text"`
}

// Running reports whether objects or faults of the exercise may be in the cluster.
func (e Exercise) Running() bool { return e.Phase != Ended && e.Phase != Failed }

// Open reports whether the exercise can be graded.
func (e Exercise) Open() bool { return e.Phase == InProgress || e.Phase == Graded }

// Last returns the latest report, or nil if the exercise was not graded yet.
func (e Exercise) Last() *Report {
	if len(e.Grades) == 0 {
		return nil
	}
	return &e.Grades[len(e.Grades)-1]
}

// Card is the task card for the candidate. It contains no secrets.
type Card struct {
	SchemaVersion int       `json:"schemaVersion"` // CardVersion
	Title         string    `json:"title"`
	Briefing      string    `json:"briefing"`
	Simulated     string    `json:"simulated,omitempty"`
	Terraform     string    `json:"terraform,omitempty"` // describes what the module manages, for candidates who received one
	Access        []string  `json:"access"`              // in words
	Namespace     string    `json:"namespace"`
	Minutes       int       `json:"minutes"`
	Deadline      time.Time `json:"deadline"`
	// Context is the context of the kubeconfig; empty means the current context.
	Context string `json:"context,omitempty"`
	// Kubeconfig, Module and Diagnosis are the paths of the kubeconfig, the module's directory, and the file to
	// write.
	Kubeconfig string           `json:"kubeconfig,omitempty"`
	Module     string           `json:"module,omitempty"`
	Diagnosis  string           `json:"diagnosis,omitempty"`
	Submit     string           `json:"submit,omitempty"` // how to submit the result, in words
	Choices    scenario.Choices `json:"choices,omitzero"`
}
