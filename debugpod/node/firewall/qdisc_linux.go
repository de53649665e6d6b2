package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"
	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Packets that a pod receives wait in queueing disciplines (qdiscs) on the node's end of the pod's link. In HTB, a
// class applies the rate to the packets with the priority set by the rules. Below that class, netem applies the
// latency. All other packets pass through HTB directly. Therefore, the kernel ends the fault when the pods' addresses
// expire in nftables: no packet then waits in the remaining qdisc.

// Kinds of qdiscs.
const (
	kindHTB   = "htb"
	kindNetem = "netem"
)

// atRoot is the parent of a root qdisc (TC_H_ROOT).
const atRoot = 0xffffffff

// ownDefault is the default class of this tool's HTB qdiscs. The class does not exist; it distinguishes these qdiscs
// from those of other programs.
const ownDefault = 0x67666c74

// classOf returns the class for a run's packets, which is also their priority.
func classOf(run string) uint32 { return uint32(api.QdiscHandle(run))<<16 | qdiscClass }

// trafficRecord is a tcmsg (linux/rtnetlink.h) with its attributes.
type trafficRecord struct {
	link           int32
	handle, parent uint32
	kind           string
	options        []byte
	packets        uint32 // packets that have left it; only set when read
}

// unlimited is the rate, in bits per second, of a class that only adds latency. HTB requires a rate even for such a
// class.
const unlimited = 1_000_000_000_000

// netemPackets is the maximum number of packets that wait in netem. If more arrive, they are lost.
const netemPackets = 20_000

func (n *netfilter) traffic() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(n.space.Fd())})
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(filterTimeout))
}

// slow adds a run's qdiscs to links. If the error is a slowError, nothing was changed.
func (n *netfilter) slow(run string, links []podLink, s api.Slow) (failure error) {
	conn, err := n.traffic()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := verifyLinks(conn, links); err != nil {
		return err
	}
	qdiscs, err := records(conn, unix.RTM_GETQDISC, 0)
	if err != nil {
		return err
	}
	for _, link := range links {
		if i := slices.IndexFunc(qdiscs, func(q trafficRecord) bool {
			return q.link == link.node && q.parent == atRoot && q.handle != 0
		}); i >= 0 {
			return slowError{fmt.Sprintf("the link of pod %s already has a queueing discipline (%s) from another run, "+
				"the CNI plugin or an administrator", link.pod, qdiscs[i].kind)}
		}
	}
	defer func() {
		if failure == nil {
			return
		}
		if _, err := n.unslow(run); err != nil {
			failure = fmt.Errorf("%v; %w", failure, err)
		}
	}()
	for _, link := range links {
		if err := slowLink(conn, run, link.node, s); err != nil {
			return err
		}
	}
	return n.verifySlow(conn, run, links, s)
}

// slowLink adds the qdiscs to a link.
func slowLink(conn *netlink.Conn, run string, link int32, s api.Slow) error {
	class := classOf(run)
	root := class &^ 0xffff
	netem := root + 1<<16
	err := add(conn, unix.RTM_NEWQDISC,
		trafficRecord{link: link, handle: root, parent: atRoot, kind: kindHTB, options: htbOptions()})
	if err == nil {
		err = add(conn, unix.RTM_NEWTCLASS,
			trafficRecord{link: link, handle: class, parent: root, kind: kindHTB, options: classOptions(s.Rate)})
	}
	if err == nil && s.Latency > 0 {
		err = add(conn, unix.RTM_NEWQDISC,
			trafficRecord{link: link, handle: netem, parent: class, kind: kindNetem, options: netemOptions(s)})
	}
	return err
}

// add adds a qdisc or a class. The error is a slowError if the kernel does not support its kind.
func add(conn *netlink.Conn, message netlink.HeaderType, r trafficRecord) error {
	const flags = netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl
	_, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: message, Flags: flags}, Data: r.encode()})
	switch {
	case errors.Is(err, unix.ENOENT):
		return slowError{fmt.Sprintf("the node's kernel lacks %s (CONFIG_NET_SCH_%s), and its module cannot be "+
			"loaded", r.kind, strings.ToUpper(r.kind))}
	case err != nil:
		return fmt.Errorf("add %s to a pod's link: %w", r.kind, err)
	}
	return nil
}

