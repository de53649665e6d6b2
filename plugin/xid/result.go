package xid

import (
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// injection is the output of -o json: each record with its verification.
type injection struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	ID         string       `json:"id"` // ID of the run
	Phase      ledger.Phase `json:"phase"`
	Summary    string       `json:"summary"`
	Message    string       `json:"message,omitempty"`
	Nodes      []written    `json:"nodes"`
	Layers     []layer      `json:"layers,omitempty"` // with --layers
}

// written describes what was written to one node's kernel log.
type written struct {
	Node    string   `json:"node"`
	Error   string   `json:"error,omitempty"`
	Records []record `json:"records"`
	// CUDA is the error that the program started by --real received.
	CUDA *cudaError `json:"cuda,omitempty"`
}

// cudaError is a CUDA error on a GPU.
type cudaError struct {
	Code int    `json:"code"` // 700
	Name string `json:"name"` // CUDA_ERROR_ILLEGAL_ADDRESS
	GPU  string `json:"gpu"`  // UUID
}

// record is a record that was read back.
type record struct {
	XID      string    `json:"xid"`
	GPU      string    `json:"gpu,omitempty"`
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
	Priority int       `json:"priority"`
	Text     string    `json:"text"`
}

// print prints the verified records: one row per record, or fewer rows if there are many records. It prints nothing if
// there are no records.
func (w *writing) print(run *ledger.Run, from *kernellog.Injection, names []string) error {
	if run == nil {
		return nil
	}
	out := newInjection(run)
	total := 0
	for _, name := range names {
		node := written{Node: name, Error: failure(run, name), Records: records(from.Result(name))}
		total += len(node.Records)
		out.Nodes = append(out.Nodes, node)
	}
	if !w.layers.isOne() {
		out.Layers = layersOf(run)
	}
	if !w.Format.IsTable() {
		return w.Format.Object(w.streams.Out, out, "run/"+out.ID)
	}
	if len(out.Layers) > 0 {
		if err := layerTable(out.Layers, w.Format).Write(w.streams.Out); err != nil || run.Phase != ledger.Proven {
			return err
		}
		printer.Talk(w.streams.ErrOut, "%s proven; undo: %s", count.Of(len(w.layers.layers), "layer"),
			ledger.New(nil, w.connection.LedgerNamespace).Command("revert", out.ID))
		return nil
	}
	if total == 0 {
		return nil
	}
	if err := out.table(w.Format).Write(w.streams.Out); err != nil {
		return err
	}
	printer.Talk(w.streams.ErrOut, "%s",
		out.closing(total, ledger.New(nil, w.connection.LedgerNamespace).Command("revert", out.ID)))
	return nil
}

func newInjection(run *ledger.Run) injection {
	return injection{
		APIVersion: ledger.APIVersion, Kind: "Injection", ID: run.ID, Phase: run.Phase, Summary: run.Summary,
		Message: run.Message,
	}
}

// failure returns the message of a node's failed step, or an empty string.
func failure(run *ledger.Run, nodeName string) (message string) {
	for _, step := range run.Steps {
		if step.Target.Name == nodeName && step.State == ledger.StateFailed {
			message = step.Message
		}
	}
	return message
}

func records(result *kernellog.Result) []record {
	if result == nil {
		return []record{}
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

// endRows is the number of rows to show at each end of a node's part of the table. With -o wide, all rows are shown.
const endRows = 3

// row is a row of the table: one record, or several identical ones.
type row struct {
	record // the first record
	count  int
	last   uint64 // sequence number of the last record
}

func (r row) sequence() string {
	if r.count == 1 {
		return fmt.Sprint(r.Sequence)
	}
	return fmt.Sprintf("%d-%d", r.Sequence, r.last)
}

// fold merges records with the same text into one row, in order of first appearance.
func fold(records []record) []row {
	type same struct{ xid, gpu, text string }
	var rows []row
	at := map[same]int{}
	for _, r := range records {
		key := same{r.XID, r.GPU, r.Text}
		i, known := at[key]
		if !known {
			i = len(rows)
			at[key] = i
			rows = append(rows, row{record: r})
		}
		rows[i].count++
		rows[i].last = r.Sequence
	}
	return rows
}

func unfolded(records []record) []row {
	rows := make([]row, len(records))
	for i, r := range records {
		rows[i] = row{record: r, count: 1}
	}
	return rows
}

func (out injection) table(format printer.Format) *printer.Table {
	rows := make([][]row, len(out.Nodes))
	counted := false
	for i, node := range out.Nodes {
		if format.IsWide() {
			rows[i] = unfolded(node.Records)
			continue
		}
		rows[i] = fold(node.Records)
		counted = counted || len(rows[i]) < len(node.Records)
	}
	table := &printer.Table{
		Header: cells(counted, "NODE", "GPU", "XID", "COUNT", "SEQUENCE", "TIME", "LINE"), NoHeader: format.NoHeader,
	}
	for i, node := range out.Nodes {
		left := len(rows[i]) - 2*endRows
		for j, r := range rows[i] {
			if left > 1 && !format.IsWide() && j >= endRows && j < len(rows[i])-endRows {
				if j == endRows {
					table.Add(cells(counted, node.Node, "...", "...", "...", "...", "...",
						"("+count.Of(left, "more row")+": -o wide)")...)
				}
				continue
			}
			table.Add(cells(counted, node.Node, r.GPU, r.XID, fmt.Sprint(r.count), r.sequence(),
				r.Time.Local().Format("15:04:05.000"), r.Text)...)
		}
	}
	return table
}

// cells returns the cells of a row. It includes COUNT only if counted is true.
func cells(counted bool, node, gpu, xid, count, sequence, time, line string) []string {
	if counted {
		return []string{node, gpu, xid, count, sequence, time, line}
	}
	return []string{node, gpu, xid, sequence, time, line}
}

// closing returns the summary of the verification, with the next step.
func (out injection) closing(records int, revert string) string {
	nodes := 0
	for _, n := range out.Nodes {
		if len(n.Records) > 0 {
			nodes++
		}
	}
	return fmt.Sprintf("%s written and read back on %s; close the run with: %s", count.Of(records, "record"),
		count.Of(nodes, "node"), revert)
}
