package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
)

// The fields of a Kyverno Chainsaw Test that this package uses.
type (
	chainsawTest struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   map[string]string `yaml:"metadata"`
		Spec       chainsawSpec      `yaml:"spec"`
	}
	chainsawSpec struct {
		Description string         `yaml:"description,omitempty"`
		Concurrent  bool           `yaml:"concurrent"`
		Steps       []chainsawStep `yaml:"steps"`
	}
	chainsawStep struct {
		Name     string              `yaml:"name"`
		Bindings []chainsawBinding   `yaml:"bindings,omitempty"`
		Try      []chainsawOperation `yaml:"try"`
		Finally  []chainsawOperation `yaml:"finally,omitempty"`
	}
	chainsawOperation struct {
		Description string          `yaml:"description,omitempty"`
		Script      *chainsawScript `yaml:"script,omitempty"`
		Assert      *chainsawAssert `yaml:"assert,omitempty"`
		Sleep       *chainsawSleep  `yaml:"sleep,omitempty"`
	}
	chainsawScript struct {
		Timeout string            `yaml:"timeout"`
		Env     []chainsawBinding `yaml:"env,omitempty"`
		Content string            `yaml:"content"`
		Outputs []chainsawBinding `yaml:"outputs,omitempty"`
	}
	chainsawAssert struct {
		Timeout  string         `yaml:"timeout"`
		Template bool           `yaml:"template"`
		Resource map[string]any `yaml:"resource"`
	}
	chainsawSleep struct {
		Duration string `yaml:"duration"`
	}
	chainsawBinding struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	}
)

// injectTimeout is the maximum time for a command that injects a fault, in addition to the time for reactions.
const injectTimeout = 10 * time.Minute

// chainsaw builds a test. All operations are in one step, because variables are scoped to a step.
type chainsaw struct {
	*Experiment
	more func(line []string) []string
	step chainsawStep
	runs int   // number of runs that were opened
	open []int // the runs that are not reverted yet
}

// useRun is the fix for a field that Chainsaw does not support.
const useRun = "remove it, or use `kubectl gpu-fault run`"

