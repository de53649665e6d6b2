package firewall

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// pretender is a prober with DNS servers of the test, and with a function that runs before each packet.
type pretender struct {
	podNetworks
	servers []netip.Addr
	before  func()
}

func (p pretender) resolvers(api.PartitionedPod) []netip.Addr { return p.servers }

func (p pretender) send(pod api.PartitionedPod, what packet) error {
	if p.before != nil {
		p.before()
	}
	return p.podNetworks.send(pod, what)
}

// TestPartitionProbes holds that a rule is verified if another rule of the run drops the packet first, and that a rule
// for which no pod can send a packet is counted, and does not make the partition fail.
func TestPartitionProbes(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	to := func(peer string, probe netip.Addr) api.Match {
		return api.Match{Peer: netip.MustParsePrefix(peer), Probes: []netip.Addr{probe}}
	}
	dns := []api.Match{
		{Protocol: api.ProtocolTCP, DestinationPort: 53}, {Protocol: api.ProtocolUDP, DestinationPort: 53},
	}
	network, peer, own := to("10.2.0.0/24", peerIP), to("10.2.0.2/32", peerIP), to("10.1.0.2/32", podIP)
	both := []api.PartitionedPod{n.pod, n.peer}
	for name, tc := range map[string]struct {
		pods             []api.PartitionedPod // default: the pod
		matches          []api.Match
		servers          []netip.Addr
		probes, unprobed int
		from             string // the sender of the last packet
		fails            string
	}{
		"DNS servers of one family":       {matches: dns, servers: []netip.Addr{peerIP}, probes: 2, unprobed: 2},
		"no DNS server":                   {matches: dns, fails: "pod ml/a: no address found to which"},
		"no DNS server, and another peer": {matches: append(dns[:2:2], peer), probes: 1, unprobed: 4},
		"a peer in a network":             {matches: []api.Match{network, peer}, probes: 2},
		"a peer twice":                    {matches: []api.Match{peer, peer}, probes: 2},
		"DNS in a network": {
			matches: append([]api.Match{network}, dns...), servers: []netip.Addr{peerIP}, probes: 3, unprobed: 2,
		},
		"the pod is its own peer": {matches: []api.Match{own}, unprobed: 1},
		"a pod is the peer of another": {
			pods: both, matches: []api.Match{own}, probes: 1, from: "10.1.0.2:9 from pod ml/b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := n.partition(tc.matches...)
			if tc.pods != nil {
				f.Partition.Pods = tc.pods
			}
			built, failure := buildPartition(testRun, f, n.filter, pretender{n.from, tc.servers, nil})
			switch {
			case failure != nil && (tc.fails == "" || !strings.Contains(failure.Message, tc.fails)):
				t.Errorf("%v, wanted %q", failure, tc.fails)
			case failure == nil && (tc.fails != "" || len(built.Probes) != tc.probes || built.Unprobed != tc.unprobed ||
				!strings.HasSuffix(strings.Join(built.Probes, ""), tc.from)):
				t.Errorf("%+v, wanted %+v", built, tc)
			}
			if _, failure := removeFirewall(testRun, api.RemoveFirewall{}, n.filter); failure != nil {
				t.Fatal(failure)
			}
		})
	}
}

// TestPartitionIsRemovedAfterATimeout holds that rules whose counters cannot be read in time are removed, although the
// time of the connection is up, and that the processes of pods are searched once for all rules.
func TestPartitionIsRemovedAfterATimeout(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	searches := 0
	n.from.processesOf = func([]string) map[string]int { searches++; return n.pids }
	f := n.partition(api.Match{Protocol: api.ProtocolTCP, Probes: []netip.Addr{peerIP, peer6}},
		api.Match{Protocol: api.ProtocolUDP, Probes: []netip.Addr{peerIP, peer6}})
	packets := 0
	expire := func() {
		if packets++; packets < 4 {
			return
		}
		expired, err := nftables.New(nftables.WithNetNSFd(int(n.filter.space.Fd())), nftables.AsLasting(),
			nftables.WithSockOptions(func(conn *netlink.Conn) error {
				return conn.SetDeadline(time.Now().Add(-time.Second))
			}))
		if err != nil {
			t.Error(err)
			return
		}
		_ = n.filter.conn.CloseLasting()
		n.filter.conn = expired
	}
	_, failure := buildPartition(testRun, f, n.filter, pretender{n.from, nil, expire})
	if failure == nil || !strings.Contains(failure.Message, "read the counters of the rules") ||
		!strings.HasSuffix(failure.Message, "the rules were removed") {
		t.Errorf("%v", failure)
	}
	if table, err := n.filter.find(f.Table); table != nil || err != nil {
		t.Errorf("the table still exists: %v, %v", table, err)
	}
	if packets != 4 || searches != 1 {
		t.Errorf("%d packets and %d searches, wanted 4 and 1", packets, searches)
	}
}

// TestPartitionOfAPodThatEnded holds that nothing is changed if one of the pods no longer runs, because its address may
// belong to another pod by now.
func TestPartitionOfAPodThatEnded(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	f := n.partition(api.Match{Peer: prefixOf(otherIP), Probes: []netip.Addr{otherIP}})
	f.Partition.Pods = append(f.Partition.Pods, n.peer)
	delete(n.pids, n.peer.UID)
	_, failure := buildPartition(testRun, f, nil, n.from) // without a filter, any change panics
	if failure == nil || failure.Code != api.CodeNotRunning ||
		!strings.Contains(failure.Message, "no process of pod ml/b is running") {
		t.Errorf("%v", failure)
	}
}

// TestPodOfAnotherNetwork holds that not even the first packet of a TCP connection is sent from a network that does not
// have the address of the pod, and that a pod is found again if the process that was found before has ended.
func TestPodOfAnotherNetwork(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	f := n.partition(api.Match{Peer: prefixOf(peerIP), Probes: []netip.Addr{peerIP}})
	if _, failure := buildPartition(testRun, f, n.filter, n.from); failure != nil {
		t.Fatal(failure)
	}
	for _, tcp := range []bool{true, false} {
		p := packet{netip.AddrPortFrom(peerIP, 80), tcp}
		stranger := n.pod
		stranger.Addresses = []netip.Addr{otherIP}
		if n.drops(t, f, func() error {
			err := n.from.send(stranger, p)
			if err == nil || !strings.Contains(err.Error(), "does not have the address") {
				t.Errorf("%s was sent: %v", p, err)
			}
			return nil
		}) {
			t.Errorf("%s was sent from another address", p)
		}
	}
	n.from.known[n.pod.UID] = podProcess{"/proc/0", "net:[1]"}
	if err := n.from.check(n.pod); err != nil {
		t.Error(err)
	}
	n.pids[n.pod.UID] = 0
	n.from.known[n.pod.UID] = podProcess{"/proc/0", "net:[1]"}
	if err := n.from.check(n.pod); err == nil || !strings.Contains(err.Error(), "no process of the pod") {
		t.Errorf("%v", err)
	}
}
