package xid

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// Who is asked "go ahead?" must know that a node may reboot, and not be told of detectors of clouds that they are not
// on.
func TestVerdictsBeforeTheQuestion(t *testing.T) {
	t.Parallel()
	event, err := xid.New(79, xid.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen, blind, reboots := verdicts(xid.DetectorsOn(nil), []xid.Event{event}, xid.FormAuto)
	var names []string
	for _, row := range seen.Rows {
		names = append(names, row[0])
	}
	own := strings.Join(names, ",")
	if !strings.Contains(own, "NVSentinel") || !strings.Contains(own, "gpud") || strings.Contains(own, "HyperPod") ||
		strings.Contains(own, "AKS") {
		t.Errorf("on one's own machines: %s", own)
	}
	if len(reboots) != 1 || !strings.Contains(reboots[0], "NVSentinel") {
		t.Errorf("79 may reboot nodes by NVSentinel, the warning names %v", reboots)
	}
	if !strings.Contains(strings.Join(blind, ","), "device-plugin") {
		t.Errorf("the device plugin does not read the log: %v", blind)
	}
	if _, _, reboots := verdicts(
		xid.DetectorsOn([]string{"kind://x", "aws:///eu-west-1a/i-0"}), []xid.Event{event}, xid.FormAuto,
	); len(reboots) != 2 {
		t.Errorf("on AWS HyperPod may reboot nodes too: %v", reboots)
	}
	// In the plain form journald cuts the prefix off, and NVSentinel sees nothing.
	_, blind, reboots = verdicts(xid.DetectorsOn(nil), []xid.Event{event}, xid.FormPlain)
	if len(reboots) != 0 || !strings.Contains(strings.Join(blind, ","), "NVSentinel") {
		t.Errorf("plain form: blind %v, reboots %v", blind, reboots)
	}
}
