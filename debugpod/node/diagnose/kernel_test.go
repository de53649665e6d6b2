package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

func record(sequence int, text string) string {
	return fmt.Sprintf("6,%d,%d,-;%s\n SUBSYSTEM=pci\n", sequence, sequence*1000, text)
}

func TestConcernsGPUs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.":                          "matters",
		"nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 32 LTSSM Fault Up":             "matters",
		"nouveau 0000:17:00.0: unknown chipset":                                                       "matters",
		"nvidia: loading out-of-tree module taints kernel.":                                           "matters",
		"Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7":        "matters",
		"Loading of module with unavailable key is rejected: Key was rejected by service":             "matters",
		"gdrdrv: module verification failed: signature and/or required key missing - tainting kernel": "matters",
		"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python":                            "matters",
		"Memory cgroup out of memory: Killed process 4242 (python)":                                   "matters",
		"mce: [Hardware Error]: Machine check events logged":                                          "matters",
		"pci 0000:17:00.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]":                    "matters",
		"kernel: gpu-fault: our own":                                                                  "matters",
		"pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0":                          "many",
		"pcieport 0000:00:01.0: DPC: containment event, status:0x1f01":                                "many",
		"mlx5_core 0000:a1:00.0 eth0: Link down":                                                      "many",
		"[UFW BLOCK] IN=eth0 OUT= MAC= SRC=10.0.0.2 DST=10.0.0.1 LEN=60 PROTO=TCP SPT=1 DPT=10250":    "many",
		"nft-drop: IN=eth0 OUT= SRC=10.0.0.2 DST=10.0.0.1 LEN=60 PROTO=TCP SPT=1 DPT=50051 WINDOW=1":  "many",
		"drop: IN=eth0 OUT=cni0 MAC= SRC=10.0.0.2 DST=10.0.0.1 LEN=84 PROTO=ICMP":                     "many",
		"EXT4-fs (sda1): mounted filesystem":                                                          "",
		"systemd[1]: Started kubelet.service":                                                         "",
		"":                                                                                            "",
	} {
		concerned, many := concernsGPUs(text)
		got := map[[2]bool]string{{true, false}: "matters", {true, true}: "many"}[[2]bool{concerned, many}]
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestBacklogBounds holds that a hundred thousand records become few, that the newest stay, and that a flood of packets
// does not push out an XID.
func TestBacklogBounds(t *testing.T) {
	t.Parallel()
	log := backlogOf{record(1, "NVRM: Xid (PCI:0000:17:00): 79, the first"), "EPIPE", "garbage", "1,2;x"}
	for i := range 100_000 {
		log = append(log, record(10+i, "[UFW BLOCK] IN=eth0 DPT=22"))
	}
	log = append(log, record(200_000, "EXT4-fs: nothing"))
	records, err := readBacklog(t.Context(), &log, testClock())
	if err != nil || len(records) != maxChatter+1 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	if !strings.HasSuffix(records[0].Text, "the first") || records[len(records)-1].Sequence != 10+100_000-1 {
		t.Errorf("from %+v to %+v", records[0], records[len(records)-1])
	}
	log = nil
	for i := range 10_000 {
		log = append(log, record(i, "NVRM: Xid "+strings.Repeat("x", 900)+"\xff"))
	}
	records, err = readBacklog(t.Context(), &log, testClock())
	size := 0
	for _, r := range records {
		size += len(r.Text)
		if !utf8.ValidString(r.Text) {
			t.Fatalf("not UTF-8: %q", r.Text)
		}
	}
	if err != nil || size > maxKernelText || len(records) < 1000 || records[len(records)-1].Sequence != 9_999 {
		t.Errorf("%d records of %d bytes, %v", len(records), size, err)
	}
	if !slices.IsSortedFunc(records, func(a, b api.KernelRecord) int { return int(a.Sequence) - int(b.Sequence) }) {
		t.Error("they are not in the log's order")
	}
}

// endless is a kernel log that is written faster than it is read.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, record(1, "NVRM: x")), nil }

func TestBacklogEndsInTime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := readBacklog(ctx, endless{}, testClock()); err == nil || !strings.Contains(err.Error(), "faster") {
		t.Errorf("got %v", err)
	}
}

func TestBacklogLongLine(t *testing.T) {
	t.Parallel()
	log := backlogOf{record(1, "NVRM: "+strings.Repeat("x", 1<<20))}
	records, err := readBacklog(t.Context(), &log, testClock())
	if err != nil || len(records) != 1 || len(records[0].Text) > api.MaxLineText+len("…") {
		t.Errorf("%d records, %v", len(records), err)
	}
}

func FuzzBacklog(f *testing.F) {
	f.Add(record(1, "NVRM: Xid (PCI:0000:17:00): 79"))
	f.Add("4,1,9007199254740991,-;nvidia \\x0a\xff")
	f.Fuzz(func(t *testing.T, raw string) {
		log := backlogOf{raw, raw}
		records, err := readBacklog(t.Context(), &log, testClock())
		for _, r := range records {
			if err != nil || !utf8.ValidString(r.Text) || len(r.Text) > api.MaxLineText+4 || r.Uptime < 0 {
				t.Errorf("%+v, %v", r, err)
			}
		}
	})
}
