package runtime

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// Break describes breaking the containerd configuration on one node. Other commands, namely scenarios and experiments,
// use it in their plans.
type Break struct {
	Mode    string
	Node    string
	Handler string // empty means nvidia
	Pods    podflags.Flags
	// Encrypted encrypts the node's record; see containerdconfig.Injection.
	Encrypted bool
}

// Change returns the change that `runtime break NODE --mode MODE` would make. The plan that contains it must have a
// TTL, after which the dead man's switch on the node restores the configuration.
func (b Break) Change(connection *kube.Connection, cluster *kube.Cluster) (fault.Change, error) {
	options := newBreaking()
	options.mode, options.Pods = b.Mode, b.Pods
	if b.Handler != "" {
		options.handler = b.Handler
	}
	options.Nodes.Names = []string{b.Node}
	if err := options.validate(false); err != nil {
		return fault.Change{}, err
	}
	injection := options.injection(cluster, connection)
	injection.Encrypted = b.Encrypted
	return injection.Change(ledger.Target{Kind: "Node", Name: b.Node}, options.action()), nil
}
