package xid

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// before tells, on stderr, what is going to be written where, what cannot be undone, and which detector will do what.
func (w *writing) before(ctx context.Context, cluster *kube.Cluster, names []string) error {
	out := w.streams.ErrOut
	fmt.Fprintf(out, "%s: %s, in context %q\n", w.summary, listNodes(names), cluster.Context)
	fmt.Fprintf(out, "How: a privileged pod in namespace %q writes the lines to /dev/kmsg, reads them back and deletes itself.\n", w.connection.LedgerNamespace)
	fmt.Fprintf(out, "Undo: none, a kernel log cannot be unwritten; `kubectl gpu-fault revert` says what each detector needs to forget the lines.\n\n")

	seen, blind, reboots := verdicts(detectorsOf(w.provider(ctx, cluster, names[0])), w.events, w.form)
	if err := seen.Write(out); err != nil {
		return err
	}
	fmt.Fprintf(out, "Not reached: %s; `kubectl gpu-fault xid explain CODE` says why.\n\n", strings.Join(blind, ", "))
	if len(reboots) > 0 {
		fmt.Fprintf(out, "Warning: where it is installed, %s may cordon, drain and reboot the node.\n\n", strings.Join(reboots, " and "))
	}
	return nil
}

// clouds are the detectors that run on the nodes of one cloud only, with what the node's providerID then begins with.
var clouds = map[string]string{
	xid.IDEKS:      "aws:",
	xid.IDHyperPod: "aws:",
	xid.IDAKS:      "azure:",
	xid.IDGKE:      "gce:",
	xid.IDACK:      "cn-", // REGION.INSTANCE
}

// provider is the node's providerID; empty on one's own machines, or when it cannot be read.
func (w *writing) provider(ctx context.Context, cluster *kube.Cluster, nodeName string) string {
	n, err := cluster.Client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return n.Spec.ProviderID
}

// detectorsOf leaves out the detectors of other clouds.
func detectorsOf(providerID string) []xid.Detector {
	return slices.DeleteFunc(xid.Detectors(), func(d xid.Detector) bool {
		prefix, isCloud := clouds[d.ID]
		return isCloud && !strings.HasPrefix(providerID, prefix)
	})
}

// verdicts is a row for each detector that may see the events, with what it does about the one that it takes the most seriously;
// the names of those that see none of them; and of those that may reboot a node.
func verdicts(detectors []xid.Detector, events []xid.Event, form xid.Form) (seen *printer.Table, blind, reboots []string) {
	seen = &printer.Table{Header: []string{"DETECTOR", "SEES", "XID", "REACTION"}}
	for _, d := range detectors {
		v, of := worst(d, events, form)
		switch {
		case v.Seen == xid.No:
			blind = append(blind, d.Name)
			continue
		case v.Seen == xid.Depends && v.Why != "":
			seen.Add(d.Name, string(v.Seen), label(of), v.Why)
		default:
			seen.Add(d.Name, string(v.Seen), label(of), v.Reaction)
		}
		if v.MayReboot {
			reboots = append(reboots, d.Name)
		}
	}
	return seen, blind, reboots
}

func worst(d xid.Detector, events []xid.Event, form xid.Form) (xid.Verdict, xid.Event) {
	rank := func(v xid.Verdict) int {
		n := map[xid.Sight]int{xid.Yes: 20, xid.Depends: 10}[v.Seen]
		if v.Fatal {
			n += 4
		}
		if v.MayReboot {
			n += 2
		}
		return n
	}
	var (
		best xid.Verdict
		of   xid.Event
	)
	for i, e := range events {
		if v := d.Judge(e, form); i == 0 || rank(v) > rank(best) {
			best, of = v, e
		}
	}
	return best, of
}

func listNodes(names []string) string {
	if len(names) == 1 {
		return "node " + names[0]
	}
	return fmt.Sprintf("%d nodes: %s", len(names), strings.Join(names, ", "))
}
