package xid

import (
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
)

// Lines are kernel log lines that other commands, namely scenarios and experiments, write on one node.
type Lines struct {
	Codes   string // same syntax as on the command line: 79 or 48,63
	Node    string
	GPU     string // empty means 0
	Cascade bool   // include the lines that accompany the XID in a real fault
	Pods    podflags.Flags
}

// Change returns the change that `xid CODES NODE` would make, for use in another command's plan. It returns an error if
// the lines are invalid.
func (l Lines) Change(connection *kube.Connection, cluster *kube.Cluster) (fault.Change, error) {
	f := newFlags()
	f.cascade, f.Pods = l.Cascade, l.Pods
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
	return w.injection(cluster, gpus.Pod{}).Change(ledger.Target{Kind: "Node", Name: l.Node}, w.action), nil
}
