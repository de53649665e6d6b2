package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

func newBuildCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "build [FOLDER]",
		Short: "Show the image's digests, or write it into a folder",
		Long: `Make the image and show its digests and sizes, as nodes pull them. With FOLDER it is also written there as an OCI layout, for tools
such as oras, skopeo and crane. Nothing is sent anywhere.`,
		Example: `  # Which digest will the image have?
  kubectl gpu-fault image build

  # Write it as an OCI layout
  kubectl gpu-fault image build ./gpu-fault-node`,
		Args: usage.MaxArgs(1, "one folder", "kubectl gpu-fault image build ./gpu-fault-node"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			if len(args) == 1 {
				if err := checkFolder(args[0]); err != nil {
					return err
				}
			}
			img, err := newImage()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if err := img.WriteLayout(args[0], img.Tag); err != nil {
					return err
				}
				printer.Talk(streams.ErrOut, "written to %s", args[0])
			}
			r := reportOf(img, "", img.Tag)
			if format.IsTable() {
				return r.table(format).Write(streams.Out)
			}
			return format.Object(streams.Out, r, r.Digest)
		},
	}
	format.AddFlags(cmd)
	return cmd
}

// checkFolder wants one that is not there, or empty: nothing of others is mixed up.
func checkFolder(path string) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return fmt.Errorf("%s cannot be the folder to write to: %w", path, err)
	}
	return fmt.Errorf("folder %s is not empty: remove it, or choose another", path)
}
