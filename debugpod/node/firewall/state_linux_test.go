package firewall

import (
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// state reads what was added to the network by hand.
func state(t *testing.T, n *netfilter) map[string]string {
	t.Helper()
	found := map[string]string{}
	if err := n.stateOfTables(found); err != nil {
		t.Fatal(err)
	}
	if err := n.stateOfRouting(found); err != nil {
		t.Fatal(err)
	}
	return found
}

// What somebody left in the firewall must be seen: a table, a rule that was added to a built-in chain, and that it
// drops packets. Counters change with each packet, and chains of network components with each Service, pod and policy:
// neither makes a difference, nor do the rules that lead there.
func TestStateOfTables(t *testing.T) {
	t.Parallel()
	n := emptyNetwork(t)
	if found := state(t, n); len(found) != 0 {
		t.Fatalf("an empty network has %v", found)
	}
	add := func(family nftables.TableFamily, table, chain string, exprs ...expr.Any) {
		t.Helper()
		in := n.conn.AddTable(&nftables.Table{Family: family, Name: table})
		into := &nftables.Chain{Table: in, Name: chain}
		if chain == "OUTPUT" {
			into.Type, into.Hooknum = nftables.ChainTypeFilter, nftables.ChainHookOutput
			into.Priority = nftables.ChainPriorityFilter
		}
		n.conn.AddRule(&nftables.Rule{Table: in, Chain: n.conn.AddChain(into), Exprs: exprs})
		if err := n.conn.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	const filter, later = api.StateBuiltIn + " ip filter", api.StateTable + " inet later"
	add(nftables.TableFamilyIPv4, "filter", "OUTPUT", &expr.Counter{Packets: 1},
		&expr.Verdict{Kind: expr.VerdictAccept})
	first := state(t, n)
	if len(first) != 1 || first[filter] == "" || strings.HasPrefix(first[filter], api.StateDrops) {
		t.Fatalf("a table with a rule that accepts: %v", first)
	}
	add(nftables.TableFamilyIPv4, "filter", "policies", &expr.Verdict{Kind: expr.VerdictDrop})
	add(nftables.TableFamilyIPv4, "filter", "OUTPUT", &expr.Counter{Packets: 7},
		&expr.Verdict{Kind: expr.VerdictJump, Chain: "policies"})
	add(nftables.TableFamilyIPv4, "kube-proxy", "services", &expr.Verdict{Kind: expr.VerdictDrop})
	if found := state(t, n); len(found) != 1 || found[filter] != first[filter] {
		t.Errorf("generated chains make a difference: %v, before %v", found, first)
	}
	add(nftables.TableFamilyINet, "later", "output", &expr.Verdict{Kind: expr.VerdictDrop})
	add(nftables.TableFamilyIPv4, "filter", "OUTPUT", &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictReturn})
	found := state(t, n)
	if found[filter] == first[filter] || !strings.HasPrefix(found[later], api.StateDrops) {
		t.Errorf("a new rule and a new table: %v, before %v", found, first)
	}
}

// The table of a run is known by its mark, so that removing it, or opening it, is not held against a candidate.
func TestStateOfARunsTable(t *testing.T) {
	t.Parallel()
	n := emptyNetwork(t)
	f := api.Firewall{Table: "hardening", Port: 27000, Drop: api.DropRequests, TTL: time.Hour}
	built(t, n, f)
	const item = api.StateTable + " inet hardening"
	if found := state(t, n); found[item] != api.StateOfRun {
		t.Fatalf("the table of a run: %v", found)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "hardening"}
	n.conn.FlushTable(table)
	if err := n.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if found := state(t, n); found[item] == "" || strings.HasPrefix(found[item], api.StateDrops) {
		t.Errorf("without its rule: %v", found)
	}
}

// A routing rule or a route that rejects packets, as ip(8) adds them, outlasts the pod that added it. Those of the
// kernel and of CNI plugins are not listed.
func TestStateOfRouting(t *testing.T) {
	t.Parallel()
	n := emptyNetwork(t)
	conn, err := n.traffic()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	send := func(message netlink.HeaderType, header [headerLength]byte, attributes ...netlink.Attribute) {
		t.Helper()
		data, err := netlink.MarshalAttributes(attributes)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Execute(netlink.Message{
			Header: netlink.Header{
				Type: message, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl,
			},
			Data: append(header[:], data...),
		}); err != nil {
			t.Fatal(err)
		}
	}
	route := func(protocol byte, to byte) {
		t.Helper()
		send(unix.RTM_NEWROUTE, [headerLength]byte{
			unix.AF_INET, 24, 0, 0, unix.RT_TABLE_MAIN, protocol, unix.RT_SCOPE_UNIVERSE, unix.RTN_BLACKHOLE,
		}, netlink.Attribute{Type: unix.RTA_DST, Data: []byte{10, 1, to, 0}})
	}
	const cni = 80
	route(cni, 1)
	route(unix.RTPROT_BOOT, 2)
	send(unix.RTM_NEWRULE, [headerLength]byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, 0, 0, unix.FR_ACT_PROHIBIT},
		netlink.Attribute{Type: rulePriority, Data: []byte{100, 0, 0, 0}},
		netlink.Attribute{Type: ruleProtocol, Data: []byte{unix.RTPROT_BOOT}})
	found := state(t, n)
	if _, ok := found[api.StateRoute+" blackhole 10.1.2.0/24"]; !ok || found[api.StateRule+" IPv4 100"] == "" ||
		len(found) != 2 {
		t.Errorf("the route and the rule: %v", found)
	}
}
