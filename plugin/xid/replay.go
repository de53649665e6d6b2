package xid

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// replayFlags contains the flags of `xid replay`.
type replayFlags struct {
	inject
	speed  float64
	maxGap time.Duration
	maps   []string
}

func newReplayCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := &replayFlags{inject: newInject(), speed: 1, maxGap: 10 * time.Second}
	cmd := &cobra.Command{
		Use:   "replay FILE (NODE... | -l SELECTOR | --pod POD)",
		Short: "Write the driver's lines from a real log to the kernel logs of nodes",
		Long: `Write the NVIDIA driver's lines from a real log (dmesg, journalctl -k, /var/log/messages) to the kernel logs of nodes, in order and with the
original delays. Other lines are skipped. "-" reads the log from standard input.

PCI addresses are mapped to the node's GPUs: the first GPU in the log to the first GPU that --gpu selects, and so on. --map overrides this.`,
		Example: `  # Replay an incident on gpu-1
  kubectl gpu-fault xid replay dmesg.txt gpu-1 --gpu all

  # Replay an incident as fast as possible
  kubectl gpu-fault xid replay dmesg.txt gpu-1 --max-gap 0s`,
		Args: usage.MinArgs(1, "a file and a node", "kubectl gpu-fault xid replay dmesg.txt gpu-1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := f.writing(args, streams)
			if err != nil {
				return err
			}
			w.connection, w.streams = connection, streams
			return w.run(cmd.Context())
		},
		ValidArgsFunction: func(
			cmd *cobra.Command, args []string, prefix string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return completion.Nodes(connection)(cmd, args[1:], prefix)
		},
	}
	f.gpu = "all"
	f.inject.add(cmd, connection)
	flags := cmd.Flags()
	flags.Float64Var(&f.speed, "speed", f.speed, "Speed relative to the log")
	flags.DurationVar(&f.maxGap, "max-gap", f.maxGap, "Maximum delay between two lines; longer delays are shortened")
	flags.StringSliceVar(&f.maps, "map", nil,
		"FROM=TO: the PCI address in the log, and the PCI address of the node's GPU; may be repeated")
	return cmd
}