// Chainsaw returns the experiment as a Kyverno Chainsaw test that runs this tool. more returns additional flags for a
// command line. Chainsaw returns an error if any part of the experiment cannot be expressed in such a way that the test
// passes if and only if the experiment does.
func (e *Experiment) Chainsaw(ctx context.Context, more func(line []string) []string) ([]byte, error) {
	switch {
	case e.Repeat > 1:
		return nil, errors.New(
			"repeat cannot be expressed in Chainsaw: remove it, and run `chainsaw test --repeat-count`")
	case len(e.Steady) > 0:
		return nil, errors.New("steady cannot be expressed in Chainsaw, which has no such checks; " + useRun)
	case e.Abort != Abort{}:
		return nil, errors.New(
			"abort cannot be expressed in Chainsaw, which observes nothing else while it waits; " + useRun)
	case len(e.Load) > 0:
		return nil, errors.New("load cannot be expressed in Chainsaw, which sends no requests; " + useRun)
	case len(e.SimulateRemediation) > 0:
		return nil, errors.New("simulateRemediation cannot be expressed in Chainsaw: " + useRun)
	case e.Target.Selector != "":
		return nil, errors.New(
			"target: a selector cannot be expressed in Chainsaw, because the nodes must be known in order to observe " +
				"reactions: specify --node")
	}
	c := &chainsaw{Experiment: e, more: more, step: chainsawStep{Name: e.Metadata.Name}}
	for i := 0; i < len(e.Steps); {
		next, err := c.block(ctx, i)
		if err != nil {
			return nil, err
		}
		i = next
	}
	for n := c.runs; n > 0; n-- {
		c.step.Finally = append(c.step.Finally, c.revertOperation(n, false))
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := encoder.Encode(chainsawTest{
		APIVersion: "chainsaw.kyverno.io/v1alpha1", Kind: "Test", Metadata: map[string]string{"name": e.Metadata.Name},
		Spec: chainsawSpec{Description: e.Description, Steps: []chainsawStep{c.step}},
	})
	return out.Bytes(), err
}

// block adds the part that begins at step i: an injection or a revert with all its expectations, or other steps. It
// returns the index of the next step.
func (c *chainsaw) block(ctx context.Context, i int) (next int, err error) {
	begins := func(s Step) bool { return s.Inject != nil || s.Revert != nil }
	next = len(c.Steps)
	if n := slices.IndexFunc(c.Steps[i+1:], begins); n >= 0 {
		next = i + 1 + n
	}
	first := i
	if begins(c.Steps[i]) {
		first++
	}
	var expected expectedOf
	for n, s := range c.Steps[first:next] {
		if err := expected.add(s, n > 0); err != nil {
			return next, fmt.Errorf("steps[%d]: %w", first+n, err)
		}
	}
	if err := c.begin(ctx, c.Steps[i], expected); err != nil {
		return next, fmt.Errorf("steps[%d]: %w", i, err)
	}
	for _, s := range c.Steps[first:next] {
		if s.Wait > 0 {
			c.step.Try = append(c.step.Try, chainsawOperation{Sleep: &chainsawSleep{s.Wait.Std().String()}})
		}
	}
	return next, nil
}

// begin adds an injection or a revert, with its expectations.
func (c *chainsaw) begin(ctx context.Context, s Step, expected expectedOf) error {
	switch {
	case s.Inject != nil:
		if err := c.inject(ctx, *s.Inject, expected); err != nil {
			return err
		}
	case expected.reactions():
		return errors.New(
			"a reaction without a preceding fault cannot be expressed in Chainsaw: only commands that inject a fault " +
				"observe reactions")
	case s.Revert != nil:
		c.revert()
	}
	if expected.node == nil {
		return nil
	}
	assert, err := c.assert(*expected.node)
	if err != nil {
		return err
	}
	one := chainsawOperation{Description: "expect " + expected.node.Name, Assert: assert}
	c.step.Try = append(c.step.Try, one)
	return nil
}

// expectedOf contains the expectations for a fault.
type expectedOf struct {
	expect, not, within []string
	limits              map[reaction.Name]time.Duration
	longest             time.Duration
	node                *Expectation
}

func (x *expectedOf) any() bool { return x.node != nil || x.reactions() }

func (x *expectedOf) reactions() bool { return len(x.expect)+len(x.not) > 0 }

// add adds the expectations of a step. later is set if there are other steps between the fault and this step.
func (x *expectedOf) add(s Step, later bool) error {
	if len(s.Parallel) > 0 {
		return errors.New("parallel cannot be expressed in Chainsaw, which runs operations one after another")
	}
	for _, e := range s.Expect {
		if err := x.one(e, false, later); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	for _, e := range s.ExpectNot {
		if err := x.one(e, true, later); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return nil
}

func (x *expectedOf) one(e Expectation, not, later bool) error {
	p, err := newPending(e, not)
	if err != nil {
		return err
	}
	switch {
	case e.Check != nil || e.Steady != "":
		return errors.New("a check cannot be expressed in Chainsaw, which has no such checks")
	case e.Node != nil && not:
		return errors.New(
			"expect-not with a node cannot be expressed in Chainsaw: Chainsaw's error operation passes as soon as " +
				"the node differs, and does not wait; expect a reaction instead")
	case e.Node != nil && p.test != nil:
		return errors.New("an expression over all nodes cannot be expressed in Chainsaw: specify a part of the node")
	case e.Node != nil && (x.any() || later):
		return errors.New(
			"a node expectation is supported only directly after a fault, without other expectations: Chainsaw's " +
				"timeout starts at the end of the previous operation")
	case e.Node != nil:
		x.node = &e
		return nil
	case x.node != nil:
		return errors.New(
			"reactions after a node expectation cannot be expressed in Chainsaw: the fault's command waits for the " +
				"reaction, so the waiting time would be counted twice")
	case e.Pod != "":
		return errors.New("pod cannot be expressed in Chainsaw: --expect has no such filter")
	}
	return x.reaction(p, not)
}

// reaction adds a word to --expect or --expect-not, and its time to --within.
func (x *expectedOf) reaction(p *pending, not bool) error {
	limit := p.limit()
	word := string(p.name)
	if p.By != "" {
		word += "=" + p.By
	}
	switch {
	case strings.ContainsAny(p.By, ",\"\n"):
		return fmt.Errorf("by %q cannot be expressed in Chainsaw: --expect is a comma-separated list", p.By)
	case limit < time.Second || limit > 24*time.Hour:
		return fmt.Errorf("%s cannot be expressed in Chainsaw: --within must be between 1s and 24h", limit)
	case slices.Contains(x.expect, word) || slices.Contains(x.not, word):
		return errors.New("the same reaction cannot be expected twice for one fault")
	case x.limits[p.name] != 0 && x.limits[p.name] != limit:
		return fmt.Errorf("%s cannot have two time limits: --within accepts one limit for each reaction", p.name)
	}
	if not {
		x.not = append(x.not, word)
	} else {
		x.expect = append(x.expect, word)
	}
	if x.limits == nil {
		x.limits = map[reaction.Name]time.Duration{}
	}
	if x.limits[p.name] == 0 {
		x.within = append(x.within, string(p.name)+"="+limit.String())
	}
	x.limits[p.name], x.longest = limit, max(x.longest, limit)
	return nil
}

// flags returns the flags that make a command wait for the reactions.
func (x *expectedOf) flags() []string {
	var flags []string
	for _, f := range []struct {
		name  string
		words []string
	}{{"expect", x.expect}, {"expect-not", x.not}, {"within", x.within}} {
		if len(f.words) > 0 {
			flags = append(flags, "--"+f.name+"="+strings.Join(f.words, ","))
		}
	}
	return flags
}

// inject adds the commands of an injection. The last one waits for the reactions.
func (c *chainsaw) inject(ctx context.Context, i Inject, expected expectedOf) error {
	ofWorkload := i.CUDA != "" && len(i.Layers) == 0
	if c.Target.Node == "" && !ofWorkload {
		return errors.New("target: specify --node, because Chainsaw does not find nodes")
	}
	lines, err := i.commands(ctx, c.Target, []string{c.Target.Node}, "RUN")
	if err != nil {
		return err
	}
	if expected.reactions() && len(lines) > 1 {
		return errors.New("reactions to faults in several layers cannot be expressed in Chainsaw: the command for " +
			"the last layer does not observe the first layer")
	}
	for _, line := range lines {
		isCUDA := line[0] == LayerCUDA
		switch {
		case slices.Contains(line, "RUN"), isCUDA && len(line) > 1 && line[1] != "inject":
			return errors.New("a command that changes an earlier run cannot be expressed in Chainsaw: " +
				"Chainsaw does not know which runs to revert")
		case isCUDA && expected.reactions():
			return errors.New("a reaction to a CUDA fault cannot be expressed in Chainsaw: " +
				"the cuda command does not support --expect")
		case isCUDA && c.Target.Namespace == "":
			return errors.New("the workload has no namespace: specify -n")
		}
		c.runs++
		c.open = append(c.open, c.runs)
		run := fmt.Sprintf("run%d", c.runs)
		c.step.Bindings = append(c.step.Bindings, chainsawBinding{run, ""})
		words := slices.Concat([]string{"kubectl", "gpu-fault"}, line, c.more(line), []string{"--yes", "--output=name"},
			expected.flags())
		c.step.Try = append(c.step.Try, chainsawOperation{
			Description: "inject " + strings.Join(line, " "),
			Script: &chainsawScript{
				Timeout: (injectTimeout + expected.longest).String(),
				Content: "run=$(" + quoted(words) + ") || {\n  code=$?\n" +
					"  [ -z \"$run\" ] || " + c.reverting("$run") + "\n  exit $code\n}\necho \"$run\"\n",
				Outputs: []chainsawBinding{{run, "(trim_space($stdout))"}},
			},
		})
	}
	return nil
}

// reverting returns the command that reverts a run.
func (c *chainsaw) reverting(run string) string {
	words := slices.Concat([]string{"kubectl", "gpu-fault", "revert"}, c.more([]string{"revert"}))
	return quoted(words) + ` "` + run + `" --yes`
}

// revert adds operations that revert the open runs, newest first.
func (c *chainsaw) revert() {
	for _, n := range slices.Backward(c.open) {
		c.step.Try = append(c.step.Try, c.revertOperation(n, true))
	}
	c.open = nil
}

// revertOperation returns an operation that reverts a run, unless the run was not opened or has already been reverted.
func (c *chainsaw) revertOperation(n int, forget bool) chainsawOperation {
	run := fmt.Sprintf("run%d", n)
	s := &chainsawScript{
		Timeout: revertTimeout.String(), Env: []chainsawBinding{{"RUN", "($" + run + ")"}},
		Content: `[ -z "$RUN" ] || ` + c.reverting("$RUN"),
	}
	if forget {
		s.Outputs = []chainsawBinding{{run, ""}}
	}
	return chainsawOperation{Description: "revert " + run, Script: s}
}

// plain matches words that a shell does not interpret.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+-]+$`)

// quoted returns words as a command line for a POSIX shell.
func quoted(words []string) string {
	var all []string
	for _, word := range words {
		if !plain.MatchString(word) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		all = append(all, word)
	}
	return strings.Join(all, " ")
}
