// Package firewall has the kernel of a node drop packets, by nftables.
package firewall

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// ruleOf returns what the kernel is told for a run, in nft's words.
func ruleOf(f api.Firewall, run string) string {
	switch f.Drop {
	case api.DropAnswers:
		return "tcp sport @" + api.FirewallSet(run) + " counter drop"
	case api.DropLarge:
		return fmt.Sprintf("meta length > %d tcp sport @%s counter drop", api.LargePacket, api.FirewallSet(run))
	}
	return "tcp dport @" + api.FirewallSet(run) + " counter drop"
}

const firewallChain = "forward"

// packetFilter is the part of the node's kernel that firewalls are made in.
type packetFilter interface {
	// block makes a table with its rule in one step, both marked as the run's, or nothing of it. The error is
	// errTableExists where there is one.
	block(run string, f api.Firewall) error
	// look is what is in the table, with the run's set; nil where there is none.
	look(table, run string) (*firewallTable, error)
	// remove removes a table, or only the rules and the ports of a run. The error is errMeanwhile when some of it
	// went by itself.
	remove(name string, t *firewallTable, run string, all bool) error
	// marked are the tables with rules of runs, by name.
	marked() (map[string]mark, error)
	// tableOf is the name of the table that has the rule of a run, or its set; empty when there is none.
	tableOf(run string) (string, error)
	close() error
}

var (
	errTableExists = errors.New("there is a table of that name already")
	errMeanwhile   = errors.New("it changes meanwhile")
	errNoFilter    = errors.New("the node's kernel has no nftables for IPv4 and IPv6 (CONFIG_NF_TABLES_INET)")
)

// firewallTable is what is in a table.
type firewallTable struct {
	rules []firewallRule
	// ports are those in it, with how long they stay.
	ports map[int]time.Duration
	// others is what the run's firewall does not have, in nft's words.
	others []string
}

// firewallRule is a rule of a table.
type firewallRule struct {
	run     string // whose it is; empty: not ours
	port    int    // that it is about
	packets uint64 // that it has counted
	handle  uint64
}

// mark says in the kernel whose a rule is, and which port it is about.
type mark struct {
	run  string
	port int
}

func (m mark) String() string { return fmt.Sprintf("%s %d", m.run, m.port) }

// parseMark returns the other way round; nobody's when it is none.
func parseMark(text string) mark {
	run, number, _ := strings.Cut(text, " ")
	port, err := strconv.Atoi(number)
	if err != nil || deadman.ValidRun(run) != nil {
		return mark{}
	}
	return mark{run, port}
}

// Do does Firewall or RemoveFirewall.
func Do(req api.Request, host hostfs.Host) (last api.Answer, failure *api.Error) {
	filter, err := openFilter(host)
	switch {
	case errors.Is(err, errNoFilter):
		return last, api.Errorf(api.CodeNoFilter, "%v", err)
	case err != nil:
		return last, api.Errorf(api.CodeFilter, "%v", err)
	}
	defer func() { _ = filter.close() }()
	if req.Firewall != nil {
		last.Firewall, failure = buildFirewall(req.Run, *req.Firewall, filter)
	} else {
		last.RemovedFirewall, failure = removeFirewall(req.Run, *req.RemoveFirewall, filter)
	}
	return last, failure
}

// buildFirewall does Firewall, and reads it back.
func buildFirewall(run string, f api.Firewall, filter packetFilter) (*api.BuiltFirewall, *api.Error) {
	err := filter.block(run, f)
	switch {
	case errors.Is(err, errTableExists):
		return nil,
			api.Errorf(api.CodeExists, "the node has a table inet %s already, which is somebody's: nothing was changed",
				f.Table)
	case errors.Is(err, errNoFilter):
		return nil, api.Errorf(api.CodeNoFilter, "nothing was changed: %v", err)
	case err != nil:
		// With a timeout nobody knows whether it is there
		return nil, api.Errorf(api.CodeFilter, "make the table inet %s: %v", f.Table, err)
	}
	table, err := filter.look(f.Table, run)
	if err != nil {
		return nil, api.Errorf(api.CodeFilter, "the table inet %s was made, and cannot be read back: %v", f.Table, err)
	}
	if table == nil || len(table.rules) != 1 || table.rules[0].run != run || table.ports[f.Port] <= 0 {
		return nil, api.Errorf(api.CodeNotProven,
			"the table inet %s was made, and is not what was asked for when it is read back", f.Table)
	}
	return &api.BuiltFirewall{Rule: fmt.Sprintf("table inet %s: chain %s: %s; %s = {%d}", f.Table, firewallChain,
		ruleOf(f, run), api.FirewallSet(run), f.Port), Expires: table.ports[f.Port]}, nil
}

// removeFirewall does RemoveFirewall.
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
				"read the table inet %s: %v; by hand, on the node: nft delete table inet %[1]s", name, err)
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
				"remove the table inet %s: %v; by hand, on the node: nft delete table inet %[1]s", name, err)
		case all:
			result.Left = nil
		}
		return result, nil
	}
}

// examineFirewall reports what is in a run's table, before anything of it is removed.
func examineFirewall(run, name string, table *firewallTable) *api.RemovedFirewall {
	if table == nil { // it went in the meantime
		return &api.RemovedFirewall{}
	}
	blocked := table.blockedBy(run)
	result := &api.RemovedFirewall{Table: name, Removed: true, Expired: len(blocked) == 0 || len(table.rules) == 0}
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

// blockedBy returns the ports in the run's set that are the run's: those in the marks of its rules. When there are no
// marks, which `nft -f` loses when a ruleset is saved and loaded, all are.
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
