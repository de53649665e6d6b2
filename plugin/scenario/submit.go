package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

func (c *common) newSubmitCommand() *cobra.Command {
	var file, module string
	cmd := &cobra.Command{
		Use:   "submit [ID] [--diagnosis FILE] [--terraform DIR]",
		Short: "Submit the diagnosis: component, object, field and mechanism",
		Long: `Submit the diagnosis. The diagnosis is compared with the root cause field by field, ignoring case, punctuation and common synonyms. On a terminal, the
command prompts for the fields; a file contains them as YAML or JSON:

  # workload, scheduler, image, device-plugin, runtime, network, rbac, monitoring, hardware, none
  component: scheduler
  object: Deployment/trainer
  field: spec.template.spec.nodeSelector
  mechanism: selects-a-label-that-no-node-has
  explanation: in your own words, for the interviewer

With --terraform, it also submits the Terraform module of an exercise that was started with one. The module is evaluated, but no code in it
runs. grade first applies the module's objects to the cluster with the candidate's permissions, like terraform apply, and then grades the cluster as usual. An
unchanged module therefore reverts what the candidate fixed in the cluster.

The diagnosis can be submitted again until the exercise ends; the last submission counts. If the cluster does not change between submission and
grading, the candidate's time ends at the submission; otherwise, it ends at grading. If the candidate has root access to nodes, the time always ends at
grading.`,
		Example: `  # Answer the questions on the terminal
  kubectl gpu-fault scenario submit

  # Submit a file
  kubectl gpu-fault scenario submit --diagnosis diagnosis.yaml

  # Also submit the fixed Terraform module
  kubectl gpu-fault scenario submit --diagnosis diagnosis.yaml --terraform module`,
		Args: atMostOne("submit"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.submit(cmd.Context(), one(args), file, module)
		},
		ValidArgsFunction: c.completeExercises,
	}
	cmd.Flags().StringVarP(&file, "diagnosis", "d", "", "File with the diagnosis, or - for stdin")
	cmd.Flags().StringVar(&module, "terraform", "", "Directory of the module that start --terraform wrote, with the candidate's changes")
	_ = cmd.MarkFlagFilename("diagnosis", "yaml", "yml", "json")
	_ = cmd.MarkFlagDirname("terraform")
	return cmd
}

func (c *common) submit(ctx context.Context, id, file, folder string) error {
	var module *terraform.Module
	if folder != "" { // errors in the module's text can be found without a cluster
		var err error
		if module, err = terraform.ReadFolder(folder); err != nil {
			return fmt.Errorf("--terraform %s: %w", folder, err)
		}
	}
	lab, err := c.lab(ctx)
	if err != nil {
		return err
	}
	e, err := lab.Get(ctx, id)
	if err != nil {
		return kube.Explain(err)
	}
	if module != nil {
		if _, err := lab.SubmitModule(ctx, e.ID, *module); err != nil {
			return kube.Explain(err)
		}
		printer.Talk(c.streams.ErrOut,
			"Submitted the module for exercise %s; scenario grade applies it to the cluster before grading.", e.ID)
		if file == "" {
			return nil
		}
	}
	var d scenario.Diagnosis
	if file != "" {
		d, err = c.readDiagnosis(file)
	} else {
		d, err = c.askDiagnosis(ctx, e.Public.Choices)
	}
	if err != nil {
		return err
	}
	if _, err := lab.Submit(ctx, e.ID, d); err != nil {
		return kube.Explain(err)
	}
	printer.Talk(c.streams.ErrOut, "Submitted the diagnosis for exercise %s.", e.ID)
	return nil
}

func (c *common) readDiagnosis(file string) (scenario.Diagnosis, error) {
	in := c.streams.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return scenario.Diagnosis{}, fmt.Errorf("--diagnosis: %w", err)
		}
		defer f.Close()
		in = f
	}
	d, err := scenario.ReadDiagnosis(in)
	if err == nil && d == (scenario.Diagnosis{}) {
		err = errors.New("the diagnosis is empty; its fields are component, object, field, mechanism and explanation")
	}
	if err != nil {
		return d, fmt.Errorf("--diagnosis %s: %w", file, err)
	}
	return d, nil
}

// askDiagnosis prompts for the fields on a terminal.
func (c *common) askDiagnosis(ctx context.Context, choices scenario.Choices) (d scenario.Diagnosis, err error) {
	if f, ok := c.streams.In.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return d, errors.New("stdin is not a terminal: specify --diagnosis FILE, or - for stdin")
	}
	in := bufio.NewReader(c.streams.In)
	for _, q := range []struct {
		text    string
		choices []string
		into    *string
	}{
		{"Which component is broken?", choices.Component, &d.Component},
		{"Which object, as KIND/NAME?", nil, &d.Object},
		{"Which field or setting of the object?", nil, &d.Field},
		{"What is wrong with it?", choices.Mechanism, &d.Mechanism},
		{"Your explanation, for the interviewer (optional):", nil, &d.Explanation},
	} {
		fmt.Fprintln(c.streams.ErrOut, q.text)
		for i, choice := range q.choices {
			fmt.Fprintf(c.streams.ErrOut, "  %d  %s\n", i+1, choice)
		}
		fmt.Fprint(c.streams.ErrOut, "> ")
		line, readErr := in.ReadString('\n')
		if ctx.Err() != nil || readErr != nil && line == "" {
			return d, errors.New("nothing was submitted")
		}
		*q.into = chosen(strings.TrimSpace(line), q.choices)
	}
	return d, nil
}

// chosen returns the choice with the entered number, or the input itself.
func chosen(line string, choices []string) string {
	if n, err := strconv.Atoi(line); err == nil && n >= 1 && n <= len(choices) {
		return choices[n-1]
	}
	return line
}
