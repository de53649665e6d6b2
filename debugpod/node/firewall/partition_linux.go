package firewall

import (
	"net"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// setsOf returns the names of the sets that a run's table may contain.
func setsOf(run string) []string {
	return []string{api.FirewallSet(run), api.PartitionSet(run, false), api.PartitionSet(run, true)}
}

// podSet returns the set with the pods' IPv4 or IPv6 addresses.
func podSet(table *nftables.Table, run string, v6 bool) *nftables.Set {
	set := &nftables.Set{
		ID: 1, Table: table, Name: api.PartitionSet(run, v6), KeyType: nftables.TypeIPAddr, HasTimeout: true,
	}
	if v6 {
		set.ID, set.KeyType = 2, nftables.TypeIP6Addr
	}
	return set
}

// elementsOf returns the IPv4 or IPv6 addresses as elements of their set.
func elementsOf(addresses []netip.Addr, v6 bool, ttl time.Duration) (elements []nftables.SetElement) {
	for _, address := range addresses {
		if address.Is6() == v6 {
			elements = append(elements, nftables.SetElement{Key: address.AsSlice(), Timeout: ttl})
		}
	}
	return elements
}

// addPartition adds the sets and rules of a partition. The chain precedes those of other programs, so that its counters
// also count packets that these programs would drop.
func (n *netfilter) addPartition(table *nftables.Table, run string, f api.Firewall) error {
	chain := n.conn.AddChain(&nftables.Chain{
		Name: forwardChain, Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityMangle,
	})
	addresses := addressesOf(*f.Partition)
	sets := map[bool]*nftables.Set{}
	for _, v6 := range []bool{false, true} {
		elements := elementsOf(addresses, v6, f.TTL)
		if len(elements) == 0 {
			continue
		}
		sets[v6] = podSet(table, run, v6)
		if err := n.conn.AddSet(sets[v6], elements); err != nil {
			return err
		}
	}
	for _, rule := range rulesOf(*f.Partition, run) {
		n.conn.AddRule(&nftables.Rule{
			Table: table, Chain: chain, Exprs: rule.expressions(sets[rule.v6]),
			UserData: userdata.Append(nil, markType, []byte(mark{run: run}.String())),
		})
	}
	return nil
}

// ipHeader contains the positions of the addresses in the headers of a family.
type ipHeader struct {
	family                      byte
	source, destination, length uint32
}

var (
	ipv4Header = ipHeader{unix.NFPROTO_IPV4, 12, 16, net.IPv4len}
	ipv6Header = ipHeader{unix.NFPROTO_IPV6, 8, 24, net.IPv6len}
)

// expressions returns the rule as kernel expressions.
func (r partitionRule) expressions(pods *nftables.Set) []expr.Any {
	const register = 1
	header := ipv4Header
	if r.v6 {
		header = ipv6Header
	}
	pod, peer := header.source, header.destination
	if r.Received {
		pod, peer = peer, pod
	}
	equals := func(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data} }
	list := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register},
		equals([]byte{header.family}),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: pod, Len: header.length},
		&expr.Lookup{SourceRegister: register, SetName: pods.Name, SetID: pods.ID},
	}
	if r.Peer.Bits() > 0 {
		list = append(list, &expr.Payload{
			DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: peer, Len: header.length,
		})
		if !r.Peer.IsSingleIP() {
			list = append(list, &expr.Bitwise{
				SourceRegister: register, DestRegister: register, Len: header.length,
				Mask: net.CIDRMask(r.Peer.Bits(), int(header.length)*8), Xor: make([]byte, header.length),
			})
		}
		list = append(list, equals(r.Peer.Addr().AsSlice()))
	}
	if protocol, ok := protocols[r.Protocol]; ok {
		list = append(list, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equals([]byte{protocol}))
	}
	for offset, port := range []int{r.SourcePort, r.DestinationPort} {
		if port > 0 {
			list = append(list, &expr.Payload{
				DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: uint32(offset) * 2, Len: 2,
			}, equals(binaryutil.BigEndian.PutUint16(uint16(port))))
		}
	}
	if r.loss > 0 {
		list = append(list,
			&expr.Numgen{Register: register, Modulus: 100, Type: unix.NFT_NG_RANDOM},
			// The kernel compares bytes, most significant byte first.
			&expr.Byteorder{SourceRegister: register, DestRegister: register, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpLt, Register: register, Data: binaryutil.BigEndian.PutUint32(uint32(r.loss))})
	}
	if r.slow != nil {
		return append(list, &expr.Counter{},
			&expr.Immediate{Register: register, Data: native(classOf(r.run))},
			&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: register, SourceRegister: true})
	}
	return append(list, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
}

var protocols = map[string]byte{api.ProtocolTCP: unix.IPPROTO_TCP, api.ProtocolUDP: unix.IPPROTO_UDP}
