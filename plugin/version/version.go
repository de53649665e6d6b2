// Package version implements `kubectl gpu-fault version`.
package version

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// report is the output of the command.
type report struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Client     build.Info `json:"client"`
	// DebugImage is the default image of the debug pod.
	DebugImage string `json:"debugImage"`
	// Helpers contains the SHA-256 digests of the embedded helpers by architecture.
	Helpers map[string]string `json:"helpers,omitempty"`
	Server  string            `json:"server,omitempty"`
}

// NewCommand returns `version`.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	var (
		clientOnly bool
		format     printer.Format
	)
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the plugin and the cluster",
		Example: `  # Print both
  kubectl gpu-fault version

  # Print only the plugin version, without connecting to the cluster
  kubectl gpu-fault version --client`,
		Args: usage.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			r := report{
				APIVersion: ledger.APIVersion, Kind: "Version", Client: build.Get(), DebugImage: debugpod.DefaultImage,
			}
			if !clientOnly {
				server, err := serverVersion(connection)
				switch {
				case errors.Is(err, kube.ErrNoKubeconfig): // print only the client version
				case err != nil:
					return fmt.Errorf("%w (pass --client to print only the version of the plugin)", err)
				}
				r.Server = server
			}
			if format.IsTable() {
				return r.write(streams)
			}
			// Only these formats include the digests of the helpers, because computing the digests is slow.
			helpers, err := helper.Digests()
			if err != nil {
				return err
			}
			r.Helpers = helpers
			return format.Object(streams.Out, r, r.Client.Version)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false,
		"Print only the version of the plugin, without connecting to the cluster")
	format.AddFlags(cmd)
	return cmd
}

func serverVersion(connection *kube.Connection) (string, error) {
	cluster, err := connection.Cluster()
	if err != nil {
		return "", err
	}
	v, err := cluster.Client.Discovery().ServerVersion()
	if err != nil {
		return "", kube.Explain(err)
	}
	return v.GitVersion, nil
}

func (r report) write(streams genericiooptions.IOStreams) error {
	fmt.Fprintf(streams.Out, "Client:       %s (commit %s, %s, %s)\n", r.Client.Version, r.Client.Commit, r.Client.Go,
		r.Client.Platform)
	fmt.Fprintf(streams.Out, "Debug image:  %s\n", r.DebugImage)
	helpers := strings.Join(helper.Architectures(), ", ")
	if helpers == "" {
		helpers = "none: build with `make build`"
	}
	fmt.Fprintf(streams.Out, "Node helpers: %s\n", helpers)
	if r.Server != "" {
		fmt.Fprintf(streams.Out, "Server:       %s\n", r.Server)
	}
	return nil
}
