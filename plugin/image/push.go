package image

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/image"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

func newPushCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var (
		insecure bool
		timeout  = 5 * time.Minute
		format   printer.Format
	)
	cmd := &cobra.Command{
		Use:   "push REPOSITORY[:TAG]",
		Short: "Push the image to a registry",
		Long: `Make the image and push it to a registry, for all platforms, with the credentials of docker login or podman login. Printed is what
--image takes: with the digest, so that nodes run nothing else whoever moves the tag.

Without :TAG it gets the image's own, by which the plugin knows it also where the digest is left off.`,
		Example: `  # Push it, and use it from now on
  image=$(kubectl gpu-fault image push registry.example.com/tools/gpu-fault-node)
  export KUBECTL_GPU_FAULT_IMAGE=$image

  # Under a tag of your own
  kubectl gpu-fault image push registry.example.com/tools/gpu-fault-node:prod`,
		Args: usage.ExactArgs(1, "one repository",
			"kubectl gpu-fault image push registry.example.com/tools/gpu-fault-node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			if timeout <= 0 {
				return fmt.Errorf("--timeout %s: give more than 0s", timeout)
			}
			img, err := newImage()
			if err != nil {
				return err
			}
			tag, err := img.ParseTag(args[0], insecure)
			if err != nil {
				return err
			}
			if repository := tag.RepositoryStr(); tag.RegistryStr() == name.DefaultRegistry &&
				strings.HasPrefix(repository, "library/") {
				return fmt.Errorf("%q names no registry, as in: registry.example.com/tools/%s", args[0],
					strings.TrimPrefix(repository, "library/"))
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout,
				fmt.Errorf("not done within %s (--timeout)", timeout))
			defer cancel()
			r := reportOf(img, image.CRIName(tag)+"@"+img.Digest.String(), tag.TagStr())
			for _, p := range r.Platforms {
				printer.Talk(streams.ErrOut, "pushing %s for %s, %s", tag, p.Name, megabytes(p.Size))
			}
			if err := img.Push(ctx, tag, authn.DefaultKeychain); err != nil {
				return err
			}
			printer.Talk(streams.ErrOut, "pushed; nodes that must log in to pull it need --image-pull-secret, too")
			if format.IsTable() {
				_, err := fmt.Fprintln(streams.Out, r.Image)
				return err
			}
			return format.Object(streams.Out, r, r.Image)
		},
	}
	cmd.Flags().BoolVar(&insecure, "insecure", false, "Use HTTP where the registry has no HTTPS")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "Time for all of it")
	format.AddFlags(cmd)
	return cmd
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
