// Package kube creates clients from the connection flags, and adds advice to client errors.
package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Connection holds kubectl's connection flags and the namespace of the ledger.
type Connection struct {
	*genericclioptions.ConfigFlags
	LedgerNamespace string
	// Features are the values of `rbac print --for` for the command, and RoleFlags are additional flags for `rbac
	// print`. Commands set them before their first request.
	Features, RoleFlags []string

	connected *Cluster
}

// Connected returns the cluster that the command has connected to, or nil.
func (c *Connection) Connected() *Cluster { return c.connected }

// NewConnection returns a connection with default flag values.
func NewConnection(streams genericiooptions.IOStreams) *Connection {
	flags := genericclioptions.NewConfigFlags(true).
		WithDiscoveryQPS(50).WithDiscoveryBurst(300).
		WithWarningPrinter(streams)
	return &Connection{ConfigFlags: flags, LedgerNamespace: ledger.DefaultNamespace}
}

// AddFlags registers the flags.
func (c *Connection) AddFlags(flags *pflag.FlagSet) {
	c.ConfigFlags.AddFlags(flags)
	flags.StringVar(&c.LedgerNamespace, "ledger-namespace", c.LedgerNamespace,
		"Namespace of run records, locks and debug pods; clients with different namespaces ignore each other's locks")
}

// Cluster contains the client for a cluster.
type Cluster struct {
	Client kubernetes.Interface
	Config *rest.Config
	// Namespace is the value of -n or the namespace of the context.
	Namespace string
	// Context is the current context in the kubeconfig, which is shown in confirmations.
	Context string
}

// Cluster returns the cluster that the connection flags specify. It sends no request.
func (c *Connection) Cluster() (*Cluster, error) {
	if err := checkLedgerNamespace(c.LedgerNamespace); err != nil {
		return nil, err
	}
	config, err := c.ToRESTConfig()
	if err != nil {
		return nil, Explain(err)
	}
	if c.isNowhere(config) {
		return nil, ErrNoKubeconfig
	}
	// With client-go's defaults (5 requests per second, in bursts of up to 10), ten nodes in parallel would be
	// throttled. A large fleet needs about ten requests per node. The API server's priority and fairness settings
	// determine how many it accepts.
	config.QPS, config.Burst = 400, 800
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	loader := c.ToRawKubeConfigLoader()
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, Explain(err)
	}
	c.connected = &Cluster{Client: client, Config: config, Namespace: namespace, Context: c.contextName()}
	return c.connected, nil
}

// Providers returns the provider IDs of nodes, or of all nodes if names is empty. It omits nodes without a provider ID,
// and ignores errors.
func (c *Cluster) Providers(ctx context.Context, names []string) []string {
	var ids []string
	err := fault.EachNode(ctx, c.Client, "", func(n *corev1.Node) {
		if (len(names) == 0 || slices.Contains(names, n.Name)) && n.Spec.ProviderID != "" {
			ids = append(ids, n.Spec.ProviderID)
		}
	})
	if err != nil {
		return nil // the result only affects messages
	}
	return ids
}

// checkLedgerNamespace returns an error for an invalid name, and for namespaces that must not contain records and
// privileged pods.
func checkLedgerNamespace(name string) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf(
			"invalid value %q for --ledger-namespace: must consist of lower-case letters, digits and '-', such as %s",
			name,
			ledger.DefaultNamespace,
		)
	}
	if name == "default" || strings.HasPrefix(name, "kube-") {
		return fmt.Errorf("invalid value %q for --ledger-namespace: records and privileged pods require a dedicated namespace, such as %s",
			name, ledger.DefaultNamespace)
	}
	return nil
}

// isNowhere reports whether client-go found no cluster and uses its legacy default, localhost:8080.
func (c *Connection) isNowhere(config *rest.Config) bool {
	if c.APIServer != nil && *c.APIServer != "" {
		return false
	}
	raw, err := c.ToRawKubeConfigLoader().RawConfig()
	return err == nil && len(raw.Clusters) == 0 && strings.HasSuffix(config.Host, "localhost:8080")
}

// Files returns the kubeconfig files that the connection uses, plus the default file.
func (c *Connection) Files() []string {
	return append(c.ToRawKubeConfigLoader().ConfigAccess().GetLoadingPrecedence(), clientcmd.RecommendedHomeFile)
}

func (c *Connection) contextName() string {
	if c.ConfigFlags.Context != nil && *c.ConfigFlags.Context != "" {
		return *c.ConfigFlags.Context
	}
	raw, err := c.ToRawKubeConfigLoader().RawConfig()
	if err != nil || raw.CurrentContext == "" {
		return "<none>"
	}
	return raw.CurrentContext
}
