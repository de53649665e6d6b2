package network

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestParseBlocked tests that a firewall's log line is parsed into the dropped packet, and that other lines are
// ignored.
func TestParseBlocked(t *testing.T) {
	t.Parallel()
	b, ok := parseBlocked(
		"[UFW BLOCK] IN=lxc6f1c0ad2 OUT=eno1 MAC=aa:bb SRC=10.1.0.25 DST=8.8.8.8 LEN=60 TOS=0x00 PREC=0x00 TTL=63 ID=1 DF PROTO=UDP SPT=41234 DPT=53 LEN=40",
	)
	if !ok || !b.ufw || b.in != "lxc6f1c0ad2" || b.out != "eno1" || b.src != netip.MustParseAddr("10.1.0.25") ||
		b.proto != "UDP" || b.port != "53" {
		t.Errorf("parseBlocked gives %+v, %v", b, ok)
	}
	if b, ok := parseBlocked("FINAL_REJECT: IN=cni0 OUT=eth0 SRC=10.42.0.9 DST=1.1.1.1 PROTO=TCP DPT=443"); !ok ||
		b.ufw {
		t.Errorf("firewalld's line gives %+v, %v", b, ok)
	}
	for _, text := range []string{
		"NVRM: Xid (PCI:0000:17:00): 79", "audit: IN=a OUT=b SRC=1.2.3.4 DST=1.2.3.4",
		"[UFW BLOCK] IN=a OUT=b SRC=x DST=y", "",
	} {
		if b, ok := parseBlocked(text); ok {
			t.Errorf("%q is taken for a dropped packet: %+v", text, b)
		}
	}
}

// TestNetworkTextsInCommands tests that untrusted strings are quoted in commands or omitted.
func TestNetworkTextsInCommands(t *testing.T) {
	t.Parallel()
	failed := pulling{image: "x;reboot", failure: pullFailure{"img.not-found", "tag"}}
	_, fix := pullFix(&facts.Facts{Snapshot: &snapshot.Snapshot{}}, &corev1.Pod{}, failed)
	if got := strings.Join(fix.Commands, " "); !strings.Contains(got, "crictl pull 'x;reboot'") {
		t.Errorf("the image is not quoted in the command: %s", got)
	}
	if name := interfaceName("eth0;reboot"); name != "" {
		t.Errorf("%q is accepted as an interface", name)
	}
}

// FuzzNetworkTexts tests that any kernel log line or message can be parsed.
func FuzzNetworkTexts(f *testing.F) {
	f.Add(
		"[UFW BLOCK] IN=lxc6f1c0ad2 OUT=eno1 MAC=aa:bb SRC=10.1.0.25 DST=8.8.8.8 LEN=60 TOS=0x00 PREC=0x00 TTL=63 ID=1 DF PROTO=UDP SPT=41234 DPT=53 LEN=40",
	)
	f.Add(`failed to pull "x": dial tcp: i/o timeout`)
	f.Fuzz(func(t *testing.T, text string) {
		b, ok := parseBlocked(text)
		if ok && (!b.src.IsValid() || !b.dst.IsValid()) {
			t.Errorf("a packet without addresses: %+v", b)
		}
		n := &facts.Node{Node: &corev1.Node{}}
		if fix := firewallFix(n, b); ok && fix.Text == "" {
			t.Error("no fix")
		}
		if p, known := classifyPull(text); known && p.kind == "" {
			t.Errorf("%q has no kind", text)
		}
		if strings.ContainsAny(registryOf(text), "/") {
			t.Errorf("the registry of %q has a path", text)
		}
		quotedWord(text)
	})
}
