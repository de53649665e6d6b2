package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Firewall has the node's kernel drop packets between pods of the node and a TCP port elsewhere: a rule of nftables in
// a table of its own, where the node forwards. The kernel itself is the dead man: it forgets the port when the time is
// up, and all of it when the node boots. Pods in the node's network, and CNIs that forward past netfilter (eBPF), are
// not concerned.
type Firewall struct {
	// Table is the name of the table, of the family inet. There must be none of that name.
	Table string `json:"table"`
	// Port is the one that servers listen on.
	Port int  `json:"port"`
	Drop Drop `json:"drop"`
	// TTL is how long the port is blocked, by the node's clock.
	TTL time.Duration `json:"ttl"`
}

// Drop is what a Firewall drops.
type Drop string

// What a Firewall drops.
const (
	DropRequests Drop = "requests" // to the port: no connection is made
	DropAnswers  Drop = "answers"  // from the port: the server hears of a connection that is never made
	// From the port, when longer than LargePacket: a connection is made, and data do not arrive
	DropLarge Drop = "large"
)

// Drops are all of them.
var Drops = []Drop{DropRequests, DropAnswers, DropLarge}

// LargePacket is the longest packet that DropLarge lets through, in bytes with its IP header. IPv4 asks every network
// for 576 (RFC 791).
const LargePacket = 576

// RemoveFirewall removes the table of the request's run, which the kernel knows by the rule's mark or by the name of
// the set: no request names a table. What another client has put into it stays, except with Overwrite.
type RemoveFirewall struct {
	Overwrite bool `json:"overwrite,omitempty"`
}

// BuiltFirewall proves a Firewall: it was read back from the kernel.
type BuiltFirewall struct {
	// Rule is in nft's words.
	Rule string `json:"rule"`
	// Expires is how long the kernel still blocks the port.
	Expires time.Duration `json:"expires"`
}

// RemovedFirewall is what became of the table.
type RemovedFirewall struct {
	// Table is its name; empty when the node has none of the run's.
	Table string `json:"table,omitempty"`
	// Removed reports whether it was there. It is not any more, unless something is in Left.
	Removed bool `json:"removed,omitempty"`
	// Expired reports whether the kernel had let the port go already, or somebody had made the rule end.
	Expired bool `json:"expired,omitempty"`
	// Left says what somebody else has put into the table. It was left; what was ours is gone.
	Left []string `json:"left,omitempty"`
	// Dropped is how many packets the rule has dropped.
	Dropped uint64 `json:"dropped,omitempty"`
}

// tableNames are those that need no quotes in nft's language, and are no option.
var tableNames = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,30}$`)

// maxFirewall is the longest TTL: fault runs last no longer.
const maxFirewall = 48 * time.Hour

// Validate returns what of the request makes no sense.
func (f Firewall) Validate() error {
	switch {
	case !tableNames.MatchString(f.Table):
		return fmt.Errorf("%q is no name for a table: small letters, digits, - and _, at most 31", f.Table)
	case f.Port < 1 || f.Port > 65535:
		return fmt.Errorf("%d is no TCP port", f.Port)
	case !slices.Contains(Drops, f.Drop):
		return fmt.Errorf("%q cannot be dropped: choose requests, answers or large", f.Drop)
	case f.TTL < time.Second || f.TTL > maxFirewall:
		return fmt.Errorf("it cannot last %s: give 1s to %s", f.TTL, maxFirewall)
	}
	return nil
}

// rule returns what the kernel is told for a run, in nft's words.
func (f Firewall) rule(run string) string {
	switch f.Drop {
	case DropAnswers:
		return "tcp sport @" + FirewallSet(run) + " counter drop"
	case DropLarge:
		return fmt.Sprintf("meta length > %d tcp sport @%s counter drop", LargePacket, FirewallSet(run))
	}
	return "tcp dport @" + FirewallSet(run) + " counter drop"
}

const firewallChain = "forward"

// FirewallSet returns the name of the set in a run's table, which does not give the run away. It identifies the table
// when its rule is gone.
func FirewallSet(run string) string {
	sum := sha256.Sum256([]byte(run))
	return "ports-" + hex.EncodeToString(sum[:3])
}

// packetFilter is the part of the node's kernel that firewalls are made in.
type packetFilter interface {
	// block makes a table with its rule in one step, both marked as the run's, or nothing of it. The error is
	// errTableExists where there is one.
	block(run string, f Firewall) error
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

// doFirewall does Firewall or RemoveFirewall.
func doFirewall(req Request, host Host) (last Answer, failure *Error) {
	filter, err := openFilter(host)
	switch {
	case errors.Is(err, errNoFilter):
		return last, errorf(CodeNoFilter, "%v", err)
	case err != nil:
		return last, errorf(CodeFilter, "%v", err)
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
func buildFirewall(run string, f Firewall, filter packetFilter) (*BuiltFirewall, *Error) {
	err := filter.block(run, f)
	switch {
	case errors.Is(err, errTableExists):
		return nil,
			errorf(CodeExists, "the node has a table inet %s already, which is somebody's: nothing was changed",
				f.Table)
	case errors.Is(err, errNoFilter):
		return nil, errorf(CodeNoFilter, "nothing was changed: %v", err)
	case err != nil:
		// With a timeout nobody knows whether it is there
		return nil, errorf(CodeFilter, "make the table inet %s: %v", f.Table, err)
	}
	table, err := filter.look(f.Table, run)
	if err != nil {
		return nil, errorf(CodeFilter, "the table inet %s was made, and cannot be read back: %v", f.Table, err)
	}
	if table == nil || len(table.rules) != 1 || table.rules[0].run != run || table.ports[f.Port] <= 0 {
		return nil, errorf(CodeNotProven,
			"the table inet %s was made, and is not what was asked for when it is read back", f.Table)
	}
	return &BuiltFirewall{Rule: fmt.Sprintf("table inet %s: chain %s: %s; %s = {%d}", f.Table, firewallChain,
		f.rule(run), FirewallSet(run), f.Port), Expires: table.ports[f.Port]}, nil
}

// removeFirewall does RemoveFirewall.
func removeFirewall(run string, req RemoveFirewall, filter packetFilter) (*RemovedFirewall, *Error) {
	const tries = 5
	for try := 1; ; try++ {
		name, err := filter.tableOf(run)
		if err != nil {
			return nil, errorf(CodeFilter, "search nftables for the rule of run %s: %v", run, err)
		}
		if name == "" {
			return &RemovedFirewall{}, nil
		}
		table, err := filter.look(name, run)
		if err != nil {
			return nil, errorf(CodeFilter,
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
			return nil, errorf(CodeFilter,
				"remove the table inet %s: %v; by hand, on the node: nft delete table inet %[1]s", name, err)
		case all:
			result.Left = nil
		}
		return result, nil
	}
}

// examineFirewall reports what is in a run's table, before anything of it is removed.
func examineFirewall(run, name string, table *firewallTable) *RemovedFirewall {
	if table == nil { // it went in the meantime
		return &RemovedFirewall{}
	}
	blocked := table.blockedBy(run)
	result := &RemovedFirewall{Table: name, Removed: true, Expired: len(blocked) == 0 || len(table.rules) == 0}
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
