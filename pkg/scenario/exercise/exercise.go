package exercise

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// APIVersion and the kinds name the versioned forms in which these types are stored and printed.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	Kind       = "Exercise"
	KindReport = "Report"
	KindEnding = "Ending"
)

// Phase is how far an exercise is.
type Phase string

// The phases, in their order.
const (
	Starting   Phase = "Starting"   // recorded; its surroundings are being made
	Healthy    Phase = "Healthy"    // the surroundings work
	Injected   Phase = "Injected"   // the fault is in place
	Broken     Phase = "Broken"     // the symptom is really there
	InProgress Phase = "InProgress" // the candidate has the lab
	Graded     Phase = "Graded"     // judged at least once; it may be judged again
	Ended      Phase = "Ended"      // everything is put back, or said what could not be
	Failed     Phase = "Failed"     // the lab was not ready to be handed over, and was put back; see Message
)

// Exercise is one scenario that was started: what is remembered of it, without the answer. Times are the API server's.
type Exercise struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID       string          `json:"id"` // of the run, too
	Scenario string          `json:"scenario"`
	Public   scenario.Public `json:"public"`
	Seed     int64           `json:"seed"`
	Params   map[string]any  `json:"params,omitempty"`
	Minutes  int             `json:"minutes"`
	By       string          `json:"by,omitempty"`   // the trainer, as the API server knows them
	From     string          `json:"from,omitempty"` // their host

	Phase   Phase  `json:"phase"`
	Message string `json:"message,omitempty"` // why it failed, or what is to be known of its phase

	Created    time.Time `json:"created"`
	HealthyAt  time.Time `json:"healthyAt,omitzero"`
	InjectedAt time.Time `json:"injectedAt,omitzero"`
	BrokenAt   time.Time `json:"brokenAt,omitzero"`
	// Started is when the candidate got the lab, Until when their time is over.
	Started time.Time `json:"started,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`

	// Namespaces are those that the exercise has for itself: in which it makes things, or the candidate may write.
	Namespaces []string `json:"namespaces,omitempty"`
	// Owned are the objects outside of these namespaces that the exercise makes or changes.
	Owned []scenario.Ref `json:"owned,omitempty"`
	// Nodes are those that it breaks, or that its solution works on.
	Nodes []string `json:"nodes,omitempty"`
	// FaultUntil is when faults of nodes and processes end by themselves; zero when there are none.
	FaultUntil time.Time `json:"faultUntil,omitzero"`

	Account Account `json:"account,omitzero"`
	// Probe is a word that is a label of all pods by which checks look.
	Probe string `json:"probe,omitempty"`

	// Snapshots is how many parts each snapshot of the cluster has.
	Snapshots map[string]int `json:"snapshots,omitempty"`

	Hints     []Taken             `json:"hints,omitempty"`
	HintsLeft int                 `json:"hintsLeft,omitempty"`
	Diagnosis *scenario.Diagnosis `json:"diagnosis,omitempty"`
	Submitted time.Time           `json:"submitted,omitzero"`
	// SubmittedState is the digest of what the candidate may change, as it was then; empty where that cannot be known.
	SubmittedState string `json:"submittedState,omitempty"`
	// Module is the Terraform module that the candidate handed in, and Brought what it has made in the cluster that it
	// did not begin with.
	Module   *terraform.Module `json:"module,omitempty"`
	ModuleAt time.Time         `json:"moduleAt,omitzero"`
	Brought  []scenario.Ref    `json:"brought,omitempty"`

	Revealed time.Time `json:"revealed,omitzero"`
	Grades   []Report  `json:"grades,omitempty"` // the latest last
	Ending   *Ending   `json:"ending,omitempty"`

	// Kubeconfig is the candidate's, given once by Start and never stored.
	Kubeconfig []byte `json:"-"`

	secret version
	seals  map[string]string // of what was read of it: see verifySeals
}

// version is the stored Secret that an exercise was read from.
type version struct{ uid, resourceVersion string }

// Account is who the candidate is: a ServiceAccount.
type Account struct {
	ID        string    `json:"id,omitempty"` // from which the names are made
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	Until     time.Time `json:"until,omitzero"` // when the token ends
}

// Taken is a hint that was given.
type Taken struct {
	At   time.Time `json:"at"`
	Cost int       `json:"cost"`
	Text string    `json:"text"`
}

// Running reports whether something of the exercise may be in the cluster.
func (e Exercise) Running() bool { return e.Phase != Ended && e.Phase != Failed }

// Open reports whether it can be graded.
func (e Exercise) Open() bool { return e.Phase == InProgress || e.Phase == Graded }

// Last returns the latest report; nil when it was not graded yet.
func (e Exercise) Last() *Report {
	if len(e.Grades) == 0 {
		return nil
	}
	return &e.Grades[len(e.Grades)-1]
}

// Card is what the candidate is handed: all of it may be read by them.
type Card struct {
	SchemaVersion int       `json:"schemaVersion"` // CardVersion
	Title         string    `json:"title"`
	Briefing      string    `json:"briefing"`
	Simulated     string    `json:"simulated,omitempty"`
	Terraform     string    `json:"terraform,omitempty"` // what the module manages, for who got one
	Access        []string  `json:"access"`              // in words
	Namespace     string    `json:"namespace"`
	Minutes       int       `json:"minutes"`
	Deadline      time.Time `json:"deadline"`
	// Kubeconfig, Module and Diagnosis are paths: of the file and the folder to work with, and of the file to write.
	Kubeconfig string           `json:"kubeconfig,omitempty"`
	Module     string           `json:"module,omitempty"`
	Diagnosis  string           `json:"diagnosis,omitempty"`
	Submit     string           `json:"submit,omitempty"` // how, in words
	Choices    scenario.Choices `json:"choices,omitzero"`
}
