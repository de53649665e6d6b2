package firewall

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"
	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// kindVeth is the kind of links with two ends, one of which is in another network namespace.
const kindVeth = "veth"

// linkRecord is a link in the kernel's response.
type linkRecord struct {
	index, peer int32
	kind        string
}

func (n podNetworks) links(pods []api.PartitionedPod) (all []podLink, _ error) {
	for _, pod := range pods {
		found, err := n.linksOf(pod)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// linksOf returns the links of a pod that have the pod's addresses.
func (n podNetworks) linksOf(pod api.PartitionedPod) (all []podLink, _ error) {
	process, err := n.process(pod)
	if err != nil {
		return nil, err
	}
	space, err := os.Open(filepath.Join(process.dir, "ns/net"))
	if err != nil {
		return nil, fmt.Errorf("enter the pod's network namespace: %w", err)
	}
	defer func() { _ = space.Close() }()
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(space.Fd())})
	if err != nil {
		return nil, fmt.Errorf("enter the pod's network namespace: %w", err)
	}
	defer func() { _ = conn.Close() }()
	having, err := linksWith(conn, pod.Addresses)
	if err != nil {
		return nil, err
	}
	if len(having) == 0 {
		return nil, fmt.Errorf("the pod's network does not have the address %s", pod.Addresses[0])
	}
	links, err := listLinks(conn)
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		switch {
		case !slices.Contains(having, link.index):
		case link.kind != kindVeth:
			return nil, fmt.Errorf("the pod's link to the node is of kind %q: only links of kind veth can be slowed down",
				link.kind)
		default:
			all = append(all, podLink{pod: pod.Name, node: link.peer, inPod: link.index})
		}
	}
	return all, nil
}

// verifyLinks returns an error unless the other ends of the links are on the node.
func verifyLinks(conn *netlink.Conn, links []podLink) error {
	known, err := listLinks(conn)
	if err != nil {
		return err
	}
	for _, link := range links {
		if !slices.Contains(known, linkRecord{link.node, link.inPod, kindVeth}) {
			return slowError{fmt.Sprintf("the other end of pod %s's link is not on the node", link.pod)}
		}
	}
	return nil
}

// linksWith returns the indexes of the links that have one of the addresses.
func linksWith(conn *netlink.Conn, addresses []netip.Addr) (indexes []int32, _ error) {
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETADDR, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, unix.SizeofIfAddrmsg),
	})
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the pod: %w", err)
	}
	for _, answer := range answers {
		if len(answer.Data) < unix.SizeofIfAddrmsg {
			continue
		}
		index := nlenc.Int32(answer.Data[4:8])
		d, err := netlink.NewAttributeDecoder(answer.Data[unix.SizeofIfAddrmsg:])
		if err != nil {
			continue
		}
		for d.Next() {
			address, ok := netip.AddrFromSlice(d.Bytes())
			if d.Type() == unix.IFA_ADDRESS && ok && slices.Contains(addresses, address) {
				indexes = append(indexes, index)
			}
		}
	}
	return indexes, nil
}

func listLinks(conn *netlink.Conn) (all []linkRecord, _ error) {
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, unix.SizeofIfInfomsg),
	})
	if err != nil {
		return nil, fmt.Errorf("read the network links: %w", err)
	}
	for _, answer := range answers {
		if link, ok := decodeLink(answer.Data); ok {
			all = append(all, link)
		}
	}
	return all, nil
}

func decodeLink(raw []byte) (link linkRecord, ok bool) {
	if len(raw) < unix.SizeofIfInfomsg {
		return link, false
	}
	link.index = nlenc.Int32(raw[4:8])
	d, err := netlink.NewAttributeDecoder(raw[unix.SizeofIfInfomsg:])
	if err != nil {
		return link, false
	}
	for d.Next() {
		switch d.Type() {
		case unix.IFLA_LINK:
			link.peer = d.Int32()
		case unix.IFLA_LINKINFO:
			d.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == unix.IFLA_INFO_KIND {
						link.kind = info.String()
					}
				}
				return nil
			})
		}
	}
	return link, d.Err() == nil
}
