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
		Short: "Hand in the diagnosis: which part, which object, which field, and how it breaks",
		Long: `Hand in the diagnosis. It is compared with the root cause field by field, where case, punctuation and the usual other names do not count.
On a terminal it asks for the fields; a file has them as YAML or JSON:

    # workload, scheduler, image, device-plugin, runtime, network, rbac, monitoring, hardware, none
    component: scheduler
    object: Deployment/trainer
    field: spec.template.spec.nodeSelector
    mechanism: selects-a-label-that-no-node-has
    explanation: in your own words, for the interviewer

With --terraform it also hands in the module of an exercise that was started with one; with --terraform alone only that. The module is read
and evaluated, and nothing of it is run: grade first brings its objects into the cluster with the candidate's own rights, as terraform apply
would do it, and then looks at the cluster as always. A module that is as broken as it was breaks again what was mended in the cluster.

It may be handed in again until the exercise ends: the last one counts. It ends the candidate's time, if nothing that they may change is different
when it is graded; else their time ends then. Where they are root on nodes nobody can tell, and it ends when it is graded.`,
		Example: `  kubectl gpu-fault scenario submit

  kubectl gpu-fault scenario submit --diagnosis diagnosis.yaml

  # What was mended is the Terraform module
  kubectl gpu-fault scenario submit --diagnosis diagnosis.yaml --terraform module`,
		Args: atMostOne("submit"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.submit(cmd.Context(), one(args), file, module)
		},
		ValidArgsFunction: c.completeExercises,
	}
	cmd.Flags().StringVarP(&file, "diagnosis", "d", "", "File with the diagnosis; - for stdin")
	cmd.Flags().StringVar(&module, "terraform", "", "Folder with the module that start --terraform wrote, mended")
	_ = cmd.MarkFlagFilename("diagnosis", "yaml", "yml", "json")
	_ = cmd.MarkFlagDirname("terraform")
	return cmd
}

func (c *common) submit(ctx context.Context, id, file, folder string) error {
	var module *terraform.Module
	if folder != "" { // errors in the text can be found without a cluster
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
			"The module of exercise %s is handed in: grade applies it to the cluster, and then looks.", e.ID)
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
	printer.Talk(c.streams.ErrOut, "The diagnosis of exercise %s is handed in.", e.ID)
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
		err = errors.New("it is empty; the fields are component, object, field, mechanism and explanation")
	}
	if err != nil {
		return d, fmt.Errorf("--diagnosis %s: %w", file, err)
	}
	return d, nil
}

// askDiagnosis prompts for the fields on a terminal.
func (c *common) askDiagnosis(ctx context.Context, choices scenario.Choices) (d scenario.Diagnosis, err error) {
	if f, ok := c.streams.In.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return d, errors.New("there is no terminal to ask on: give --diagnosis FILE, or - for stdin")
	}
	in := bufio.NewReader(c.streams.In)
	for _, q := range []struct {
		text    string
		choices []string
		into    *string
	}{
		{"Which part of the stack is at fault?", choices.Component, &d.Component},
		{"Which object, as KIND/NAME?", nil, &d.Object},
		{"Which field or setting of it?", nil, &d.Field},
		{"How does it break?", choices.Mechanism, &d.Mechanism},
		{"In your own words, for the interviewer (may be empty):", nil, &d.Explanation},
	} {
		fmt.Fprintln(c.streams.ErrOut, q.text)
		for i, choice := range q.choices {
			fmt.Fprintf(c.streams.ErrOut, "  %d  %s\n", i+1, choice)
		}
		fmt.Fprint(c.streams.ErrOut, "> ")
		line, readErr := in.ReadString('\n')
		if ctx.Err() != nil || readErr != nil && line == "" {
			return d, errors.New("nothing was handed in")
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
