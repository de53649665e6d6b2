package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// netfilter is the packetFilter for the node's network namespace. It uses netlink, because nft may not be installed on
// nodes.
type netfilter struct {
	conn  *nftables.Conn
	space *os.File
}

func openFilter(host hostfs.Host) (packetFilter, error) { return openNetfilterOf(host) }

func openNetfilterOf(host hostfs.Host) (*netfilter, error) {
	return openNetfilter(filepath.Join(host.Proc, "1/ns/net"))
}

func openNetfilter(namespace string) (*netfilter, error) {
	space, err := os.Open(namespace)
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	conn, err := connect(space)
	if err != nil {
		_ = space.Close()
		return nil, err
	}
	n := &netfilter{conn, space}
	// Query the tables first: a kernel without nftables responds only to the first message of a batch, and rejects a
	// query as invalid.
	if _, err := conn.ListTablesOfFamily(nftables.TableFamilyINet); err != nil {
		_ = n.close()
		if errors.Is(err, unix.EINVAL) {
			err = errors.Join(errNoFilter, err)
		}
		return nil, filterError(err)
	}
	return n, nil
}

// connect opens a connection to nftables in a network namespace. All its requests share one timeout.
func connect(space *os.File) (*nftables.Conn, error) {
	limit := nftables.WithSockOptions(
		func(conn *netlink.Conn) error { return conn.SetDeadline(time.Now().Add(filterTimeout)) },
	)
	conn, err := nftables.New(nftables.WithNetNSFd(int(space.Fd())), nftables.AsLasting(), limit)
	return conn, filterError(err)
}

// filterTimeout is the timeout for all netlink requests of a connection.
const filterTimeout = 20 * time.Second

func (n *netfilter) fresh() error {
	conn, err := connect(n.space)
	if err != nil {
		return err
	}
	_ = n.conn.CloseLasting()
	n.conn = conn
	return nil
}

func (n *netfilter) close() error { return errors.Join(n.conn.CloseLasting(), n.space.Close()) }

// filterError identifies errors from kernels that lack a required feature.
func filterError(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("%w: %w", errNoFilter, err)
	}
	return err
}

func (n *netfilter) block(run string, f api.Firewall) error {
	table := n.conn.CreateTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: f.Table})
	add := n.addPort
	if f.Partition != nil {
		add = n.addPartition
	}
	if err := add(table, run, f); err != nil {
		return err
	}
	err := n.conn.Flush()
	switch {
	case errors.Is(err, unix.EEXIST):
		return errTableExists
	case errors.Is(err, unix.ENOENT) && f.Partition != nil && f.Partition.Loss > 0:
		return fmt.Errorf("%w, or does not support random numbers in rules (CONFIG_NFT_NUMGEN): %w", errNoFilter, err)
	case errors.Is(err, unix.ENOENT): // the kernel lacks this chain type; the batch creates all other objects
		return fmt.Errorf("%w: %w", errNoFilter, err)
	}
	return filterError(err)
}

// addPort adds the set and the rule that block a port.
func (n *netfilter) addPort(table *nftables.Table, run string, f api.Firewall) error {
	hook := nftables.ChainHookForward
	if f.Drop == api.DropOutgoing {
		hook = nftables.ChainHookOutput
	}
	chain := n.conn.AddChain(&nftables.Chain{
		Name: chainOf(f), Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook,
		Priority: nftables.ChainPriorityFilter,
	})
	// The ID is specific to the batch. If it is not set, the library uses a counter that all connections in the process
	// share without a lock.
	set := &nftables.Set{
		ID: 1, Table: table, Name: api.FirewallSet(run), KeyType: nftables.TypeInetService, HasTimeout: true,
	}
	if err := n.conn.AddSet(
		set, []nftables.SetElement{{Key: binaryutil.BigEndian.PutUint16(uint16(f.Port)), Timeout: f.TTL}},
	); err != nil {
		return err
	}
	n.conn.AddRule(&nftables.Rule{
		Table: table, Chain: chain, Exprs: expressions(f, set),
		UserData: userdata.Append(nil, markType, []byte(mark{run, f.Port}.String())),
	})
	return nil
}

// markType is the type of the user data that marks a rule as belonging to a run. nft shows only known types, such as
// comments (type 0).
const markType = userdata.Type(0x67)

// expressions returns the rule of a Firewall as kernel expressions.
func expressions(f api.Firewall, set *nftables.Set) []expr.Any {
	const register = 1
	source, destination := uint32(0), uint32(2) // offsets in the TCP header
	port := source
	if f.Drop == api.DropRequests || f.Drop == api.DropOutgoing {
		port = destination
	}
	list := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{unix.IPPROTO_TCP}},
	}
	if f.Drop == api.DropLarge {
		list = append(list,
			&expr.Meta{Key: expr.MetaKeyLEN, Register: register},
			// The kernel compares bytes, most significant byte first.
			&expr.Byteorder{SourceRegister: register, DestRegister: register, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpGt, Register: register, Data: binaryutil.BigEndian.PutUint32(api.LargePacket)})
	}
	return append(list,
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2},
		&expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop})
}

