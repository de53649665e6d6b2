package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/kmsg"
)

const (
	// maxKernelRecords and maxKernelText bound the kernel log in the answer; the newest are kept.
	maxKernelRecords = 2000
	maxKernelText    = 1 << 20
	// maxChatter is how many of them may be of the kind that comes in thousands, and would push out the one XID that
	// matters.
	maxChatter = 500
	// kernelPatience is how long the log is read: one that is written faster than it is read has no end.
	kernelPatience = 5 * time.Second
)

// kernelBacklog reads what the kernel log holds, one record with each Read, and io.EOF at its end.
type kernelBacklog interface {
	io.ReadCloser
}

// kernel reads the records that concern GPUs.
func (d *diagnosing) kernel(ctx context.Context) (func(*api.Diagnosis), error) {
	log, err := d.kernelLog(d.host.Kmsg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	ctx, cancel := context.WithTimeout(ctx, kernelPatience)
	defer cancel()
	records, err := readBacklog(ctx, log, d.clock)
	return func(found *api.Diagnosis) { found.KernelLog = records }, err
}

// readBacklog keeps the records that matter. With an error, some may be missing.
func readBacklog(ctx context.Context, log io.Reader, now clock) ([]api.KernelRecord, error) {
	buffer := make([]byte, 16<<10) // the kernel's own limit is 8 KiB, escapes included
	var matter, chatter recent
	matter.most, chatter.most = maxKernelRecords-maxChatter, maxChatter
	var ended error
	for {
		if ctx.Err() != nil {
			ended = errors.New("the kernel log is written faster than it can be read: its end is missing")
			break
		}
		n, err := log.Read(buffer)
		if errors.Is(err, kmsg.ErrOverrun) { // older records were overwritten meanwhile: those that are there go on
			continue
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				ended = fmt.Errorf("read the kernel log: %w", err)
			}
			break
		}
		entry, err := kmsg.Parse(string(buffer[:n]))
		if err != nil {
			continue
		}
		concerned, many := concernsGPUs(entry.Text)
		if !concerned {
			continue
		}
		record := api.KernelRecord{
			Sequence: entry.Sequence, Uptime: entry.Uptime, Priority: entry.Priority,
			Time: now.at(entry.Uptime), Text: api.Shorten(strings.ToValidUTF8(entry.Text, "\uFFFD"), api.MaxLineText),
		}
		if many {
			chatter.add(record)
		} else {
			matter.add(record)
		}
	}
	return limitRecords(merge(matter.records(), chatter.records())), ended
}

// recent keeps the last records that it gets.
type recent struct {
	most int
	all  []api.KernelRecord
}

func (r *recent) add(record api.KernelRecord) {
	if len(r.all) >= 2*r.most { // seldom, as it copies
		r.all = append(r.all[:0], r.records()...)
	}
	r.all = append(r.all, record)
}

func (r *recent) records() []api.KernelRecord { return r.all[max(0, len(r.all)-r.most):] }

// merge puts two lists in the order of the log.
func merge(a, b []api.KernelRecord) []api.KernelRecord {
	var all []api.KernelRecord
	for len(a) > 0 || len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].Sequence <= b[0].Sequence {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return all
}

// limitRecords keeps the newest.
func limitRecords(all []api.KernelRecord) []api.KernelRecord {
	size, first := 0, len(all)
	for first > 0 && size+len(all[first-1].Text) <= maxKernelText {
		first--
		size += len(all[first].Text)
	}
	return all[first:]
}

// gpuWords are in the records that concern GPUs, in lower case. What they are about: the driver and NVLink; PCI;
// modules that are refused; memory, of which a GPU workload needs much; and our own records.
var gpuWords = []string{
	"nvrm", "nvidia", "nouveau", "nova_core", "xid", "nvswitch", "nvlink", "gdrdrv", "gpu", "imex", "vfio-pci",
	"ib_umad",
	"fallen off the bus", "no space for", "failed to assign",
	"lockdown", "unsigned module", "key was rejected", "required key not available", "module verification failed",
	"pkcs#7 signature",
	"oom-kill", "out of memory", "mce:", "machine check", "hardware error", "uncorrected error",
}

// chatterWords are in records that matter, and can come in thousands.
var chatterWords = []string{"pcieport", "aer:", "dpc:", "pcie bus error", "mlx5", "edac"}

// concernsGPUs reports whether doctor wants the record, and whether it is of a kind that can come in thousands.
func concernsGPUs(text string) (concerned, many bool) {
	lower := strings.ToLower(text)
	// Firewalls have prefixes of their own ("[UFW BLOCK]", or what somebody gave iptables or nftables), but the fields
	// are the kernel's.
	if strings.Contains(lower, "[ufw block]") || strings.Contains(text, "IN=") &&
		(strings.Contains(text, " DPT=") || strings.Contains(text, " OUT=") && strings.Contains(text, " SRC=")) {
		return true, true
	}
	for _, word := range gpuWords {
		if strings.Contains(lower, word) {
			return true, false
		}
	}
	for _, word := range chatterWords {
		if strings.Contains(lower, word) {
			return true, true
		}
	}
	return false, false
}
