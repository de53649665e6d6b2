package scenario

import (
	"errors"
	"fmt"
	"os"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

func (c *common) newExportCommand() *cobra.Command {
	var (
		pack       packFlags
		recipients []string
		out        string
	)
	cmd := &cobra.Command{
		Use:   "export NAME --recipient AGE",
		Short: "Write a scenario to a file, with the answer encrypted",
		Long: `Write a scenario to a file whose sealed half is encrypted (age, X25519). Anyone can read the public half. Only someone with a recipient's
identity can start the scenario or read the answer.`,
		Example: `  # Create a key for the interviewers
  age-keygen -o interviewers.key

  # Encrypt a scenario, and start it
  kubectl gpu-fault scenario export gpu-memory --recipient age1... --out gpu-memory.sealed.yaml
  kubectl gpu-fault scenario start --file gpu-memory.sealed.yaml --identity interviewers.key`,
		Args: usage.MaxArgs(1, "one scenario", "kubectl gpu-fault scenario export gpu-memory --recipient age1..."),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := pack.load(one(args))
			if err != nil {
				return err
			}
			if len(recipients) == 0 {
				return errors.New(
					"specify --recipient AGE, a public key whose private key can decrypt the answer; age-keygen " +
						"creates both",
				)
			}
			var to []age.Recipient
			for _, text := range recipients {
				r, err := age.ParseX25519Recipient(text)
				if err != nil {
					return fmt.Errorf("--recipient %s: %w; must be a public key that begins with age1", text, err)
				}
				to = append(to, r)
			}
			if out == "" {
				// so that another installation of kubectl gpu-fault can read it
				return scenario.Export(printer.Raw(c.streams.Out), s, to...)
			}
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if err != nil {
				return fmt.Errorf("--out: %w", err)
			}
			if err := errors.Join(scenario.Export(f, s, to...), f.Close()); err != nil {
				return err
			}
			printer.Talk(c.streams.ErrOut, "wrote %s", out)
			return nil
		},
		ValidArgsFunction: completeNames,
	}
	pack.addFlags(cmd)
	cmd.Flags().StringSliceVarP(&recipients, "recipient", "r", nil, "age public keys to encrypt the answer for")
	cmd.Flags().StringVar(&out, "out", "", "File to write; must not exist (default: stdout)")
	return cmd
}