// verifySlow reads the qdiscs back.
func (n *netfilter) verifySlow(conn *netlink.Conn, run string, links []podLink, s api.Slow) error {
	qdiscs, err := records(conn, unix.RTM_GETQDISC, 0)
	if err != nil {
		return err
	}
	for _, link := range links {
		classes, err := records(conn, unix.RTM_GETTCLASS, link.node)
		if err != nil {
			return err
		}
		has := func(all []trafficRecord, kind string, parent uint32) bool {
			return slices.ContainsFunc(all, func(r trafficRecord) bool {
				return r.link == link.node && r.kind == kind && r.parent == parent
			})
		}
		class := classOf(run)
		hasClass := slices.ContainsFunc(classes, func(r trafficRecord) bool { return r.handle == class })
		if !has(qdiscs, kindHTB, atRoot) || !hasClass || s.Latency > 0 && !has(qdiscs, kindNetem, class) {
			return fmt.Errorf("the queueing disciplines of pod %s differ from the request when read back", link.pod)
		}
	}
	return nil
}

func (n *netfilter) passed(run string, links []podLink) (all uint64, _ error) {
	conn, err := n.traffic()
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	for _, link := range links {
		classes, err := records(conn, unix.RTM_GETTCLASS, link.node)
		if err != nil {
			return 0, err
		}
		for _, class := range classes {
			if class.handle == classOf(run) {
				all += uint64(class.packets)
			}
		}
	}
	return all, nil
}

func (n *netfilter) unslow(run string) (int, error) {
	return n.removeQdiscs(func(handle uint16) bool { return handle == api.QdiscHandle(run) })
}

// removeQdiscs removes those of this tool's qdiscs whose handles match, and returns how many it removed.
func (n *netfilter) removeQdiscs(accept func(handle uint16) bool) (removed int, _ error) {
	conn, err := n.traffic()
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	own, err := ownQdiscs(conn)
	if err != nil {
		return 0, err
	}
	var failed error
	for _, q := range own {
		if !accept(uint16(q.handle >> 16)) {
			continue
		}
		_, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_DELQDISC, Flags: netlink.Request | netlink.Acknowledge},
			Data:   trafficRecord{link: q.link, handle: q.handle, parent: atRoot}.encode(),
		})
		switch {
		case errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT): // the pod has terminated
		case err != nil:
			failed = errors.Join(failed,
				fmt.Errorf("remove the queueing discipline %x: of link %d: %w", q.handle>>16, q.link, err))
		default:
			removed++
		}
	}
	return removed, failed
}

// ownQdiscs returns the root qdiscs of all runs.
func ownQdiscs(conn *netlink.Conn) ([]trafficRecord, error) {
	all, err := records(conn, unix.RTM_GETQDISC, 0)
	return slices.DeleteFunc(all, func(q trafficRecord) bool {
		return q.parent != atRoot || q.kind != kindHTB || defaultOf(q.options) != ownDefault
	}), err
}

// records lists qdiscs, or the classes of a link.
func records(conn *netlink.Conn, message netlink.HeaderType, link int32) (all []trafficRecord, _ error) {
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: message, Flags: netlink.Request | netlink.Dump},
		Data:   trafficRecord{link: link}.encode(),
	})
	if err != nil {
		return nil, fmt.Errorf("read the queueing disciplines on the node: %w", err)
	}
	for _, answer := range answers {
		if record, ok := decodeRecord(answer.Data); ok {
			all = append(all, record)
		}
	}
	return all, nil
}

// statsBasic is TCA_STATS_BASIC (linux/gen_stats.h).
const statsBasic = 1

// tcmsgLength is the length of a tcmsg in bytes.
const tcmsgLength = 20

