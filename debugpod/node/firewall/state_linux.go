package firewall

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// generated are prefixes of the names of tables that network components generate.
var generated = []string{
	"kube-", "cni", "cali", "cilium", "flannel", "antrea", "docker", "ovn", "podman", "netavark", "libvirt",
}

func isGenerated(name string) bool {
	return slices.ContainsFunc(generated, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// builtIn reports whether a table is one of those that iptables uses. Network components share these tables. For each
// Service, pod and policy, the components change their own chains, to which the built-in chains jump.
func builtIn(table *nftables.Table) bool {
	return (table.Family == nftables.TableFamilyIPv4 || table.Family == nftables.TableFamilyIPv6) &&
		slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, table.Name)
}

// Rules returns a digest for each table, routing rule, route and qdisc on the node that drops, delays or diverts
// packets and was added by hand. The tables of runs are omitted.
func Rules(host hostfs.Host) (map[string]string, error) {
	filter, err := openNetfilterOf(host)
	if errors.Is(err, errNoFilter) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = filter.close() }()
	for range looks {
		found := map[string]string{}
		err = errors.Join(filter.stateOfTables(found), filter.stateOfRouting(found))
		if err == nil {
			return found, nil
		}
	}
	return nil, err
}

// looks is the number of attempts. The kernel interrupts a listing if the rules are changed in the meantime.
const looks = 3

// stateOfTables adds the tables.
func (n *netfilter) stateOfTables(found map[string]string) error {
	runs, err := n.marked()
	if err != nil {
		return err
	}
	tables, err := n.conn.ListTables()
	if err != nil {
		return err
	}
	chains, err := n.conn.ListChains()
	if err != nil {
		return err
	}
	for _, table := range tables {
		if isGenerated(table.Name) {
			continue
		}
		item := api.StateTable + " " + familyName(table.Family) + " " + table.Name
		if _, ofRun := runs[table.Name]; ofRun && table.Family == nftables.TableFamilyINet {
			found[item] = api.StateOfRun
			continue
		}
		if builtIn(table) {
			item = api.StateBuiltIn + " " + familyName(table.Family) + " " + table.Name
		}
		digest, drops := sha256.New(), false
		for _, chain := range chains {
			if chain.Table.Name != table.Name || chain.Table.Family != table.Family ||
				builtIn(table) && chain.Hooknum == nil {
				continue
			}
			dropsToo, err := n.digest(digest, chain)
			if err != nil {
				return fmt.Errorf("table %s: %w", table.Name, err)
			}
			drops = drops || dropsToo
		}
		found[item] = short(digest)
		if drops {
			found[item] = api.StateDrops + found[item]
		}
	}
	return nil
}

// digest adds a chain and its rules to a hash, without the rules' counters. drops reports whether the chain or one of
// its rules drops packets.
func (n *netfilter) digest(to io.Writer, chain *nftables.Chain) (drops bool, _ error) {
	rules, err := n.conn.GetRules(chain.Table, chain)
	if err != nil {
		return false, err
	}
	out := json.NewEncoder(to)
	if err := out.Encode([]any{chain.Name, chain.Type, chain.Hooknum, chain.Priority, chain.Policy}); err != nil {
		return false, err
	}
	drops = chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop
	for _, rule := range rules {
		kept := slices.DeleteFunc(rule.Exprs, func(e expr.Any) bool { _, is := e.(*expr.Counter); return is })
		if builtIn(chain.Table) && slices.ContainsFunc(kept, func(e expr.Any) bool {
			to, is := e.(*expr.Verdict)
			return is && to.Chain != ""
		}) {
			continue
		}
		for _, e := range kept {
			drops = drops || rejects(e)
			if err := out.Encode([]any{fmt.Sprintf("%T", e), e}); err != nil {
				return false, err
			}
		}
	}
	return drops, nil
}

func rejects(e expr.Any) bool {
	verdict, is := e.(*expr.Verdict)
	_, reject := e.(*expr.Reject)
	return reject || is && verdict.Kind == expr.VerdictDrop
}

// familyName returns nft's name for an address family.
func familyName(family nftables.TableFamily) string {
	switch family {
	case nftables.TableFamilyINet:
		return "inet"
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyARP:
		return "arp"
	case nftables.TableFamilyNetdev:
		return "netdev"
	case nftables.TableFamilyBridge:
		return "bridge"
	}
	return fmt.Sprint(family)
}

