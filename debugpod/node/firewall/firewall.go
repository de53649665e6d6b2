// Package firewall makes a node's kernel drop packets, using nftables.
package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// ruleOf returns a run's rule in nft syntax.
func ruleOf(f api.Firewall, run string) string {
	switch f.Drop {
	case api.DropResponses:
		return "tcp sport @" + api.FirewallSet(run) + " counter drop"
	case api.DropLarge:
		return fmt.Sprintf("meta length > %d tcp sport @%s counter drop", api.LargePacket, api.FirewallSet(run))
	}
	return "tcp dport @" + api.FirewallSet(run) + " counter drop"
}

// The chains in tables, named after their hooks.
const (
	forwardChain = "forward"
	outputChain  = "output"
)

// chainOf returns the chain that contains the rule of a Firewall.
func chainOf(f api.Firewall) string {
	if f.Drop == api.DropOutgoing {
		return outputChain
	}
	return forwardChain
}

// isFirewallChain reports whether a chain with that name may contain a run's rule.
func isFirewallChain(name string) bool { return name == forwardChain || name == outputChain }

// packetFilter is the nftables interface of the node's kernel.
type packetFilter interface {
	// block atomically creates a table with its rule, both marked with the run. The error is errTableExists if the
	// table exists.
	block(run string, f api.Firewall) error
	// look returns the content of the table, including the run's set, or nil if the table does not exist.
	look(table, run string) (*firewallTable, error)
	// remove removes a table, or only a run's rules, ports and addresses. The error is errMeanwhile if any of these
	// objects no longer exists.
	remove(name string, t *firewallTable, run string, all bool) error
	// marked returns the tables that contain rules of runs, by name.
	marked() (map[string]mark, error)
	// tableOf returns the name of the table with the run's rule or set, or "" if there is none.
	tableOf(run string) (string, error)
	// slow adds queueing disciplines to the links of pods, for packets with the run's priority, and reads the queueing
	// disciplines back. The error is a slowError if nothing was changed.
	slow(run string, links []podLink, s api.Slow) error
	// passed returns the number of packets that were slowed down on the links.
	passed(run string, links []podLink) (uint64, error)
	// unslow removes a run's queueing disciplines, and returns how many it removed.
	unslow(run string) (int, error)
	// fresh replaces the connection to the kernel with a new one, so that the full timeout is available again.
	fresh() error
	close() error
}

var (
	errTableExists = errors.New("a table with this name already exists")
	errMeanwhile   = errors.New("the table is being changed by another program")
	errNoFilter    = errors.New("the node's kernel does not support nftables for IPv4 and IPv6 (CONFIG_NF_TABLES_INET)")
)

// firewallTable is the content of a table.
type firewallTable struct {
	rules []firewallRule
	// ports contains the blocked ports with their remaining time. pods contains the addresses of partitioned pods.
	ports map[int]time.Duration
	pods  map[netip.Addr]time.Duration
	// others lists everything that is not part of the run's firewall, in nft syntax.
	others []string
}

// firewallRule is a rule in a table.
type firewallRule struct {
	chain   string
	run     string // run that created the rule; empty for other rules
	port    int    // port in the mark
	packets uint64 // packet counter
	handle  uint64
}

// mark identifies, in the kernel, the run to which a rule belongs and the rule's port.
type mark struct {
	run  string
	port int
}

func (m mark) String() string { return fmt.Sprintf("%s %d", m.run, m.port) }

// parseMark parses the string form of a mark. It returns a zero mark if the string is not a mark.
func parseMark(text string) mark {
	run, number, _ := strings.Cut(text, " ")
	port, err := strconv.Atoi(number)
	if err != nil || deadman.ValidRun(run) != nil {
		return mark{}
	}
	return mark{run, port}
}

// Do handles Firewall and RemoveFirewall. processesOf returns, by pod UID, the PID of one process in each pod that has
// a process.
func Do(
	req api.Request, host hostfs.Host, processesOf func(podUIDs []string) map[string]int,
) (last api.Answer, failure *api.Error) {
	filter, err := openFilter(host)
	switch {
	case errors.Is(err, errNoFilter):
		return last, api.Errorf(api.CodeNoFilter, "%v", err)
	case err != nil:
		return last, api.Errorf(api.CodeFilter, "%v", err)
	}
	defer func() { _ = filter.close() }()
	switch {
	case req.Firewall == nil:
		last.RemovedFirewall, failure = removeAll(req.Run, *req.RemoveFirewall, filter)
	case req.Firewall.Partition != nil:
		from := newPodNetworks(host.Proc, processesOf)
		last.Firewall, failure = buildPartition(req.Run, *req.Firewall, filter, from)
	default:
		last.Firewall, failure = buildFirewall(req.Run, *req.Firewall, filter)
	}
	return last, failure
}

