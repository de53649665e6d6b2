package api

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestPartitionValidate holds that the helper accepts only partitions whose rules the kernel can hold, and whose probes
// go to the peer.
func TestPartitionValidate(t *testing.T) {
	t.Parallel()
	address, peer := netip.MustParseAddr("10.1.0.2"), netip.MustParsePrefix("10.2.0.0/16")
	v6 := netip.MustParsePrefix("fd00::/8")
	for name, tc := range map[string]struct {
		change func(p *Partition)
		want   string
	}{
		"valid":          {change: func(*Partition) {}},
		"any peer":       {change: func(p *Partition) { p.Matches[0] = Match{Received: true} }},
		"no pods":        {func(p *Partition) { p.Pods = nil }, "invalid partition of 0 pods"},
		"no rules":       {func(p *Partition) { p.Matches = nil }, "with 0 rules"},
		"too many rules": {func(p *Partition) { p.Matches = make([]Match, MaxMatches+1) }, "must have 1 to 72"},
		"a path as UID":  {func(p *Partition) { p.Pods[0].UID = "../1" }, "invalid UID"},
		"loopback":       {func(p *Partition) { p.Pods[0].Addresses[0] = netip.IPv6Loopback() }, "invalid address"},
		"no address":     {func(p *Partition) { p.Pods[0].Addresses = nil }, "has 0 addresses"},
		"host bits":      {func(p *Partition) { p.Matches[0].Peer = netip.MustParsePrefix("10.2.0.1/16") }, "invalid peer"},
		"another family": {func(p *Partition) { p.Matches[0] = Match{Peer: v6} }, "same family"},
		"protocol":       {func(p *Partition) { p.Matches[0].Protocol = "icmp" }, "invalid protocol"},
		"port alone":     {func(p *Partition) { p.Matches[0].Protocol = "" }, "requires a protocol"},
		"port":           {func(p *Partition) { p.Matches[0].DestinationPort = 65536 }, "invalid port"},
		"slow": {change: func(p *Partition) {
			p.Matches[0] = Match{Received: true}
			p.Slow = &Slow{Latency: time.Second, Jitter: time.Second, Rate: MinRate}
		}},
		"slow, but sent":     {func(p *Partition) { p.Slow = &Slow{Rate: MinRate} }, "only packets that the pods receive"},
		"slow, but lost":     {func(p *Partition) { p.Slow, p.Loss = &Slow{Rate: MinRate}, 1 }, "cannot be combined"},
		"not slow":           {func(p *Partition) { p.Slow = &Slow{} }, "neither added latency nor a rate"},
		"too slow":           {func(p *Partition) { p.Slow = &Slow{Latency: time.Hour} }, "invalid latency 1h0m0s"},
		"before it was sent": {func(p *Partition) { p.Slow = &Slow{Latency: 1, Jitter: 2} }, "invalid jitter 2ns"},
		"rate":               {func(p *Partition) { p.Slow = &Slow{Rate: MaxRate + 1} }, "invalid rate 100000000001 bit/s"},
		"probe elsewhere":    {func(p *Partition) { p.Matches[0].Probes[0] = address }, "invalid probe"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Partition{
				Pods: []PartitionedPod{{Name: "ml/a", UID: "u-1", Addresses: []netip.Addr{address}}},
				Matches: []Match{{
					Peer: peer, Protocol: ProtocolTCP, DestinationPort: 80, Probes: []netip.Addr{peer.Addr().Next()},
				}},
			}
			tc.change(&p)
			err := Firewall{Table: PartitionTable("network-abc234"), TTL: time.Minute, Partition: &p}.Validate()
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, wanted %q", err, tc.want)
			}
			if err != nil {
				return
			}
			var again Partition
			raw, err := json.Marshal(p)
			if err != nil || json.Unmarshal(raw, &again) != nil || again.Matches[0].Peer != p.Matches[0].Peer {
				t.Errorf("%s: %v", raw, err)
			}
		})
	}
	both := Firewall{Table: "a", TTL: time.Minute, Port: 1, Drop: DropResponses, Partition: &Partition{}}
	if err := both.Validate(); err == nil || !strings.Contains(err.Error(), "cannot be combined") {
		t.Errorf("%v", err)
	}
}
