// Package kube turns the connection flags of the command line into clients, and the clients' errors into words for
// people.
package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Connection is how to reach the cluster: kubectl's own connection flags, and the namespace of our records.
type Connection struct {
	*genericclioptions.ConfigFlags
	LedgerNamespace string
	// Feature is what `rbac print --for` allows the command by, with more flags if it takes them. Commands set it
	// before they ask the cluster.
	Feature string

	connected *Cluster
}

// Connected returns the cluster that a command has connected to; nil when it did not.
func (c *Connection) Connected() *Cluster { return c.connected }

// NewConnection returns the defaults, which the flags then change.
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
		"Namespace of the run records, the locks and the debug pods; who uses another one does not see your locks")
}

// Cluster is a cluster that can be talked to.
type Cluster struct {
	Client kubernetes.Interface
	Config *rest.Config
	// Namespace is the one of -n, or the context's.
	Namespace string
	// Context is the kubeconfig's context in use, for questions before a change.
	Context string
}

// Cluster connects. It sends no request yet.
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
	// client-go's defaults, 5 and 10 requests a second, would make ten nodes at once wait for each other.
	config.QPS, config.Burst = 100, 200
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

// Providers returns the providerIDs of nodes: of the clouds that they are on. None for one's own machines, and when
// they cannot be read. No names mean all nodes.
func (c *Cluster) Providers(ctx context.Context, names []string) []string {
	// From the API server's cache: this is only about what is shown.
	nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil
	}
	var ids []string
	for _, n := range nodes.Items {
		if (len(names) == 0 || slices.Contains(names, n.Name)) && n.Spec.ProviderID != "" {
			ids = append(ids, n.Spec.ProviderID)
		}
	}
	return ids
}

// checkLedgerNamespace refuses names that no namespace can have, and namespaces where privileged pods and records of
// ours have no place.
func checkLedgerNamespace(name string) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf(
			"--ledger-namespace %q cannot be a namespace: write lower-case letters, digits and '-', such as %s", name,
			ledger.DefaultNamespace,
		)
	}
	if name == "default" || strings.HasPrefix(name, "kube-") {
		return fmt.Errorf("--ledger-namespace %s: records and privileged pods need a namespace of their own, such as %s",
			name, ledger.DefaultNamespace)
	}
	return nil
}

// isNowhere reports whether client-go found no cluster at all and fell back to the port that API servers had long ago.
func (c *Connection) isNowhere(config *rest.Config) bool {
	if c.APIServer != nil && *c.APIServer != "" {
		return false
	}
	raw, err := c.ToRawKubeConfigLoader().RawConfig()
	return err == nil && len(raw.Clusters) == 0 && strings.HasSuffix(config.Host, "localhost:8080")
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