func (n *netfilter) look(name, run string) (*firewallTable, error) {
	table, err := n.find(name)
	if table == nil {
		return nil, err
	}
	found := &firewallTable{ports: map[int]time.Duration{}, pods: map[netip.Addr]time.Duration{}}
	other := func(what string) { found.others = append(found.others, what) }
	chains, err := n.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		if chain.Table.Name != name {
			continue
		}
		if !isFirewallChain(chain.Name) {
			other("chain " + chain.Name)
			continue
		}
		rules, err := n.conn.GetRules(table, chain)
		if err != nil {
			other("unreadable rules")
		}
		for _, rule := range rules {
			m := markOf(rule.UserData)
			found.rules = append(found.rules,
				firewallRule{chain: chain.Name, run: m.run, port: m.port, packets: counted(rule), handle: rule.Handle})
		}
	}
	sets, err := n.conn.GetSets(table)
	if err != nil {
		other("unreadable sets")
	}
	for _, set := range sets {
		switch {
		case set.Anonymous: // an anonymous set belongs to a rule
			continue
		case !slices.Contains(setsOf(run), set.Name):
			other("set " + set.Name)
			continue
		}
		elements, err := n.conn.GetSetElements(set)
		if err != nil {
			return nil, err
		}
		for _, element := range elements {
			address, ok := netip.AddrFromSlice(element.Key)
			switch {
			case set.Name != api.FirewallSet(run) && ok:
				found.pods[address] = element.Expires
			case set.Name == api.FirewallSet(run) && len(element.Key) >= 2:
				found.ports[int(binary.BigEndian.Uint16(element.Key))] = element.Expires
			}
		}
	}
	if tables, err := n.conn.ListFlowtables(table); err != nil || len(tables) > 0 {
		other("flowtables")
	}
	if objects, err := n.conn.GetNamedObjects(table); err != nil || len(objects) > 0 {
		other("objects")
	}
	return found, nil
}

func (n *netfilter) find(name string) (*nftables.Table, error) {
	tables, err := n.conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, filterError(err)
	}
	at := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == name })
	if at < 0 {
		return nil, nil
	}
	return tables[at], nil
}

func (n *netfilter) remove(name string, t *firewallTable, run string, all bool) error {
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: name}
	if all {
		n.conn.DelTable(table)
		return meanwhile(n.conn.Flush())
	}
	set := &nftables.Set{Table: table, Name: api.FirewallSet(run), KeyType: nftables.TypeInetService, HasTimeout: true}
	for _, rule := range t.rules {
		if rule.run != run {
			continue
		}
		chain := &nftables.Chain{Name: rule.chain, Table: table}
		if err := n.conn.DelRule(&nftables.Rule{Table: table, Chain: chain, Handle: rule.handle}); err != nil {
			return err
		}
	}
	for _, port := range t.blockedBy(run) {
		element := nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(uint16(port))}
		if err := n.conn.SetDeleteElements(set, []nftables.SetElement{element}); err != nil {
			return err
		}
	}
	for _, v6 := range []bool{false, true} {
		if elements := elementsOf(slices.Collect(maps.Keys(t.pods)), v6, 0); len(elements) > 0 {
			if err := n.conn.SetDeleteElements(podSet(table, run, v6), elements); err != nil {
				return err
			}
		}
	}
	return meanwhile(n.conn.Flush())
}

// meanwhile wraps errMeanwhile if an object to remove does not exist. The kernel applies a batch completely or not at
// all.
func meanwhile(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", errMeanwhile, err)
	}
	return err
}

func (n *netfilter) marked() (map[string]mark, error) {
	chains, err := n.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, filterError(err)
	}
	found := map[string]mark{}
	for _, chain := range chains {
		if !isFirewallChain(chain.Name) {
			continue
		}
		rules, err := n.conn.GetRules(chain.Table, chain)
		if err != nil {
			continue // a table that cannot be read does not belong to a run, or no longer exists
		}
		for _, rule := range rules {
			if m := markOf(rule.UserData); m.run != "" {
				found[chain.Table.Name] = m
			}
		}
	}
	return found, nil
}

func (n *netfilter) tableOf(run string) (string, error) {
	tables, err := n.marked()
	if err != nil {
		return "", err
	}
	for name, m := range tables {
		if m.run == run {
			return name, nil
		}
	}
	all, err := n.conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return "", filterError(err)
	}
	for _, table := range all {
		sets, err := n.conn.GetSets(table)
		if err != nil {
			continue // a table that cannot be read does not belong to a run, or no longer exists
		}
		if slices.ContainsFunc(sets, func(set *nftables.Set) bool { return slices.Contains(setsOf(run), set.Name) }) {
			return table.Name, nil
		}
	}
	return "", nil
}

// markOf returns the mark in a rule's user data, which other programs may have written. The data is a list of entries,
// each with a type, a length, and a value.
func markOf(data []byte) mark {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if userdata.Type(data[0]) == markType {
			return parseMark(string(value))
		}
		data = data[2+len(value):]
	}
	return mark{}
}

// counted returns a rule's packet counter.
func counted(rule *nftables.Rule) uint64 {
	for _, e := range rule.Exprs {
		if counter, is := e.(*expr.Counter); is {
			return counter.Packets
		}
	}
	return 0
}
