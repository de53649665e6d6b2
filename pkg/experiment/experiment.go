// Package experiment runs experiments: inject a fault, expect certain reactions of the cluster within certain times,
// revert, and report.
//
// To run one from Go, read it with [Parse], or get a built-in one with [Named]; find its nodes with [Target.Nodes]; and
// play it with [Lab.Play], which returns a [Result] with a [Verdict] for each expectation. A [Lab] needs a client for
// the cluster, and two functions: Command injects a fault, and Revert reverts it. Both usually run the plugin, as in
// the example for [Lab.Play]. The package does not have a stable API yet: pin the version of the module.
package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// Kind is the kind of an experiment file.
const Kind = "Experiment"

// Experiment is the format of experiment files.
type Experiment struct {
	APIVersion  string   `json:"apiVersion"`
	Kind        string   `json:"kind"`
	Metadata    Metadata `json:"metadata"`
	Description string   `json:"description,omitempty"`
	// Target selects the nodes. It may also be specified on the command line.
	Target Target `json:"target,omitempty"`
	// Steady must hold before anything is injected.
	Steady []scenario.Check `json:"steady,omitempty"`
	Abort  Abort            `json:"abort,omitempty"`
	// Load contains requests that are sent during the whole experiment.
	Load []check.Load `json:"load,omitempty"`
	// SimulateRemediation lists the steps for which this tool acts as the remediator in a cluster without one.
	SimulateRemediation []string `json:"simulateRemediation,omitempty"`

	Steps []Step `json:"steps"`
	// Repeat is the number of times to run the steps; 0 means once.
	Repeat int `json:"repeat,omitempty"`
}

// Metadata contains the name of an experiment.
type Metadata struct {
	Name string `json:"name"`
}

