package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// TestEveryXIDHasOneRoot verifies that any XID from the driver, alone or with accompanying records, has at most one
// root cause and a known ID.
func TestEveryXIDHasOneRoot(t *testing.T) {
	t.Parallel()
	pci, err := xid.ParsePCI("0000:17:00")
	if err != nil {
		t.Fatal(err)
	}
	table, cascades := map[string][]string{}, 0
	for _, code := range xid.All() {
		alone, err := xid.New(code.Number, xid.Options{PCI: pci})
		if err != nil {
			t.Errorf("XID %d: %v", code.Number, err)
			continue
		}
		lines := map[string][]string{"alone": {alone.Text()}}
		together, err := xid.Cascade(code.Number, xid.Options{PCI: pci})
		if err != nil {
			together = nil // few codes come with others
		}
		for _, step := range together {
			lines["in its cascade"] = append(lines["in its cascade"], step.Event.Text())
		}
		if len(together) > 0 {
			cascades++
		}
		for how, texts := range lines {
			host := hwHost()
			for i, text := range texts {
				host.KernelLog = append(host.KernelLog, hwLine(119+float64(i)/600, text))
			}
			roots := hwRoots(Examine(hwSnapshot(host), Options{}))
			if len(roots) > 1 {
				t.Errorf("XID %d %s has %d roots, %v:\n%s", code.Number, how, len(roots), roots,
					strings.Join(texts, "\n"))
			}
			if how == "alone" {
				root := strings.Join(roots, ", ")
				table[root] = append(table[root], fmt.Sprint(code.Number))
			}
		}
	}
	for root, codes := range table {
		if root == "" {
			root = "nothing above info"
		}
		t.Logf("%-24s %s", root, strings.Join(codes, " "))
	}
	if cascades < 5 {
		t.Errorf("only %d codes have a cascade", cascades)
	}
	for root, must := range map[string]string{
		"hw.gpu-lost warning": "79", // nvidia-smi still shows it
		"drv.gsp error":       "119", "hw.nvlink error": "74", "": "31",
	} {
		if !slices.Contains(table[root], must) {
			t.Errorf("XID %s is not %q", must, root)
		}
	}
}

// TestEveryInjectedXIDIsItsRuns verifies that the only root cause of each XID that this tool writes is its run, while
// the run is open.
func TestEveryInjectedXIDIsItsRuns(t *testing.T) {
	t.Parallel()
	pci, err := xid.ParsePCI("0000:17:00")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range xid.All() {
		event, err := xid.New(code.Number, xid.Options{PCI: pci})
		if err != nil {
			t.Fatal(err)
		}
		record, err := xid.Record(event, xid.FormAuto)
		if err != nil {
			t.Fatal(err)
		}
		at := hwNow.Add(-time.Minute)
		host := hwHost()
		host.KernelLog = append(host.KernelLog, api.KernelRecord{
			Sequence: 4711, Uptime: 119 * time.Minute, Time: at, Priority: record.Facility<<3 | record.Level,
			Text: record.Text,
		})
		s := hwSnapshot(host)
		s.Runs = []snapshot.Run{{
			ID: "xid-7k3f9q", Fault: "xid", Summary: fmt.Sprintf("XID %d on GPU 0", code.Number), Phase: "Proven",
			Created: at, Until: hwNow.Add(time.Hour),
			Targets: []snapshot.Target{{
				Kind: "Node", Name: "gpu-1", Permanent: true,
				Evidence: []snapshot.RunEvidence{{Source: "/dev/kmsg sequence 4711", Time: at, Text: record.Text}},
			}},
		}}
		if roots := hwRoots(Examine(s, Options{})); !slices.Equal(roots, []string{"fault.injected error"}) {
			t.Errorf("XID %d that we wrote has the roots %v", code.Number, roots)
		}
	}
}
