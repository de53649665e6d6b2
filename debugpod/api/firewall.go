package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Firewall uses an nftables rule in a separate table to make the node's kernel drop forwarded packets between the
// node's pods and a TCP port, or packets from the node itself to that port. The kernel itself acts as the dead man's
// switch: it removes the port from the set when the TTL expires, and the entire table at reboot. Dropping forwarded
// packets does not affect pods in the host network, or CNI plugins that bypass netfilter (eBPF).
type Firewall struct {
	// Table is the name of the table, in the family inet. The table must not exist.
	Table string `json:"table"`
	// Port is the port on which servers listen.
	Port int  `json:"port,omitempty"`
	Drop Drop `json:"drop,omitempty"`
	// Partition drops packets between pods and their peers. It replaces Port and Drop.
	Partition *Partition `json:"partition,omitempty"`
	// TTL is the time for which packets are dropped, according to the node's clock.
	TTL time.Duration `json:"ttl"`
}

// Drop selects the packets that a Firewall drops.
type Drop string

// The values of Drop.
const (
	DropRequests  Drop = "requests"  // packets to the port: no connection is established
	DropResponses Drop = "responses" // packets from the port: servers receive requests, but responses are lost
	// DropLarge drops packets from the port that are longer than LargePacket. Connections are established, but large
	// responses do not arrive.
	DropLarge Drop = "large"
	// DropOutgoing drops packets that the node itself sends to the port, such as image pulls. Packets from pods pass.
	DropOutgoing Drop = "outgoing"
)

// Drops lists all values of Drop.
var Drops = []Drop{DropRequests, DropResponses, DropLarge, DropOutgoing}

// LargePacket is the length in bytes, including the IP header, of the longest packet that DropLarge accepts. Every IPv4
// host must accept 576 bytes (RFC 791).
const LargePacket = 576

// RemoveFirewall removes the table of the request's run. The helper identifies the table by the mark of its rule or the
// name of its set. Objects that other clients added to the table are kept, unless Overwrite is set.
type RemoveFirewall struct {
	Overwrite bool `json:"overwrite,omitempty"`
}

// BuiltFirewall is the response to Firewall, as read back from the kernel.
type BuiltFirewall struct {
	// Rule contains the rule or rules in nft syntax.
	Rule string `json:"rule"`
	// Probes describes the packets that the helper sent from a pod and that the rules of a partition dropped.
	Probes []string `json:"probes,omitempty"`
	// Unprobed is the number of rules that could not be verified by sending a packet, because no pod in the partition
	// can send one.
	Unprobed int `json:"unprobed,omitempty"`
	// Expires is the remaining time for which the kernel drops packets.
	Expires time.Duration `json:"expires"`
}

// RemovedFirewall is the response to RemoveFirewall.
type RemovedFirewall struct {
	// Table is the name of the table. It is empty if the node has no table for the run.
	Table string `json:"table,omitempty"`
	// Removed reports whether the table existed. The table still exists only if Left is not empty.
	Removed bool `json:"removed,omitempty"`
	// Expired reports whether the rule was already inactive, because the TTL had expired or another client had disabled
	// it.
	Expired bool `json:"expired,omitempty"`
	// Left describes objects that other clients added to the table. These objects are kept, but the rule of the run is
	// removed.
	Left []string `json:"left,omitempty"`
	// Dropped is the number of packets that the rule dropped or slowed down.
	Dropped uint64 `json:"dropped,omitempty"`
	// Links is the number of pod links that are no longer slow.
	Links int `json:"links,omitempty"`
}

// tableNames matches table names that need no quotes in nft syntax and cannot be mistaken for options.
var tableNames = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,30}$`)

// maxFirewall is the longest TTL, which is the longest duration of a run.
const maxFirewall = 48 * time.Hour

// Validate returns an error if the request is invalid.
func (f Firewall) Validate() error {
	switch {
	case !tableNames.MatchString(f.Table):
		return fmt.Errorf("invalid table name %q: must consist of lower-case letters, digits, - and _, at most 31 characters", f.Table)
	case f.Partition != nil && (f.Port != 0 || f.Drop != ""):
		return errors.New("a partition cannot be combined with a blocked port")
	case f.TTL < time.Second || f.TTL > maxFirewall:
		return fmt.Errorf("invalid TTL %s: must be between 1s and %s", f.TTL, maxFirewall)
	case f.Partition != nil:
		return f.Partition.validate()
	case f.Port < 1 || f.Port > 65535:
		return fmt.Errorf("invalid TCP port %d", f.Port)
	case !slices.Contains(Drops, f.Drop):
		return fmt.Errorf("invalid value %q for drop: must be requests, responses, large or outgoing", f.Drop)
	}
	return nil
}

// IsSlow reports whether packets are slowed down instead of dropped.
func (f Firewall) IsSlow() bool { return f.Partition != nil && f.Partition.Slow != nil }

// FirewallSet returns the name of the set in a run's table. The name does not reveal the run, but it identifies the
// table if the table's rule is missing.
func FirewallSet(run string) string { return "ports-" + shortHash(run) }

func shortHash(run string) string {
	sum := sha256.Sum256([]byte(run))
	return hex.EncodeToString(sum[:3])
}