// Target selects nodes, in one of three ways.
type Target struct {
	Node string `json:"node,omitempty"`
	// Selector is a label selector for nodes.
	Selector string `json:"selector,omitempty"`
	// PodsOf is a workload, as TYPE/NAME, in Namespace. The nodes are those of its running pods.
	PodsOf    string `json:"podsOf,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Pick is the number of nodes to select: a number, a percentage such as 10%, or all. The default is 1.
	Pick any `json:"pick,omitempty"`
	// Seed makes the selection repeatable: the same Seed selects the same nodes each time. If it is 0, the first nodes
	// by name are selected.
	Seed int64 `json:"seed,omitempty"`

	// Pods is the selector for the pods of PodsOf. The method Nodes sets it.
	Pods labels.Selector `json:"-"`
}

// Abort ends an experiment early.
type Abort struct {
	// NodesUnschedulable is the number of nodes that may be cordoned during the experiment. If more are cordoned, the
	// experiment ends.
	NodesUnschedulable int `json:"nodesUnschedulable,omitempty"`
}

// Step is a step of an experiment. Exactly one of its fields is set, but expect and expect-not may be combined.
type Step struct {
	Inject    *Inject           `json:"inject,omitempty"`
	Expect    []Expectation     `json:"expect,omitempty"`
	ExpectNot []Expectation     `json:"expect-not,omitempty"`
	Wait      scenario.Duration `json:"wait,omitempty"`
	// Parallel runs steps at the same time.
	Parallel []Step `json:"parallel,omitempty"`
	// Revert reverts all previously injected faults.
	Revert *Revert `json:"revert,omitempty"`
}

// Revert has no fields yet.
type Revert struct{}

// Inject is a fault: a command of this tool, or one of its short forms.
type Inject struct {
	// XID is one code or several, such as 79 or 48,63. Layers are the layers in which the fault is visible: kernel
	// (default), device, nvml, dcgm and cuda.
	XID    any      `json:"xid,omitempty"`
	GPU    any      `json:"gpu,omitempty"`
	Layers []string `json:"layers,omitempty"`
	// The only valid value of Device is "unhealthy". Runtime is a mode of `runtime break`. Network is "partition" or
	// "loss". A network fault applies to the pods of the target's workload on the nodes if the target has a workload,
	// and otherwise to all pods on the nodes.
	Device  string `json:"device,omitempty"`
	Runtime string `json:"runtime,omitempty"`
	Network string `json:"network,omitempty"`
	// CUDA specifies the workload for a CUDA fault, as TYPE/NAME, in the namespace of the target.
	CUDA string `json:"cuda,omitempty"`
	// Flags are additional flags for the command, without the dashes.
	Flags map[string]any `json:"flags,omitempty"`
	// Command is a command line for this tool without its name. Its words may contain ${target.node} and ${run}, the ID
	// of the last run.
	Command []string `json:"command,omitempty"`
}

// Layers of a fault.
const (
	LayerKernel = "kernel"
	LayerDevice = "device"
	LayerCUDA   = "cuda"
	LayerNVML   = "nvml"
	LayerDCGM   = "dcgm"
)

// Parse reads an experiment strictly. The error contains a position for each problem.
func Parse(file string, data []byte) (*Experiment, error) {
	d, err := scenario.Decode[Experiment](file, data)
	if err != nil {
		return nil, err
	}
	e := &d.Value
	var problems scenario.Problems
	e.check(func(err error, field string, path ...any) {
		if err != nil {
			problems = append(problems, d.Problem(err, field, path...))
		}
	})
	if len(problems) > 0 {
		return nil, problems
	}
	return e, nil
}

// Validate returns an error for each problem in an experiment.
func (e *Experiment) Validate() error {
	var problems []error
	e.check(func(err error, field string, _ ...any) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", field, err))
		}
	})
	return errors.Join(problems...)
}

func (e *Experiment) check(add func(err error, field string, path ...any)) {
	if e.APIVersion != ledger.APIVersion || e.Kind != Kind {
		add(fmt.Errorf("must be apiVersion %s and kind %s", ledger.APIVersion, Kind), "", "kind")
	}
	if e.Metadata.Name == "" {
		add(errors.New("is empty"), "metadata.name", "metadata", "name")
	}
	add(e.Target.validate(), "target", "target")
	if e.Repeat < 0 || e.Repeat > 1000 {
		add(errors.New("must be 0 to 1000"), "repeat", "repeat")
	}
	if e.Abort.NodesUnschedulable < 0 {
		add(errors.New("must not be negative"), "abort.nodesUnschedulable", "abort", "nodesUnschedulable")
	}
	add(e.checkLoads(), "load", "load")
	add(validSimulation(e.SimulateRemediation), "simulateRemediation", "simulateRemediation")
	if len(e.Steps) == 0 {
		add(errors.New("an experiment must have at least one step"), "steps", "steps")
	}
	e.checkSteps(e.Steps, "steps", []any{"steps"}, add)
}

func (e *Experiment) checkSteps(
	steps []Step, field string, path []any, add func(err error, field string, path ...any),
) {
	for i, s := range steps {
		field, path := fmt.Sprintf("%s[%d]", field, i), append(slices.Clone(path), i)
		add(s.validate(), field, path...)
		if s.Inject != nil {
			add(s.Inject.validate(), field+".inject", append(path, "inject")...)
		}
		for j, x := range s.Expect {
			field := fmt.Sprintf("%s.expect[%d]", field, j)
			add(e.checkExpectation(x, false), field, append(path, "expect", j)...)
		}
		for j, x := range s.ExpectNot {
			field := fmt.Sprintf("%s.expect-not[%d]", field, j)
			add(e.checkExpectation(x, true), field, append(path, "expect-not", j)...)
		}
		e.checkSteps(s.Parallel, field+".parallel", append(path, "parallel"), add)
	}
}

func (e *Experiment) checkExpectation(x Expectation, not bool) error {
	if x.Steady != "" && e.steady(x.Steady) == nil {
		return fmt.Errorf("no check in steady has the name %q", x.Steady)
	}
	if x.Load != "" && !slices.ContainsFunc(e.Load, func(l check.Load) bool { return l.Name == x.Load }) {
		return fmt.Errorf("no load has the name %q", x.Load)
	}
	if _, err := newPending(x, not); err != nil {
		return err
	}
	return nil
}

func (e *Experiment) steady(name string) *scenario.Check {
	for i := range e.Steady {
		if e.Steady[i].Name == name {
			return &e.Steady[i]
		}
	}
	return nil
}

func (s Step) validate() error {
	n := 0
	for _, is := range []bool{
		s.Inject != nil, len(s.Expect)+len(s.ExpectNot) > 0, s.Wait != 0, len(s.Parallel) > 0, s.Revert != nil,
	} {
		if is {
			n++
		}
	}
	switch {
	case n != 1:
		return errors.New("a step must set exactly one of inject, expect, expect-not, wait, parallel or revert")
	case s.Wait < 0 || s.Wait.Std() > longestWait:
		return fmt.Errorf("wait must be at most %s", longestWait)
	}
	return nil
}

func (t Target) validate() error {
	n := 0
	for _, is := range []bool{t.Node != "", t.Selector != "", t.PodsOf != ""} {
		if is {
			n++
		}
	}
	if n > 1 {
		return errors.New("only one of node, selector and podsOf is allowed")
	}
	if kind, name, found := strings.Cut(t.PodsOf, "/"); t.PodsOf != "" && (!found || kind == "" || name == "") {
		return fmt.Errorf("podsOf must be TYPE/NAME, such as deployment/vllm, not %q", t.PodsOf)
	}
	_, err := t.pick(100)
	return err
}

// pick returns the number of nodes to select from n.
func (t Target) pick(n int) (int, error) {
	text := fmt.Sprint(t.Pick)
	switch percent, is := strings.CutSuffix(text, "%"); {
	case t.Pick == nil:
		return min(1, n), nil
	case text == "all":
		return n, nil
	case is:
		share, err := strconv.Atoi(percent)
		if err != nil || share < 1 || share > 100 {
			break
		}
		return max(1, n*share/100), nil
	default:
		number, err := strconv.Atoi(text)
		if err != nil || number < 1 {
			break
		}
		if number > n {
			return 0, fmt.Errorf("pick is %d, but the target has only %s", number, count.Of(n, "node"))
		}
		return number, nil
	}
	return 0, fmt.Errorf("pick must be a number of nodes, a percentage such as 10%%, or all, not %q", text)
}

func (i Inject) validate() error {
	n := 0
	for _, is := range []bool{
		i.XID != nil && i.CUDA == "", i.Device != "", i.Runtime != "", i.Network != "",
		i.CUDA != "" && len(i.Layers) == 0, len(i.Command) > 0,
	} {
		if is {
			n++
		}
	}
	switch {
	case n != 1:
		return errors.New("a fault must set exactly one of xid, device, runtime, network, cuda or command")
	case len(i.Layers) > 0 && i.XID == nil:
		return errors.New("layers requires xid")
	case i.GPU != nil && i.XID == nil && i.Device == "":
		return errors.New("gpu requires xid or device")
	case i.Device != "" && i.Device != "unhealthy":
		return fmt.Errorf("device must be unhealthy, not %q", i.Device)
	case i.Network != "" && !slices.Contains([]string{"partition", "loss", "slow"}, i.Network):
		return fmt.Errorf("network must be partition, loss or slow, not %q", i.Network)
	}
	for _, layer := range i.Layers {
		switch {
		case !slices.Contains([]string{LayerKernel, LayerDevice, LayerNVML, LayerDCGM, LayerCUDA}, layer):
			return fmt.Errorf("unknown layer %q: must be kernel, device, nvml, dcgm or cuda", layer)
		case (layer == LayerNVML || layer == LayerDCGM) && !slices.Contains(i.Layers, LayerKernel):
			return fmt.Errorf("layer %s requires layer kernel", layer)
		}
	}
	if len(i.Command) > 0 && !slices.Contains(injecting, strings.Join(i.Command[:min(2, len(i.Command))], " ")) &&
		!slices.Contains(injecting, i.Command[0]) {
		return fmt.Errorf("command must begin with one of %s", strings.Join(injecting, ", "))
	}
	for name := range i.Flags {
		if strings.HasPrefix(name, "-") {
			return fmt.Errorf("flag %q: must be written without the dashes", name)
		}
		if slices.Contains(reserved, name) {
			return fmt.Errorf("flag %s is set by the experiment", name)
		}
	}
	return nil
}

// injecting contains the commands that an experiment may run; reserved contains the flags that it sets itself.
var (
	injecting = []string{
		"xid", "device unhealthy", "device taint", "runtime break", "network partition", "network loss", "network slow",
		"cuda inject", "cuda arm", "cuda disarm",
	}
	reserved = []string{"yes", "output", "dry-run", "expect", "expect-not", "within"}
)
