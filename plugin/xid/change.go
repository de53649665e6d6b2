package xid

import (
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// Lines is what other verbs have written to the kernel log of one node: scenarios and experiments.
type Lines struct {
	Codes   string // as on the command line: 79 or 48,63
	Node    string
	GPU     string // empty means 0
	Cascade bool   // also what really comes with the XID
	Pods    podflags.Flags
}

// Change returns the change of `xid CODES NODE`, for a plan of others. The error says what of the lines cannot be.
func (l Lines) Change(connection *kube.Connection, cluster *kube.Cluster) (fault.Change, error) {
	f := newFlags()
	f.cascade, f.pods = l.Cascade, l.Pods
	if l.GPU != "" {
		f.gpu = l.GPU
	}
	o, err := f.toOptions([]string{strings.ReplaceAll(l.Codes, " ", ""), l.Node})
	if err != nil {
		return fault.Change{}, err
	}
	w, err := o.writing(connection)
	if err != nil {
		return fault.Change{}, err
	}
	return w.injection(cluster, podOnNode{}).Change(ledger.Target{Kind: "Node", Name: l.Node}, w.action), nil
}
