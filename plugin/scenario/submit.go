package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

func (c *common) newSubmitCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "submit [ID] (--diagnosis FILE)",
		Short: "Hand in the diagnosis: which part, which object, which field, and how it breaks",
		Long: `Hand in the diagnosis. It is compared with the root cause field by field, where case, punctuation and the usual other names do not count.
On a terminal it asks for the fields; a file has them as YAML or JSON:

    component: scheduler            # workload, scheduler, image, device-plugin, runtime, network, rbac, monitoring, hardware, none
    object: Deployment/trainer
    field: spec.template.spec.nodeSelector
    mechanism: selects-a-label-that-no-node-has
    explanation: in your own words, for the interviewer

It may be handed in again until the exercise ends: the last one counts.`,
		Example: `  kubectl gpu-fault scenario submit

  kubectl gpu-fault scenario submit --diagnosis diagnosis.yaml`,
		Args: atMostOne("submit"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.submit(cmd.Context(), one(args), file)
		},
		ValidArgsFunction: c.completeExercises,
	}
	cmd.Flags().StringVarP(&file, "diagnosis", "d", "", "File with the diagnosis; - for stdin")
	_ = cmd.MarkFlagFilename("diagnosis", "yaml", "yml", "json")
	return cmd
}

func (c *common) submit(ctx context.Context, id, file string) error {
	lab, err := c.lab(ctx)
	if err != nil {
		return err
	}
	e, err := lab.Get(ctx, id)
	if err != nil {
		return kube.Explain(err)
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

// mostDiagnosis bounds what is read: a diagnosis is a few lines.
const mostDiagnosis = 64 << 10

func (c *common) readDiagnosis(file string) (d scenario.Diagnosis, err error) {
	in := c.streams.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return d, fmt.Errorf("--diagnosis: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, mostDiagnosis+1))
	switch {
	case err != nil:
		return d, fmt.Errorf("--diagnosis %s: %w", file, err)
	case len(data) > mostDiagnosis:
		return d, fmt.Errorf("--diagnosis %s: it has more than %d KiB; a few lines will do", file, mostDiagnosis>>10)
	}
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		return d, fmt.Errorf("--diagnosis %s: %w; the fields are component, object, field, mechanism and explanation", file, err)
	}
	if d == (scenario.Diagnosis{}) {
		return d, fmt.Errorf("--diagnosis %s: it is empty; the fields are component, object, field, mechanism and explanation", file)
	}
	return d, nil
}

// askDiagnosis asks for the fields on a terminal.
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

// chosen is a choice by its number, or what was typed.
func chosen(line string, choices []string) string {
	if n, err := strconv.Atoi(line); err == nil && n >= 1 && n <= len(choices) {
		return choices[n-1]
	}
	return line
}
