// Package image implements `kubectl gpu-fault image`, which builds the image of the debug pod with the node helper,
// without Docker.
package image

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/image"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewCommand returns `image`.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Build the debug pod's image, for private registries and air-gapped sites",
		Long: `Build the debug pod's image with the node helper inside, and push it to a registry or save it to a file. Docker is not needed.

By default, debug pods run a stock image, and the helper is streamed into them. With this image (--image or KUBECTL_GPU_FAULT_IMAGE), nothing is
streamed, and nodes pull only from a registry of your choice. The image contains only the helper, for linux/amd64 and linux/arm64:
no shell and no third-party files.

A given build of the plugin always produces the same image and digest. It recognizes the image by the digest or by the tag: gpu-fault- and
the first digits of the digest. Each build of the plugin has a different helper, so rebuild the image after an upgrade.

With --with-plugin, the image also contains the plugin itself, which --in-cluster runs near the API server. Such an image is recognized by its
tag.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[:1])
			}
			return cmd.Help()
		},
		Example: `  # Push the image to your registry, and use it
  kubectl gpu-fault image push registry.example.com/tools/gpu-fault-node
  export KUBECTL_GPU_FAULT_IMAGE=registry.example.com/tools/gpu-fault-node:gpu-fault-0123456789ab`,
	}
	cmd.AddCommand(newBuildCommand(streams), newPushCommand(streams), newSaveCommand(streams))
	return cmd
}

// report is the output of the commands.
type report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Image is the value for --image, with the digest unless the archive format does not keep it.
	Image     string           `json:"image,omitempty"`
	Digest    string           `json:"digest"`
	Tag       string           `json:"tag"`
	Platforms []image.Platform `json:"platforms"`
}

func reportOf(img *image.Image, name, tag string) report {
	return report{
		APIVersion: ledger.APIVersion, Kind: "DebugImage",
		Image: name, Digest: img.Digest.String(), Tag: tag, Platforms: img.Platforms,
	}
}

func (r report) table(format printer.Format) *printer.Table {
	table := &printer.Table{Header: []string{"PLATFORM", "DIGEST", "SIZE"}, NoHeader: format.NoHeader}
	for _, p := range r.Platforms {
		table.Add(p.Name, p.Digest, megabytes(p.Size))
	}
	table.Add("all", r.Digest, megabytes(r.bytes()))
	return table
}

func (r report) bytes() (sum int64) {
	for _, p := range r.Platforms {
		sum += p.Size
	}
	return sum
}
