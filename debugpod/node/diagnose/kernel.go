package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/kmsg"
)

const (
	// maxKernelRecords and maxKernelText limit the kernel log in the response. The newest records are kept.
	maxKernelRecords = 2000
	maxKernelText    = 1 << 20
	// maxChatter limits records of frequent kinds, which could otherwise displace the only relevant XID.
	maxChatter = 500
	// kernelPatience is the timeout for reading the log. If records are written faster than they are read, reading
	// never ends.
	kernelPatience = 5 * time.Second
)

// kernelBacklog reads the records in the kernel log. Each Read returns one record; after the last record, Read returns
// io.EOF.
type kernelBacklog interface {
	io.ReadCloser
}

// kernel reads the kernel log records that concern GPUs.
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

// KernelLog handles ReadKernelLog.
func KernelLog(ctx context.Context, req api.ReadKernelLog, host hostfs.Host) (*api.KernelRecords, *api.Error) {
	d := &diagnosing{host: host, clock: readClock(host.Proc), kernelLog: openBacklog}
	put, err := d.kernel(ctx)
	if err != nil {
		return nil, api.Errorf(api.CodeKmsg, "%v", err)
	}
	var found api.Diagnosis
	put(&found)
	records := slices.DeleteFunc(found.KernelLog,
		func(r api.KernelRecord) bool { return req.After != nil && r.Sequence <= *req.After })
	return &api.KernelRecords{Records: records}, nil
}

// readBacklog returns the relevant records. If it returns an error, some records may be missing.
func readBacklog(ctx context.Context, log io.Reader, now clock) ([]api.KernelRecord, error) {
	buffer := make([]byte, 16<<10) // the kernel's limit is 8 KiB, including escapes
	var matter, chatter recent
	matter.most, chatter.most = maxKernelRecords-maxChatter, maxChatter
	var ended error
	for {
		if ctx.Err() != nil {
			ended = errors.New("the kernel log is written faster than it can be read: the last lines are missing")
			break
		}
		n, err := log.Read(buffer)
		if errors.Is(err, kmsg.ErrOverrun) { // older records were overwritten; continue with the remaining ones
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

// recent keeps the last records that were added.
type recent struct {
	most int
	all  []api.KernelRecord
}

func (r *recent) add(record api.KernelRecord) {
	if len(r.all) >= 2*r.most { // trim rarely, because trimming copies the records
		r.all = append(r.all[:0], r.records()...)
	}
	r.all = append(r.all, record)
}

func (r *recent) records() []api.KernelRecord { return r.all[max(0, len(r.all)-r.most):] }

// merge merges two lists in the order of the log.
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

// limitRecords returns the newest records within the limits.
func limitRecords(all []api.KernelRecord) []api.KernelRecord {
	size, first := 0, len(all)
	for first > 0 && size+len(all[first-1].Text) <= maxKernelText {
		first--
		size += len(all[first].Text)
	}
	return all[first:]
}

// gpuWords, in lower case, identify records that concern GPUs: records about the driver, NVLink, PCI, rejected modules,
// and memory, and the records that this tool writes.
var gpuWords = []string{
	"nvrm", "nvidia", "nouveau", "nova_core", "xid", "nvswitch", "nvlink", "gdrdrv", "gpu", "imex", "vfio-pci",
	"ib_umad",
	"fallen off the bus", "no space for", "failed to assign",
	"lockdown", "unsigned module", "key was rejected", "required key not available", "module verification failed",
	"pkcs#7 signature",
	"oom-kill", "out of memory", "mce:", "machine check", "hardware error", "uncorrected error",
}

// chatterWords identify kinds of relevant records that can occur thousands of times.
var chatterWords = []string{"pcieport", "aer:", "dpc:", "pcie bus error", "mlx5", "edac"}

// concernsGPUs reports whether a record concerns GPUs, and whether its kind can occur thousands of times.
func concernsGPUs(text string) (concerned, many bool) {
	lower := strings.ToLower(text)
	// Firewall log prefixes vary ("[UFW BLOCK]", or a custom prefix in iptables or nftables), but the kernel sets the
	// field names.
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
