// Package podflags is the flags that say how debug pods are started, and starts them.
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
	// Timeout is for one node, with the start of its pod.
	Timeout time.Duration
	// AnyBuild also takes images that another build of this tool made, as may be needed to undo what it did.
	AnyBuild bool
}

// New returns the defaults.
func New() Flags {
	return Flags{Image: debugpod.DefaultImage, Pull: string(corev1.PullIfNotPresent), Timeout: 2 * time.Minute}
}

// AddFlags registers the flags.
func (f *Flags) AddFlags(cmd *cobra.Command) {
	f.AddImageFlags(cmd)
	cmd.Flags().DurationVar(&f.Timeout, "timeout", f.Timeout, "Time for one node, with the start of its debug pod")
}

// OtherImage names the image of the debug pods in a plan, if it is not the default one: it runs as root on the node,
// and the environment may have chosen it. It is empty, or begins with a blank.
func (f *Flags) OtherImage() string {
	if f.Image == debugpod.DefaultImage {
		return ""
	}
	return fmt.Sprintf(" with image %q", f.Image)
}

// AddImageFlags registers those that choose the image, for commands whose --timeout is about something else.
func (f *Flags) AddImageFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Image, "image", f.Image,
		"Image of the debug pod: one of kubectl gpu-fault image, or one with sh, head, wc, printf and chmod (default: a busybox pinned by digest; kubectl gpu-fault version prints it)")
	flags.Lookup("image").DefValue = "" // a digest is wider than a terminal
	flags.StringVar(&f.Pull, "image-pull-policy", f.Pull, "Pull policy of the image: Always, IfNotPresent or Never")
	flags.StringSliceVar(&f.Secrets, "image-pull-secret", f.Secrets,
		"Secrets of the ledger namespace to pull the image with")
	_ = cmd.RegisterFlagCompletionFunc("image-pull-policy",
		cobra.FixedCompletions([]string{"Always", "IfNotPresent", "Never"}, cobra.ShellCompDirectiveNoFileComp))
}

// The limits of --timeout: less is over before a pod runs, and more is no test any more.
const (
	shortest = 5 * time.Second
	longest  = 24 * time.Hour
)

// Validate checks the flags.
func (f *Flags) Validate() error {
	switch f.Pull {
	case "Always", "IfNotPresent", "Never":
	default:
		return fmt.Errorf("--image-pull-policy=%s: choose Always, IfNotPresent or Never", f.Pull)
	}
	if _, err := f.hasHelper(); err != nil && !(f.AnyBuild && errors.As(err, new(*image.OtherError))) {
		return fmt.Errorf("--image: %w", err)
	}
	if f.Timeout < shortest || f.Timeout > longest {
		return fmt.Errorf("--timeout %s: give %s to %s", f.Timeout, shortest, longest)
	}
	return nil
}

// hasHelper reports whether the image is the one that this build makes. The default is pinned by digest, too, and to
// compare digests this build's image would be made at every start of a pod.
func (f *Flags) hasHelper() (bool, error) {
	if f.Image == debugpod.DefaultImage {
		return false, nil
	}
	return image.HasHelper(f.Image, own)
}

// own is the image that this build makes, which takes a tenth of a second.
var own = sync.OnceValues(func() (*image.Image, error) { return image.New(helper.For, helper.Architectures()) })

// Spec returns the debug pod of a run on a node, as far as it can be told without asking the cluster.
func (f *Flags) Spec(run, nodeName, namespace string) debugpod.Spec {
	inside, err := f.hasHelper()
	// With AnyBuild: another build began what this one undoes.
	others := errors.As(err, new(*image.OtherError))
	return debugpod.Spec{
		HasHelper: inside || others, AnyHelper: others,
		Run: run, Node: nodeName, Namespace: namespace,
		Image: f.Image, PullPolicy: corev1.PullPolicy(f.Pull), PullSecrets: f.Secrets, Deadline: f.Timeout,
	}
}

// Announcement returns what a command prints before debug pods read nodes. Every command that only reads announces its
// pods, and asks nothing.
func (f *Flags) Announcement(namespace string, nodes []string) string {
	const shown = 5
	names := strings.Join(nodes[:min(shown, len(nodes))], ", ")
	if rest := len(nodes) - shown; rest > 0 {
		names += " and " + count.Of(rest, "more node")
	}
	return fmt.Sprintf("reading %s (%s) with a privileged pod on each, image %s, in namespace %s; the pods are deleted again, and nothing on the nodes is changed",
		count.Of(len(nodes), "node"), names, f.Image, namespace)
}

// Start makes the pod of a spec and waits until it runs.
func (f *Flags) Start(
	ctx context.Context, cluster *kube.Cluster, spec debugpod.Spec, progress func(string),
) (*debugpod.Session, error) {
	arch, err := architecture(ctx, cluster, spec.Node)
	if err != nil {
		return nil, err
	}
	spec.Arch = arch
	runner := debugpod.NewRunner(cluster.Client, cluster.Config, helper.For)
	runner.StartTimeout, runner.Progress = f.Timeout, progress
	return runner.Start(ctx, spec)
}

// Try asks the API server whether it would admit the pod: permissions, Pod Security, quota, policies. What the
// preflight of every run says better, it leaves to that: the node is not there, or the namespace, which the run makes.
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

// architecture of the node chooses the helper.
func architecture(ctx context.Context, cluster *kube.Cluster, name string) (string, error) {
	n, err := cluster.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get node %s: %w", name, err)
	}
	return n.Status.NodeInfo.Architecture, nil
}