// writing checks everything that does not require a cluster.
func (f *replayFlags) writing(args []string, streams genericiooptions.IOStreams) (*writing, error) {
	f.Nodes.Names = args[1:]
	if err := f.validate(); err != nil {
		return nil, err
	}
	if !(f.speed >= 0.001 && f.speed <= 1e6) { // also rejects NaN
		return nil, fmt.Errorf("invalid value %g for --speed: must be 0.001 to 1000000", f.speed)
	}
	if f.maxGap < 0 || f.maxGap > longest {
		return nil, fmt.Errorf("invalid value %s for --max-gap: must be 0s to %s", f.maxGap, longest)
	}
	chosen, err := gpus.Parse(f.gpu)
	if err != nil {
		return nil, err
	}
	form, err := f.lineForm()
	if err != nil {
		return nil, err
	}
	byHand, err := parseMaps(f.maps)
	if err != nil {
		return nil, err
	}
	log, err := readLog(args[0], streams)
	if err != nil {
		return nil, err
	}
	r := &replay{entries: log.Entries, form: form, gpus: chosen, byHand: byHand, speed: f.speed, maxGap: f.maxGap}
	sample, err := r.records(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	if err := f.checkRecords(sample, duration(sample)); err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	return &writing{
		inject: f.inject, form: form, events: r.events(), sample: sample, lasts: duration(sample),
		summary: fmt.Sprintf("Replay of %s from %s, %s long%s", count.Of(len(sample), "record"), source(args[0]),
			duration(sample).Round(time.Millisecond), r.shortened()),
		action:  fmt.Sprintf("write %s to the kernel log", count.Of(len(log.Entries), "record")),
		compose: r.compose,
	}, nil
}

func readLog(file string, streams genericiooptions.IOStreams) (*xid.Log, error) {
	in := streams.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		defer f.Close()
		in = f
	}
	log, err := xid.ParseLog(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, r := range log.Refused {
		fmt.Fprintf(streams.ErrOut, "Warning: skipping line %d: %v\n", r.Line, r.Err)
	}
	if len(log.Entries) == 0 {
		return nil, fmt.Errorf(
			"%s (%s) contains no line from the NVIDIA driver that can be replayed (with \"NVRM:\" or \"nvidia-nvswitch\")",
			source(file), count.Of(log.Lines, "line"),
		)
	}
	fmt.Fprintf(streams.ErrOut, "%s: %s from the NVIDIA driver, %s from other sources skipped\n", printer.Escape(source(file)),
		count.Of(len(log.Entries), "record"), count.Of(log.Skipped, "line"))
	if len(log.Entries) > maxRecords {
		return nil, fmt.Errorf("%s contains %s from the driver: shorten it to at most %d records", file,
			count.Of(len(log.Entries), "record"), maxRecords)
	}
	return &log, nil
}

func source(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

// shortened describes how many gaps --max-gap shortens. It returns "" if there are none.
func (r *replay) shortened() string {
	n, last := 0, time.Duration(0)
	for _, e := range r.entries {
		if float64(e.Offset-last)/r.speed > float64(r.maxGap) {
			n++
		}
		last = e.Offset
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s shortened to %s)", count.Of(n, "gap"), r.maxGap)
}

func parseMaps(texts []string) (map[xid.PCI]xid.PCI, error) {
	all := map[xid.PCI]xid.PCI{}
	for _, text := range texts {
		from, to, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--map %s: write FROM=TO, such as 0000:c7:00=0000:17:00", text)
		}
		a, err := xid.ParsePCI(from)
		if err != nil {
			return nil, fmt.Errorf("--map %s: %w", text, err)
		}
		b, err := xid.ParsePCI(to)
		if err != nil {
			return nil, fmt.Errorf("--map %s: %w", text, err)
		}
		a.Function, b.Function = 0, 0
		all[a] = b
	}
	return all, nil
}

// replay converts the entries of a log into records for a node.
type replay struct {
	entries []xid.Entry
	form    xid.Form
	gpus    gpus.Choices
	byHand  map[xid.PCI]xid.PCI
	speed   float64
	maxGap  time.Duration
}

func (r *replay) events() []xid.Event {
	var all []xid.Event
	for _, e := range r.entries {
		switch e.Event.Kind {
		case xid.KindXID, xid.KindSXid, xid.KindFallenOff:
			all = append(all, e.Event)
		}
	}
	return all
}

// addresses returns the GPUs in the log, in order of first appearance. NVSwitches keep their addresses unless the user
// maps them.
func (r *replay) addresses() []xid.PCI {
	var all []xid.PCI
	for _, e := range r.entries {
		if e.Event.Kind == xid.KindSXid || e.Event.Kind == xid.KindSwitchNote {
			continue
		}
		for _, p := range e.PCIs() {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

func (r *replay) compose(info api.Info, pod gpus.Pod) ([]kernellog.Record, error) {
	chosen, err := r.gpus.Pick(info, pod)
	// If the node has no driver, the user may specify all addresses.
	if err != nil && (len(info.GPUs) > 0 || len(r.byHand) == 0) {
		return nil, err
	}
	to, uuids := map[xid.PCI]xid.PCI{}, map[xid.PCI]xid.UUID{}
	maps.Copy(to, r.byHand)
	for _, p := range r.addresses() {
		if _, mapped := to[p]; mapped {
			continue
		}
		if len(chosen) == 0 {
			return nil,
				fmt.Errorf("the log has more GPUs than --gpu selects: specify --gpu all, or --map %s=ADDRESS", p)
		}
		to[p], uuids[chosen[0].PCI] = chosen[0].PCI, xid.UUID(chosen[0].UUID)
		chosen = chosen[1:]
	}
	return r.records(to, uuids)
}

// delay returns the gap at the selected speed. It compares floating-point numbers because a long gap at a low speed
// overflows a Duration.
func (r *replay) delay(gap time.Duration) time.Duration {
	if slowed := float64(gap) / r.speed; slowed < float64(r.maxGap) {
		return time.Duration(slowed)
	}
	return r.maxGap
}

// records returns the records for the entries, with mapped addresses and the UUIDs of the new GPUs.
func (r *replay) records(to map[xid.PCI]xid.PCI, uuids map[xid.PCI]xid.UUID) ([]kernellog.Record, error) {
	var (
		all  []kernellog.Record
		last time.Duration
		errs []error
	)
	for _, e := range r.entries {
		gap := e.Offset - last
		last = e.Offset
		e = e.Remap(to)
		if uuid := uuids[e.Event.PCI]; uuid != "" {
			e = e.WithUUID(uuid)
		}
		line, err := e.Record(r.form)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, kernellog.Record{
			KmsgRecord: api.KmsgRecord{Data: string(line.Bytes()), Delay: r.delay(gap)},
			XID:        label(e.Event), GPU: e.Event.PCI.String(),
		})
	}
	return all, errors.Join(errs...)
}
