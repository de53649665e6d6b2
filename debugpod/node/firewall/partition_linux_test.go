package firewall

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// podNode is a node with a pod and a peer of the pod, each in a network namespace of its own.
type podNode struct {
	filter    *netfilter
	from      podNetworks
	pids      map[string]int // by UID
	pod, peer api.PartitionedPod
}

var (
	podIP   = netip.MustParseAddr("10.1.0.2")
	pod6    = netip.MustParseAddr("fd00:1::2")
	peerIP  = netip.MustParseAddr("10.2.0.2")
	peer6   = netip.MustParseAddr("fd00:2::2")
	otherIP = netip.MustParseAddr("10.2.0.3")
)

// newPodNode returns a node. It forwards packets between the pod and its peer if forwarding is set; otherwise they
// reach no rule of the node, as with a CNI plugin that bypasses netfilter.
func newPodNode(t *testing.T, forwarding bool) podNode {
	t.Helper()
	node, pod, peer := ownNetwork(t), ownNetwork(t), ownNetwork(t)
	in := func(pid int, line string) {
		t.Helper()
		words := append([]string{"-t", fmt.Sprint(pid), "-n"}, strings.Fields(line)...)
		if out, err := exec.CommandContext(t.Context(), "nsenter", words...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	for _, side := range []struct {
		name string
		pid  int
		net  int
	}{{"pod", pod, 1}, {"peer", peer, 2}} {
		in(node, fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", side.name, side.pid))
		in(node, fmt.Sprintf("ip addr add 10.%d.0.1/24 dev %s", side.net, side.name))
		in(node, fmt.Sprintf("ip addr add fd00:%d::1/64 dev %s nodad", side.net, side.name))
		in(node, "ip link set "+side.name+" up")
		in(side.pid, fmt.Sprintf("ip addr add 10.%d.0.2/24 dev eth0", side.net))
		in(side.pid, fmt.Sprintf("ip addr add fd00:%d::2/64 dev eth0 nodad", side.net))
		in(side.pid, "ip link set lo up")
		in(side.pid, "ip link set eth0 up")
		in(side.pid, fmt.Sprintf("ip route add default via 10.%d.0.1", side.net))
		in(side.pid, fmt.Sprintf("ip -6 route add default via fd00:%d::1", side.net))
	}
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		value := 0
		if forwarding {
			value = 1
		}
		in(node, fmt.Sprintf("sysctl -q -w %s=%d", name, value))
	}
	filter, err := openNetfilter(fmt.Sprintf("/proc/%d/ns/net", node))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = filter.close() })
	pids := map[string]int{"u-1": pod, "u-2": peer}
	return podNode{
		filter: filter, pids: pids,
		from: newPodNetworks(procOf(t, node, pod, peer), func([]string) map[string]int { return pids }),
		pod:  api.PartitionedPod{Name: "ml/a", UID: "u-1", Addresses: []netip.Addr{podIP, pod6}},
		peer: api.PartitionedPod{Name: "ml/b", UID: "u-2", Addresses: []netip.Addr{peerIP, peer6}},
	}
}

