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
		content  content
		format   printer.Format
	)
	cmd := &cobra.Command{
		Use:   "push REPOSITORY[:TAG]",
		Short: "Push the image to a registry",
		Long: `Build the image for all platforms and push it to a registry, with the credentials of docker login or podman login. The command prints
the value for --image. The value includes the digest, so that nodes run exactly this image even if the tag is moved.

Without :TAG, the image gets its default tag. The plugin recognizes this tag even without the digest.`,
		Example: `  # Push the image, and use it from then on
  image=$(kubectl gpu-fault image push registry.example.com/tools/gpu-fault-node)
  export KUBECTL_GPU_FAULT_IMAGE=$image

  # Push the image with your own tag
  kubectl gpu-fault image push registry.example.com/tools/gpu-fault-node:prod

  # Push an image that also contains the plugin, for --in-cluster
  kubectl gpu-fault image push registry.example.com/tools/gpu-fault-node --with-plugin`,
		Args: usage.ExactArgs(1, "one repository",
			"kubectl gpu-fault image push registry.example.com/tools/gpu-fault-node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			if timeout <= 0 {
				return fmt.Errorf("invalid value %s for --timeout: must be greater than 0s", timeout)
			}
			img, err := content.build()
			if err != nil {
				return err
			}
			tag, err := img.ParseTag(args[0], insecure)
			if err != nil {
				return err
			}
			if err := content.checkTag(img, tag.TagStr()); err != nil {
				return err
			}
			if repository := tag.RepositoryStr(); tag.RegistryStr() == name.DefaultRegistry &&
				strings.HasPrefix(repository, "library/") {
				return fmt.Errorf("invalid repository %q: must include a registry, such as registry.example.com/tools/%s",
					args[0],
					strings.TrimPrefix(repository, "library/"))
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout,
				fmt.Errorf("timed out after %s (--timeout)", timeout))
			defer cancel()
			r := reportOf(img, image.CRIName(tag)+"@"+img.Digest.String(), tag.TagStr())
			for _, p := range r.Platforms {
				printer.Talk(streams.ErrOut, "pushing %s for %s, %s", tag, p.Name, megabytes(p.Size))
			}
			if err := img.Push(ctx, tag, authn.DefaultKeychain); err != nil {
				return err
			}
			printer.Talk(streams.ErrOut, "pushed; if the registry requires credentials, also pass --image-pull-secret")
			if format.IsTable() {
				_, err := fmt.Fprintln(streams.Out, r.Image)
				return err
			}
			return format.Object(streams.Out, r, r.Image)
		},
	}
	content.addFlag(cmd.Flags())
	cmd.Flags().BoolVar(&insecure, "insecure", false, "Use HTTP if the registry does not support HTTPS")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "Timeout for the entire push")
	format.AddFlags(cmd)
	return cmd
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