// blocked creates the table of a Firewall.
func blocked(run string, f api.Firewall, filter packetFilter) *api.Error {
	switch err := filter.block(run, f); {
	case errors.Is(err, errTableExists):
		return api.Errorf(api.CodeExists,
			"nothing was changed: the node already has a table inet %s, which this run did not create", f.Table)
	case errors.Is(err, errNoFilter):
		return api.Errorf(api.CodeNoFilter, "nothing was changed: %v", err)
	case err != nil:
		// After a timeout, it is unknown whether the table exists.
		return api.Errorf(api.CodeFilter, "create the table inet %s: %v", f.Table, err)
	}
	return nil
}

// buildFirewall handles a Firewall with a port, and reads the rule back to verify it.
func buildFirewall(run string, f api.Firewall, filter packetFilter) (*api.BuiltFirewall, *api.Error) {
	if failure := blocked(run, f, filter); failure != nil {
		return nil, failure
	}
	table, err := filter.look(f.Table, run)
	if err != nil {
		return nil, api.Errorf(api.CodeFilter, "the table inet %s was created but cannot be read back: %v", f.Table, err)
	}
	if table == nil || len(table.rules) != 1 || table.rules[0].run != run || table.ports[f.Port] <= 0 {
		return nil, api.Errorf(api.CodeNotProven,
			"the table inet %s was created but differs from the request when read back", f.Table)
	}
	return &api.BuiltFirewall{Rule: fmt.Sprintf("table inet %s: chain %s: %s; %s = {%d}", f.Table, chainOf(f),
		ruleOf(f, run), api.FirewallSet(run), f.Port), Expires: table.ports[f.Port]}, nil
}

// removeAll handles RemoveFirewall.
func removeAll(run string, req api.RemoveFirewall, filter packetFilter) (*api.RemovedFirewall, *api.Error) {
	links, err := filter.unslow(run)
	removed, failure := removeFirewall(run, req, filter)
	switch {
	case failure != nil:
		return nil, failure
	case err != nil:
		return nil, api.Errorf(api.CodeFilter, "%v", err)
	}
	removed.Links = links
	return removed, nil
}

// removeFirewall removes the rules of a run.
func removeFirewall(run string, req api.RemoveFirewall, filter packetFilter) (*api.RemovedFirewall, *api.Error) {
	const tries = 5
	for try := 1; ; try++ {
		name, err := filter.tableOf(run)
		if err != nil {
			return nil, api.Errorf(api.CodeFilter, "search nftables for the rule of run %s: %v", run, err)
		}
		if name == "" {
			return &api.RemovedFirewall{}, nil
		}
		table, err := filter.look(name, run)
		if err != nil {
			return nil, api.Errorf(api.CodeFilter,
				"read the table inet %s: %v; to remove the table manually, run this command on the node: nft delete table inet %[1]s", name, err)
		}
		result := examineFirewall(run, name, table)
		if !result.Removed {
			return result, nil
		}
		all := req.Overwrite || len(result.Left) == 0
		err = filter.remove(name, table, run, all)
		switch {
		case errors.Is(err, errMeanwhile) && try < tries:
			continue
		case err != nil:
			return nil, api.Errorf(api.CodeFilter,
				"remove the table inet %s: %v; to remove the table manually, run this command on the node: nft delete table inet %[1]s", name, err)
		case all:
			result.Left = nil
		}
		return result, nil
	}
}

// examineFirewall describes the content of a run's table before anything in it is removed.
func examineFirewall(run, name string, table *firewallTable) *api.RemovedFirewall {
	if table == nil { // the table was removed in the meantime
		return &api.RemovedFirewall{}
	}
	blocked := table.blockedBy(run)
	expired := len(blocked)+len(table.pods) == 0 || len(table.rules) == 0
	result := &api.RemovedFirewall{Table: name, Removed: true, Expired: expired}
	for _, rule := range table.rules {
		switch rule.run {
		case run:
			result.Dropped += rule.packets
		case "":
			result.Left = append(result.Left, "a rule")
		default:
			result.Left = append(result.Left, "a rule of run "+rule.run)
		}
	}
	for port := range table.ports {
		if !slices.Contains(blocked, port) {
			result.Left = append(result.Left, fmt.Sprintf("port %d", port))
		}
	}
	result.Left = append(result.Left, table.others...)
	slices.Sort(result.Left)
	return result
}

// blockedBy returns the ports in the run's set that the marks on its rules specify. If there are no marks, it returns
// all ports, because marks are lost when a ruleset is saved and reloaded with `nft -f`.
func (t *firewallTable) blockedBy(run string) []int {
	var marked, all []int
	found := false
	for _, rule := range t.rules {
		if rule.run != run {
			continue
		}
		found = true
		if _, there := t.ports[rule.port]; there {
			marked = append(marked, rule.port)
		}
	}
	for port := range t.ports {
		all = append(all, port)
	}
	if found {
		return marked
	}
	return all
}
