package api

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"time"
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

// FirewallSet returns the name of the set in a run's table, which does not give the run away. It identifies the table
// when its rule is gone.
func FirewallSet(run string) string {
	sum := sha256.Sum256([]byte(run))
	return "ports-" + hex.EncodeToString(sum[:3])
}
