// Package podflags provides the flags for debug pods, and starts these pods.
package podflags

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/image"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// Flags are --image, --image-pull-policy, --image-pull-secret and --timeout.
type Flags struct {
	Image   string
	Pull    string
	Secrets []string
	// Timeout is the timeout per node, including starting its pod.
	Timeout time.Duration
	// AnyBuild allows images from other builds of this tool, which may be needed to undo changes that those builds
	// made.
	AnyBuild bool
}

// New returns the default values.
func New() Flags {
	return Flags{Image: debugpod.DefaultImage, Pull: string(corev1.PullIfNotPresent), Timeout: 2 * time.Minute}
}

// AddFlags registers the flags.
func (f *Flags) AddFlags(cmd *cobra.Command) {
	f.AddImageFlags(cmd)
	cmd.Flags().DurationVar(&f.Timeout, "timeout", f.Timeout, "Timeout per node, including starting the debug pod")
}

// OtherImage returns " with image ..." if the image is not the default, and "" otherwise. Users must see the image
// because it runs as root on the node and may be set by an environment variable.
func (f *Flags) OtherImage() string {
	if f.Image == debugpod.DefaultImage {
		return ""
	}
	return fmt.Sprintf(" with image %q", f.Image)
}

// AddImageFlags registers only the flags for the image, for commands with a different --timeout.
func (f *Flags) AddImageFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Image, "image", f.Image,
		"Image of the debug pod: one from kubectl gpu-fault image, or any with sh, head, wc, printf and chmod (default: busybox pinned by digest; kubectl gpu-fault version prints it)")
	flags.Lookup("image").DefValue = "" // a digest is too long to show on a terminal
	flags.StringVar(&f.Pull, "image-pull-policy", f.Pull, "Pull policy of the image: Always, IfNotPresent or Never")
	flags.StringSliceVar(&f.Secrets, "image-pull-secret", f.Secrets,
		"Secrets in the ledger namespace for pulling the image")
	_ = cmd.RegisterFlagCompletionFunc("image-pull-policy",
		cobra.FixedCompletions([]string{"Always", "IfNotPresent", "Never"}, cobra.ShellCompDirectiveNoFileComp))
}

// The limits of --timeout. A pod cannot start within less than the minimum.
const (
	shortest = 5 * time.Second
	longest  = 24 * time.Hour
)

// Validate checks the flags.
func (f *Flags) Validate() error {
	switch f.Pull {
	case "Always", "IfNotPresent", "Never":
	default:
		return fmt.Errorf("invalid value %q for --image-pull-policy: supported values: Always, IfNotPresent, Never",
			f.Pull)
	}
	if _, err := f.hasHelper(); err != nil && !(f.AnyBuild && errors.As(err, new(*image.OtherError))) {
		return fmt.Errorf("--image: %w", err)
	}
	if f.Timeout < shortest || f.Timeout > longest {
		return fmt.Errorf("invalid value %s for --timeout: must be %s to %s", f.Timeout, shortest, longest)
	}
	return nil
}

// hasHelper reports whether the image is the one that this build produces. It does not check the default image, because
// comparing digests would require building the image for each pod.
func (f *Flags) hasHelper() (bool, error) {
	if f.Image == debugpod.DefaultImage {
		return false, nil
	}
	return image.HasHelper(f.Image, own)
}

// own returns the image of this build. Building it takes 0.1 s.
var own = sync.OnceValues(func() (*image.Image, error) { return image.New(helper.For, helper.Architectures()) })

// Spec returns the debug pod of a run on a node, without the fields that require a request to the cluster.
func (f *Flags) Spec(run, nodeName, namespace string) debugpod.Spec {
	inside, err := f.hasHelper()
	// With AnyBuild, the change to undo may have been made by another build.
	others := errors.As(err, new(*image.OtherError))
	return debugpod.Spec{
		HasHelper: inside || others, AnyHelper: others,
		Run: run, Node: nodeName, Namespace: namespace,
		Image: f.Image, PullPolicy: corev1.PullPolicy(f.Pull), PullSecrets: f.Secrets, Deadline: f.Timeout,
	}
}

// Announcement returns the message that read-only commands print before starting debug pods, instead of asking for
// confirmation.
func (f *Flags) Announcement(namespace string, nodes []string) string {
	const shown = 5
	names := strings.Join(nodes[:min(shown, len(nodes))], ", ")
	if rest := len(nodes) - shown; rest > 0 {
		names += " and " + count.Of(rest, "more node")
	}
	return fmt.Sprintf("reading %s (%s) with a privileged pod on each (image %s, namespace %s); the pods are deleted afterwards, and nothing on the nodes is changed",
		count.Of(len(nodes), "node"), names, f.Image, namespace)
}

// Start creates the pod of a spec and waits until it is running.
func (f *Flags) Start(
	ctx context.Context, cluster *kube.Cluster, spec debugpod.Spec, progress func(string),
) (*debugpod.Session, error) {
	arch, err := architecture(ctx, cluster, spec.Node)
	if err != nil {
		return nil, err
	}
	spec.Arch = arch
	runner := debugpod.NewRunner(cluster.Client, cluster.Config, helper.For)
	runner.Sum, runner.StartTimeout, runner.Progress = helper.Sum, f.Timeout, progress
	return runner.Start(ctx, spec)
}

// Try checks with a dry run whether the API server admits the pod. This covers permissions, Pod Security, quotas and
// policies. Try returns nil if the node or the namespace does not exist, because the preflight of the run handles these
// cases.
func (f *Flags) Try(ctx context.Context, cluster *kube.Cluster, spec debugpod.Spec) error {
	arch, err := architecture(ctx, cluster, spec.Node)
	if err != nil || arch == "" {
		return nil
	}
	_, err = cluster.Client.CoreV1().Namespaces().Get(ctx, spec.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	spec.Arch = arch
	return debugpod.NewRunner(cluster.Client, cluster.Config, helper.For).DryRun(ctx, spec)
}

// architecture returns the architecture of a node, which determines the helper.
func architecture(ctx context.Context, cluster *kube.Cluster, name string) (string, error) {
	n, err := cluster.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get node %s: %w", name, err)
	}
	return n.Status.NodeInfo.Architecture, nil
}
