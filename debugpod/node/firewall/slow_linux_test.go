package firewall

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

func (n podNode) slowed(s api.Slow, matches ...api.Match) api.Firewall {
	f := n.partition(matches...)
	f.Partition.Slow = &s
	return f
}

// fromPeer selects the packets from a network with the peer.
func fromPeer(network netip.Prefix) api.Match {
	return api.Match{Received: true, Peer: network, Probes: []netip.Addr{peerIP}}
}

// qdiscs returns the queueing disciplines of runs on the node.
func (n podNode) qdiscs(t *testing.T) int {
	t.Helper()
	conn, err := n.filter.traffic()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	own, err := ownQdiscs(conn)
	if err != nil {
		t.Fatal(err)
	}
	return len(own)
}

// transfer sends packets from the peer to the pod, and returns how long they took to arrive.
func (n podNode) transfer(t *testing.T, bytes int) (took time.Duration) {
	t.Helper()
	const size, port = 1000, 4000
	ready, sent := make(chan error, 1), make(chan error, 1)
	go func() {
		if err := <-ready; err != nil {
			sent <- err
			return
		}
		sent <- n.from.within(n.peer, func() error {
			to := packet{to: netip.AddrPortFrom(podIP, port)}
			socket, err := to.open(n.peer.Addresses)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(socket) }()
			for range bytes / size {
				if _, err := unix.Write(socket, make([]byte, size)); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	err := n.from.within(n.pod, func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		// Unlike unix.Read, a file goes on reading after a signal, which the Go runtime sends at any moment.
		arrived := os.NewFile(uintptr(socket), "the pod's socket")
		defer func() { _ = arrived.Close() }()
		err = errors.Join(unix.Bind(socket, &unix.SockaddrInet4{Port: port, Addr: podIP.As4()}),
			arrived.SetReadDeadline(time.Now().Add(20*time.Second)))
		begin := time.Now()
		ready <- err
		if err != nil {
			return err
		}
		for got := 0; got < bytes; {
			count, err := arrived.Read(make([]byte, 2*size))
			// The first packet is empty: it only opens the connection.
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("after %d bytes: %w", got, err)
			}
			got += count
		}
		took = time.Since(begin)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	return took
}

// TestRateInTheKernel holds that packets of the peer to the pod are limited to the rate, those of others are not, that
// the fault ends with the TTL, and that neither rules nor queueing disciplines remain after they are removed.
func TestRateInTheKernel(t *testing.T) {
	t.Parallel()
	const bytes = 64_000
	for name, tc := range map[string]struct {
		peer netip.Prefix
		ttl  time.Duration
		slow bool
	}{
		"the peer":       {prefixOf(peerIP), time.Hour, true},
		"its network":    {netip.PrefixFrom(peerIP, 24).Masked(), time.Hour, true},
		"after the TTL":  {prefixOf(peerIP), 2 * time.Second, false},
		"another server": {netip.MustParsePrefix("10.2.0.1/32"), time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newPodNode(t, true)
			f := n.slowed(api.Slow{Rate: 400_000}, fromPeer(tc.peer))
			f.TTL = tc.ttl
			if tc.peer.Contains(peerIP) {
				built, failure := buildPartition(testRun, f, n.filter, n.from)
				if failure != nil {
					t.Fatal(failure)
				}
				if !strings.Contains(built.Rule, "counter meta priority set ") ||
					!strings.HasSuffix(built.Rule, ": rate 400k bit/s") || len(built.Probes) != 1 ||
					!strings.HasPrefix(built.Probes[0], "a response from 10.2.0.2:9 to pod ml/a was delayed and took ") {
					t.Errorf("%+v", built)
				}
			} else if _, failure := buildPartition(testRun, f, n.filter, unprobed{n.from}); failure != nil {
				t.Fatal(failure)
			}
			if tc.ttl < time.Minute {
				awaitEnd(t, n.filter, f.Table, func(table *firewallTable) int { return len(table.pods) })
			}
			// Without the first burst of 16 KiB, 48 kB at 50 kB/s
			if took := n.transfer(t, bytes); (took > 600*time.Millisecond) != tc.slow {
				t.Errorf("%d bytes took %s, wanted slow %v", bytes, took, tc.slow)
			}
			removed, failure := removeAll(testRun, api.RemoveFirewall{}, n.filter)
			if failure != nil || removed.Links != 1 || (removed.Dropped > 0) != tc.peer.Contains(peerIP) {
				t.Errorf("%+v, %v", removed, failure)
			}
			if left := n.qdiscs(t); left != 0 {
				t.Errorf("%d queueing disciplines remain", left)
			}
			if took := n.transfer(t, bytes); took > 400*time.Millisecond {
				t.Errorf("%d bytes took %s after the end", bytes, took)
			}
		})
	}
}

// unprobed is a prober that accepts all rules as they are.
type unprobed struct{ podNetworks }

func (unprobed) check(api.PartitionedPod) error { return errOwnAddress }

// TestLatencyInTheKernel holds that answers of the peer arrive as late as requested. Where the kernel has no netem, it
// holds that the request is rejected with this reason, and that nothing was changed. In the virtual machines of
// test/kmod, the kernel must have it.
func TestLatencyInTheKernel(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	const latency = 300 * time.Millisecond
	f := n.slowed(api.Slow{Latency: latency, Jitter: 50 * time.Millisecond}, fromPeer(prefixOf(peerIP)))
	built, failure := buildPartition(testRun, f, n.filter, n.from)
	if failure != nil && os.Getenv("GPU_FAULT_TEST_NETEM") == "" {
		const want = "nothing was changed: the node's kernel lacks netem"
		if failure.Code != api.CodeNoFilter || !strings.Contains(failure.Message, want) {
			t.Errorf("%+v", failure)
		}
		if table, err := n.filter.find(api.PartitionTable(testRun)); table != nil || err != nil || n.qdiscs(t) != 0 {
			t.Errorf("the table or a queueing discipline exists: %v, %v", table, err)
		}
		return
	}
	if failure != nil {
		t.Fatal(failure)
	}
	if !strings.HasSuffix(built.Rule, ": latency 300ms ± 50ms") || len(built.Probes) != 1 {
		t.Errorf("%+v", built)
	}
	to := packet{netip.AddrPortFrom(peerIP, 9), true}
	took, err := n.from.answer(n.pod, to, 10*time.Second)
	if err != nil || took < latency-50*time.Millisecond-slack {
		t.Errorf("an answer of the peer took %s: %v", took, err)
	}
	if _, failure := removeAll(testRun, api.RemoveFirewall{}, n.filter); failure != nil || n.qdiscs(t) != 0 {
		t.Fatal("queueing disciplines remain", failure)
	}
	if took, err := n.from.answer(n.pod, to, 10*time.Second); err != nil || took > latency/2 {
		t.Errorf("after the end, an answer of the peer took %s: %v", took, err)
	}
}

// TestSlowIsRejected holds that pods whose link cannot be slowed down, or that do not get an answer, are left as they
// are.
func TestSlowIsRejected(t *testing.T) {
	t.Parallel()
	to := fromPeer(prefixOf(peerIP))
	for name, tc := range map[string]struct {
		change func(t *testing.T, n *podNode)
		match  api.Match
		want   string
		code   api.Code
	}{
		"a queueing discipline of another program": {
			match: to, code: api.CodeNoFilter, want: "link of pod ml/a already has a queueing discipline (tbf)",
			change: func(t *testing.T, n *podNode) {
				words := strings.Fields("tc qdisc add dev pod root tbf rate 1gbit burst 32kb latency 50ms")
				words = append([]string{"--net=" + n.filter.space.Name()}, words...)
				if out, err := exec.CommandContext(t.Context(), "nsenter", words...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			},
		},
		"another address": {
			match: to, code: api.CodeNoFilter, want: "the pod's network does not have the address 10.2.0.3",
			change: func(_ *testing.T, n *podNode) { n.pod.Addresses = []netip.Addr{otherIP} },
		},
		"no answer": {
			match: api.Match{Received: true, Peer: prefixOf(otherIP), Probes: []netip.Addr{otherIP}},
			code:  api.CodeBypassed, change: func(*testing.T, *podNode) {}, want: "but no response was delayed",
		},
		"no address": {
			match: api.Match{Received: true, Peer: prefixOf(otherIP)}, code: api.CodeBypassed,
			change: func(*testing.T, *podNode) {}, want: "no address found to which the pod could send a packet",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newPodNode(t, true)
			tc.change(t, &n)
			_, failure := buildPartition(testRun, n.slowed(api.Slow{Rate: 1_000_000}, tc.match), n.filter, n.from)
			if failure == nil || failure.Code != tc.code || !strings.Contains(failure.Message, tc.want) {
				t.Errorf("%+v, wanted %q", failure, tc.want)
			}
			table, err := n.filter.find(api.PartitionTable(testRun))
			if table != nil || err != nil || n.qdiscs(t) != 0 {
				t.Errorf("the table or a queueing discipline remains: %v, %v", table, err)
			}
		})
	}
}

// TestLeftQdiscs holds that a queueing discipline whose table another program has removed is found, and removed unless
// its run is to be kept.
func TestLeftQdiscs(t *testing.T) {
	t.Parallel()
	n := newPodNode(t, true)
	f := n.slowed(api.Slow{Rate: 1_000_000}, fromPeer(prefixOf(peerIP)))
	if _, failure := buildPartition(testRun, f, n.filter, n.from); failure != nil {
		t.Fatal(failure)
	}
	tables, err := n.filter.marked()
	if err != nil {
		t.Fatal(err)
	}
	if found := n.filter.leftQdiscs(tables, true, nil); len(found) != 0 {
		t.Errorf("of a run with a table: %+v", found)
	}
	if _, failure := removeFirewall(testRun, api.RemoveFirewall{}, n.filter); failure != nil {
		t.Fatal(failure)
	}
	kept := n.filter.leftQdiscs(nil, true, []string{testRun})
	if len(kept) != 1 || kept[0].Removed || n.qdiscs(t) != 1 {
		t.Errorf("of a run to keep: %+v", kept)
	}
	if found := n.filter.leftQdiscs(nil, true, nil); len(found) != 1 || !found[0].Removed || n.qdiscs(t) != 0 {
		t.Errorf("%+v", found)
	}
}

// FuzzTrafficRecord holds that no answer of the kernel makes the decoders of links and queueing disciplines panic, and
// that what is encoded is decoded.
func FuzzTrafficRecord(f *testing.F) {
	f.Add(trafficRecord{link: 1, handle: 0x60000000, parent: atRoot, kind: kindHTB, options: htbOptions()}.encode())
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, _ = decodeLink(raw)
		r, ok := decodeRecord(raw)
		_ = defaultOf(r.options)
		if !ok || r.kind == "" {
			return
		}
		again, ok := decodeRecord(r.encode())
		if !ok || again.link != r.link || again.kind != r.kind || string(again.options) != string(r.options) {
			t.Errorf("%+v became %+v", r, again)
		}
	})
}