func (r trafficRecord) encode() []byte {
	raw := make([]byte, tcmsgLength)
	nlenc.PutInt32(raw[4:8], r.link)
	nlenc.PutUint32(raw[8:12], r.handle)
	nlenc.PutUint32(raw[12:16], r.parent)
	if r.kind == "" {
		return raw
	}
	e := netlink.NewAttributeEncoder()
	e.String(unix.TCA_KIND, r.kind)
	e.Bytes(unix.TCA_OPTIONS, r.options)
	attributes, _ := e.Encode() // fails only if an attribute is longer than 64 KiB
	return append(raw, attributes...)
}

func decodeRecord(raw []byte) (r trafficRecord, ok bool) {
	if len(raw) < tcmsgLength {
		return r, false
	}
	r.link = nlenc.Int32(raw[4:8])
	r.handle, r.parent = nlenc.Uint32(raw[8:12]), nlenc.Uint32(raw[12:16])
	d, err := netlink.NewAttributeDecoder(raw[tcmsgLength:])
	if err != nil {
		return r, false
	}
	for d.Next() {
		switch d.Type() {
		case unix.TCA_KIND:
			r.kind = d.String()
		case unix.TCA_OPTIONS:
			r.options = slices.Clone(d.Bytes())
		case unix.TCA_STATS2:
			d.Nested(func(stats *netlink.AttributeDecoder) error {
				for stats.Next() {
					// This is a gnet_stats_basic: bytes and packets.
					if stats.Type() == statsBasic && len(stats.Bytes()) >= 12 {
						r.packets = nlenc.Uint32(stats.Bytes()[8:12])
					}
				}
				return nil
			})
		}
	}
	return r, d.Err() == nil
}

// The attributes for HTB in linux/pkt_sched.h.
const (
	htbParms  = 1
	htbInit   = 2
	htbRate64 = 6
	htbCeil64 = 7
)

// htbOptions returns a tc_htb_glob: version, rate2quantum, default class, debug, directly sent packets.
func htbOptions() []byte {
	return attribute(htbInit, native(3, 10, ownDefault, 0, 0))
}

// defaultOf returns the default class in the options of an HTB qdisc, or 0.
func defaultOf(options []byte) uint32 {
	d, err := netlink.NewAttributeDecoder(options)
	if err != nil {
		return 0
	}
	for d.Next() {
		if d.Type() == htbInit && len(d.Bytes()) >= 12 {
			return nlenc.Uint32(d.Bytes()[8:12])
		}
	}
	return 0
}

// tick is the unit of time in the kernel's packet schedulers.
const tick = 64 * time.Nanosecond

// classOptions returns a tc_htb_opt and the 64-bit rates of a class. rate is in bits per second.
func classOptions(rate uint64) []byte {
	if rate == 0 {
		rate = unlimited
	}
	bytes := rate / 8
	// A burst must last longer than the kernel's timer interval.
	burst := max(bytes/50, 16<<10)
	wait := uint32(time.Duration(float64(burst)/float64(bytes)*float64(time.Second)) / tick)
	const ethernet, quantum = 1, 60_000
	// A tc_ratespec: only the link layer and the rate are set.
	spec := append([]byte{0, ethernet, 0, 0, 0, 0, 0, 0}, native(uint32(min(bytes, 1<<32-1)))...)
	raw := slices.Concat(spec, spec, native(wait, wait, quantum, 0, 0))
	wide := binary.NativeEndian.AppendUint64(nil, bytes)
	return slices.Concat(attribute(htbParms, raw), attribute(htbRate64, wide), attribute(htbCeil64, wide))
}

// netemOptions returns a tc_netem_qopt: latency, limit, loss, gap, duplicates, jitter.
func netemOptions(s api.Slow) []byte {
	return native(uint32(s.Latency/tick), netemPackets, 0, 0, 0, uint32(s.Jitter/tick))
}

func attribute(kind uint16, value []byte) []byte {
	e := netlink.NewAttributeEncoder()
	e.Bytes(kind, value)
	raw, _ := e.Encode() // fails only if an attribute is longer than 64 KiB
	return raw
}

// native encodes integers in the byte order of the processor.
func native(values ...uint32) (raw []byte) {
	for _, value := range values {
		raw = binary.NativeEndian.AppendUint32(raw, value)
	}
	return raw
}