func short(digest hash.Hash) string { return hex.EncodeToString(digest.Sum(nil)[:8]) }

// Attributes of a routing rule (linux/fib_rules.h) that are missing from package unix, and the lengths of the messages'
// headers.
const (
	ruleProtocol = 21 // FRA_PROTOCOL
	rulePriority = unix.FRA_PRIORITY
	headerLength = 12 // of an rtmsg and a fib_rule_hdr
)

// stateOfRouting adds routing rules, routes that reject packets, and qdiscs.
func (n *netfilter) stateOfRouting(found map[string]string) error {
	conn, err := n.traffic()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	rules, err := dump(conn, unix.RTM_GETRULE)
	if err != nil {
		return fmt.Errorf("read the routing rules: %w", err)
	}
	for _, rule := range rules {
		if name, ok := ruleName(rule.Data); ok {
			digest := sha256.New()
			_, _ = digest.Write(rule.Data)
			found[api.StateRule+" "+name] = short(digest)
		}
	}
	routes, err := dump(conn, unix.RTM_GETROUTE)
	if err != nil {
		return fmt.Errorf("read the routes: %w", err)
	}
	for _, route := range routes {
		if name, ok := routeName(route.Data); ok {
			found[api.StateRoute+" "+name] = ""
		}
	}
	return stateOfQdiscs(conn, found)
}

func dump(conn *netlink.Conn, message netlink.HeaderType) ([]netlink.Message, error) {
	return conn.Execute(netlink.Message{
		Header: netlink.Header{Type: message, Flags: netlink.Request | netlink.Dump}, Data: make([]byte, headerLength),
	})
}

// byHand reports whether ip(8) or an administrator's configuration added a rule or route. Components set their own
// protocol, or none.
func byHand(protocol byte) bool {
	return protocol == unix.RTPROT_BOOT || protocol == unix.RTPROT_STATIC
}

// ruleName returns the family and priority of a routing rule that was added by hand.
func ruleName(raw []byte) (name string, ok bool) {
	var priority uint32
	attributes(raw, func(kind uint16, value []byte) {
		switch {
		case kind == rulePriority && len(value) == 4:
			priority = binary.NativeEndian.Uint32(value)
		case kind == ruleProtocol && len(value) == 1:
			ok = byHand(value[0])
		}
	})
	if !ok {
		return "", false
	}
	return fmt.Sprintf("%s %d", versionOf(raw[0]), priority), true
}

func versionOf(family byte) string {
	if family == unix.AF_INET6 {
		return "IPv6"
	}
	return "IPv4"
}

// routeName returns the type and destination of a route that was added by hand and rejects packets.
func routeName(raw []byte) (name string, ok bool) {
	if len(raw) < headerLength || !byHand(raw[5]) {
		return "", false
	}
	kind, ok := map[byte]string{
		unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit",
		unix.RTN_THROW: "throw",
	}[raw[7]]
	to := "default"
	attributes(raw, func(kind uint16, value []byte) {
		if address, valid := netip.AddrFromSlice(value); kind == unix.RTA_DST && valid {
			to = netip.PrefixFrom(address, int(raw[1])).String()
		}
	})
	return kind + " " + to, ok
}

func attributes(raw []byte, each func(kind uint16, value []byte)) {
	if len(raw) < headerLength {
		return
	}
	d, err := netlink.NewAttributeDecoder(raw[headerLength:])
	if err != nil {
		return
	}
	for d.Next() {
		each(d.Type(), d.Bytes())
	}
}

// stateOfQdiscs adds the qdiscs that delay packets, drop them or limit their rate, on links that do not belong to a
// pod.
func stateOfQdiscs(conn *netlink.Conn, found map[string]string) error {
	links, err := listLinks(conn)
	if err != nil {
		return err
	}
	qdiscs, err := records(conn, unix.RTM_GETQDISC, 0)
	if err != nil {
		return err
	}
	for _, q := range qdiscs {
		ofPod := slices.ContainsFunc(links,
			func(l linkRecord) bool { return l.index == q.link && l.kind == kindVeth })
		if !ofPod && slices.Contains([]string{kindNetem, "tbf", kindHTB, "hfsc", "red", "plug"}, q.kind) {
			digest := sha256.New()
			_, _ = digest.Write(q.options)
			found[fmt.Sprintf("%s %s on link %d", api.StateQdisc, q.kind, q.link)] = short(digest)
		}
	}
	return nil
}
