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
	var (
		content content
		format  printer.Format
	)
	cmd := &cobra.Command{
		Use:   "build [DIRECTORY]",
		Short: "Show the image's digests, or write the image to a directory",
		Long: `Build the image and show its digests and sizes, which pushing does not change. With DIRECTORY, the command also writes the image as an OCI layout, for
tools such as oras, skopeo and crane. Nothing is uploaded.`,
		Example: `  # Show the digests of the image
  kubectl gpu-fault image build

  # Write the image as an OCI layout
  kubectl gpu-fault image build ./gpu-fault-node`,
		Args: usage.MaxArgs(1, "one directory", "kubectl gpu-fault image build ./gpu-fault-node"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			if len(args) == 1 {
				if err := checkFolder(args[0]); err != nil {
					return err
				}
			}
			img, err := content.build()
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
	content.addFlag(cmd.Flags())
	format.AddFlags(cmd)
	return cmd
}

// checkFolder returns an error unless the directory is empty or does not exist.
func checkFolder(path string) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return fmt.Errorf("cannot write to directory %s: %w", path, err)
	}
	return fmt.Errorf("directory %s is not empty: remove it or specify another one", path)
}