// ownNetwork returns the PID of a process in a network namespace of its own.
func ownNetwork(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatalf("a process in a network namespace: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// procOf returns a /proc in which process 1 is that of the node.
func procOf(t *testing.T, node int, pods ...int) string {
	t.Helper()
	dir := t.TempDir()
	links := map[string]int{"1": node}
	for _, pid := range pods {
		links[fmt.Sprint(pid)] = pid
	}
	for name, pid := range links {
		if err := os.Symlink(fmt.Sprintf("/proc/%d", pid), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (n podNode) partition(matches ...api.Match) api.Firewall {
	return api.Firewall{Table: api.PartitionTable(testRun), TTL: time.Hour, Partition: &api.Partition{
		Pods: []api.PartitionedPod{n.pod}, Matches: matches,
	}}
}

func prefixOf(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// TestPartitionInTheKernel holds that the rules of all kinds drop the packets of a pod, as their counters show, that
// they select the packets that they describe, and that nothing remains after they are removed.
func TestPartitionInTheKernel(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	pods, pods6 := "@"+api.PartitionSet(testRun, false), "@"+api.PartitionSet(testRun, true)
	for name, tc := range map[string]struct {
		match   api.Match
		rules   []string
		probes  int
		dropped []packet // packets that must be dropped
		passes  []packet
		// received and passesIn are packets of the peer.
		received, passesIn []packet
	}{
		"an address": {
			match: api.Match{Peer: prefixOf(peerIP), Probes: []netip.Addr{peerIP}}, probes: 1,
			rules:   []string{"ip saddr " + pods + " ip daddr 10.2.0.2 counter drop"},
			dropped: []packet{{netip.AddrPortFrom(peerIP, 80), true}, {netip.AddrPortFrom(peerIP, 53), false}},
			passes:  []packet{{netip.AddrPortFrom(otherIP, 80), true}, {netip.AddrPortFrom(peer6, 80), true}},
		},
		"a network and a port": {
			match: api.Match{
				Peer: netip.MustParsePrefix("10.2.0.0/30"), Protocol: api.ProtocolTCP, DestinationPort: 80,
				Probes: []netip.Addr{peerIP},
			},
			probes: 1, rules: []string{"ip saddr " + pods + " ip daddr 10.2.0.0/30 tcp dport 80 counter drop"},
			dropped: []packet{{netip.AddrPortFrom(otherIP, 80), true}},
			passes: []packet{
				{netip.AddrPortFrom(peerIP, 80), false}, {netip.AddrPortFrom(peerIP, 81), true},
				{netip.MustParseAddrPort("10.2.0.4:80"), true},
			},
		},
		"IPv6": {
			match: api.Match{
				Peer: netip.MustParsePrefix("fd00:2::/64"), Protocol: api.ProtocolUDP, DestinationPort: 53,
				Probes: []netip.Addr{peer6},
			},
			probes: 1, rules: []string{"ip6 saddr " + pods6 + " ip6 daddr fd00:2::/64 udp dport 53 counter drop"},
			dropped: []packet{{netip.AddrPortFrom(peer6, 53), false}},
			passes:  []packet{{netip.AddrPortFrom(peer6, 53), true}, {netip.AddrPortFrom(peer6, 54), false}},
		},
		"any address": {
			match: api.Match{Protocol: api.ProtocolTCP, Probes: []netip.Addr{peerIP, peer6}}, probes: 2,
			rules: []string{
				"ip saddr " + pods + " meta l4proto tcp counter drop",
				"ip6 saddr " + pods6 + " meta l4proto tcp counter drop",
			},
			dropped: []packet{{netip.AddrPortFrom(peerIP, 80), true}, {netip.AddrPortFrom(peer6, 80), true}},
			passes:  []packet{{netip.AddrPortFrom(peerIP, 80), false}},
		},
		"received": {
			match: api.Match{
				Received: true, Peer: prefixOf(peerIP), Protocol: api.ProtocolUDP, DestinationPort: 80,
			},
			rules:    []string{"ip daddr " + pods + " ip saddr 10.2.0.2 udp dport 80 counter drop"},
			passes:   []packet{{netip.AddrPortFrom(peerIP, 80), false}},
			received: []packet{{netip.AddrPortFrom(podIP, 80), false}},
			passesIn: []packet{{netip.AddrPortFrom(podIP, 80), true}, {netip.AddrPortFrom(podIP, 81), false}},
		},
		"answers": {
			match: api.Match{Received: true, Protocol: api.ProtocolTCP, SourcePort: 53},
			// The packet arrives, and its answer is dropped.
			dropped:  []packet{{netip.AddrPortFrom(peerIP, 53), true}},
			passes:   []packet{{netip.AddrPortFrom(peerIP, 54), true}},
			passesIn: []packet{{netip.AddrPortFrom(podIP, 53), true}},
			rules: []string{
				"ip daddr " + pods + " tcp sport 53 counter drop", "ip6 daddr " + pods6 + " tcp sport 53 counter drop",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := n.partition(tc.match)
			built, failure := buildPartition(testRun, f, n.filter, n.from)
			if failure != nil {
				t.Fatal(failure)
			}
			want := "table inet " + f.Table + ": chain forward: " + strings.Join(tc.rules, "; ") +
				"; pods = {10.1.0.2, fd00:1::2}"
			if built.Rule != want || len(built.Probes) != tc.probes || built.Expires < 59*time.Minute {
				t.Errorf("built %+v, wanted %q and %d probes", built, want, tc.probes)
			}
			check := func(sender api.PartitionedPod, packets []packet, dropped bool) {
				for _, p := range packets {
					if got := n.drops(t, f, func() error { return n.from.send(sender, p) }); got != dropped {
						t.Errorf("%s from %s: dropped %v, wanted %v", p, sender.Name, got, dropped)
					}
				}
			}
			check(n.pod, tc.dropped, true)
			check(n.pod, tc.passes, false)
			check(n.peer, tc.received, true)
			check(n.peer, tc.passesIn, false)
			removed, failure := removeFirewall(testRun, api.RemoveFirewall{}, n.filter)
			if failure != nil || !removed.Removed || removed.Expired || len(removed.Left) > 0 {
				t.Errorf("removed %+v, %v", removed, failure)
			}
			if table, err := n.filter.find(f.Table); table != nil || err != nil {
				t.Errorf("the table still exists: %v, %v", table, err)
			}
		})
	}
}

// TestLossInTheKernel holds that a loss drops about the share of the packets that was requested, and no packet to
// others.
func TestLossInTheKernel(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	f := n.partition(api.Match{Peer: prefixOf(peerIP), Probes: []netip.Addr{peerIP}})
	f.Partition.Loss = 40
	built, failure := buildPartition(testRun, f, n.filter, n.from)
	if failure != nil {
		t.Fatal(failure)
	}
	if !strings.Contains(built.Rule, "ip daddr 10.2.0.2 numgen random mod 100 < 40 counter drop") ||
		len(built.Probes) != 1 || !strings.HasPrefix(built.Probes[0], "some of the copies (28) of a UDP packet to 10.2.0.2:9") {
		t.Errorf("%+v", built)
	}
	const sent = 200
	before := n.dropped(t, f)
	for range sent {
		for _, to := range []netip.Addr{peerIP, otherIP} {
			if err := n.from.send(n.pod, packet{to: netip.AddrPortFrom(to, 80)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Eighty, and six standard deviations
	const least, most = 38, 122
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, lastProbe, true,
		func(context.Context) (bool, error) { return n.dropped(t, f)-before >= least, nil })
	if got := n.dropped(t, f) - before; err != nil || got > most {
		t.Errorf("%d of %d packets were dropped, wanted about 40%%: %v", got, sent, err)
	}
}

// dropped returns the number of packets that the rules of a partition have dropped. It uses a new connection, because
// an emulated machine may take longer to send the packets than the timeout of a connection.
func (n podNode) dropped(t *testing.T, f api.Firewall) (all uint64) {
	t.Helper()
	if err := n.filter.fresh(); err != nil {
		t.Fatal(err)
	}
	table, err := n.filter.look(f.Table, testRun)
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range table.rules {
		all += rule.packets
	}
	return all
}

// drops reports whether the rules of a partition drop the packet that send sends.
func (n podNode) drops(t *testing.T, f api.Firewall, send func() error) bool {
	t.Helper()
	before := n.dropped(t, f)
	if err := send(); err != nil {
		t.Fatal(err)
	}
	risen, err := rises(func() (uint64, error) { return n.dropped(t, f), nil }, before, eachProbe)
	if err != nil {
		t.Fatal(err)
	}
	return risen
}

// TestPartitionThatDropsNothing holds that a partition whose packets do not reach netfilter is removed at once, and
// that the error names the address; likewise if the pod has no network of its own, or another address.
func TestPartitionThatDropsNothing(t *testing.T) {
	t.Parallel()
	to := api.Match{Peer: prefixOf(peerIP), Probes: []netip.Addr{peerIP}}
	for name, tc := range map[string]struct {
		forwarding bool
		change     func(*podNode)
		want       string
	}{
		"packets bypass netfilter": {
			change: func(*podNode) {}, want: "a UDP packet to 10.2.0.2:9, but no packet reached the rule",
		},
		"the pod is in the host network": {
			forwarding: true, want: "does not have its own network",
			change: func(n *podNode) { n.pids[n.pod.UID] = 1 },
		},
		"another address": {
			forwarding: true, want: "does not have the address 10.2.0.3",
			change: func(n *podNode) { n.pod.Addresses = []netip.Addr{otherIP} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newPodNode(t, tc.forwarding)
			tc.change(&n)
			_, failure := buildPartition(testRun, n.partition(to), n.filter, n.from)
			if failure == nil || failure.Code != api.CodeBypassed || !strings.Contains(failure.Message, tc.want) ||
				!strings.HasSuffix(failure.Message, "the rules were removed") {
				t.Errorf("%v", failure)
			}
			if table, err := n.filter.find(api.PartitionTable(testRun)); table != nil || err != nil {
				t.Errorf("the table still exists: %v, %v", table, err)
			}
		})
	}
}

// TestPartitionEndsByItself holds that the kernel is the dead man's switch: the rules match nothing after the TTL, and
// the table can still be removed.
func TestPartitionEndsByItself(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	f := n.partition(api.Match{Peer: prefixOf(peerIP), Probes: []netip.Addr{peerIP}})
	f.TTL = 2 * time.Second
	if _, failure := buildPartition(testRun, f, n.filter, n.from); failure != nil {
		t.Fatal(failure)
	}
	awaitEnd(t, n.filter, f.Table, func(table *firewallTable) int { return len(table.pods) })
	late := packet{netip.AddrPortFrom(peerIP, 80), true}
	if n.drops(t, f, func() error { return n.from.send(n.pod, late) }) {
		t.Error("a packet was dropped after the TTL")
	}
	removed, failure := removeFirewall(testRun, api.RemoveFirewall{}, n.filter)
	if failure != nil || !removed.Removed || !removed.Expired || removed.Dropped == 0 {
		t.Errorf("%+v, %v", removed, failure)
	}
}

// TestPartitionBesideOthersRules holds that what other clients add to the table remains, without the rules and
// addresses of the run, and that the table is found without the marks of its rules.
func TestPartitionBesideOthersRules(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	f := n.partition(api.Match{Received: true})
	if _, failure := buildPartition(testRun, f, n.filter, n.from); failure != nil {
		t.Fatal(failure)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: f.Table}
	n.filter.conn.FlushChain(&nftables.Chain{Name: forwardChain, Table: table})
	n.filter.conn.AddChain(&nftables.Chain{Table: table, Name: "theirs"})
	if err := n.filter.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	removed, failure := removeFirewall(testRun, api.RemoveFirewall{}, n.filter)
	if failure != nil || !removed.Removed || strings.Join(removed.Left, ", ") != "chain theirs" {
		t.Errorf("%+v, %v", removed, failure)
	}
	found, err := n.filter.look(f.Table, testRun)
	if err != nil || found == nil || len(found.pods)+len(found.rules) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// FuzzResolvers holds that only addresses of DNS servers outside of the pod are taken from a container's resolv.conf,
// whatever is in it.
func FuzzResolvers(f *testing.F) {
	f.Add("nameserver 10.96.0.10\nsearch a.b\noptions ndots:5\n")
	f.Add("nameserver ::1\nnameserver fe80::1%eth0\n nameserver\tfd00::a # x\nnameserver 999.1.1.1")
	f.Fuzz(func(t *testing.T, text string) {
		all := parseResolvers(text)
		if len(all) > mostResolvers {
			t.Errorf("%d servers", len(all))
		}
		for _, a := range all {
			if !a.IsValid() || a.IsLoopback() || a.Zone() != "" || !strings.Contains(text, "nameserver") {
				t.Errorf("%q gives %s", text, a)
			}
		}
	})
}
