package xid

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// injection is what -o json prints: every record with its proof.
type injection struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	ID         string       `json:"id"` // of the run
	Phase      ledger.Phase `json:"phase"`
	Summary    string       `json:"summary"`
	Message    string       `json:"message,omitempty"`
	Nodes      []written    `json:"nodes"`
}

// written is what one node's kernel log got.
type written struct {
	Node    string   `json:"node"`
	Error   string   `json:"error,omitempty"`
	Records []record `json:"records"`
}

// record is one record that was read back.
type record struct {
	XID      string    `json:"xid"`
	GPU      string    `json:"gpu,omitempty"`
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
	Priority int       `json:"priority"`
	Text     string    `json:"text"`
}

// print writes what was proven: a row per record, or few rows for many. It prints nothing when there is nothing.
func (w *writing) print(run *ledger.Run, from *kernellog.Injection, names []string) error {
	if run == nil {
		return nil
	}
	out := injection{APIVersion: ledger.APIVersion, Kind: "Injection", ID: run.ID, Phase: run.Phase, Summary: run.Summary, Message: run.Message}
	total := 0
	for _, name := range names {
		node := written{Node: name, Records: records(from.Result(name))}
		for _, step := range run.Steps {
			if step.Target.Name == name && step.State == ledger.StateFailed {
				node.Error = step.Message
			}
		}
		total += len(node.Records)
		out.Nodes = append(out.Nodes, node)
	}
	if total == 0 {
		return nil
	}
	if !w.format.IsTable() {
		return w.inject.format.Object(w.streams.Out, out, "run/"+out.ID)
	}
	return errors.Join(w.table(out), w.closing(out, total))
}

func records(result *kernellog.Result) []record {
	if result == nil {
		return nil
	}
	all := make([]record, len(result.Written))
	for i, proof := range result.Written {
		all[i] = record{Sequence: proof.Sequence, Time: proof.Time, Priority: proof.Priority, Text: proof.Text}
		if proof.Record < len(result.Records) {
			all[i].XID, all[i].GPU = result.Records[proof.Record].XID, result.Records[proof.Record].GPU
		}
	}
	return all
}

// rowsPerNode bounds the table; -o wide has all rows.
const rowsPerNode = 20

func (w *writing) table(out injection) error {
	table := printer.Table{Header: []string{"NODE", "GPU", "XID", "SEQUENCE", "TIME", "LINE"}, NoHeader: w.format.NoHeader}
	for _, node := range out.Nodes {
		for i, r := range node.Records {
			if left := len(node.Records) - rowsPerNode; left > 0 && !w.format.IsWide() && i >= rowsPerNode/2 && i < len(node.Records)-rowsPerNode/2 {
				if i == rowsPerNode/2 {
					table.Add(node.Node, "...", "...", "...", "...", fmt.Sprintf("(%d more rows: -o wide)", left))
				}
				continue
			}
			table.Add(node.Node, r.GPU, r.XID, fmt.Sprint(r.Sequence), r.Time.Local().Format("15:04:05.000"), r.Text)
		}
	}
	return table.Write(w.streams.Out)
}

// closing says on stderr that it is proven, and how the run is closed.
func (w *writing) closing(out injection, total int) error {
	nodes := 0
	for _, n := range out.Nodes {
		if len(n.Records) > 0 {
			nodes++
		}
	}
	_, err := fmt.Fprintf(w.streams.ErrOut, "%s written and read back on %s; run %s\n", count(total, "record"), count(nodes, "node"), out.ID)
	return err
}
