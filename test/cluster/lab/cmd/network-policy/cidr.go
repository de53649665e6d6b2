package main

import "net/netip"

// bounds returns the first and the last address of an IPv4 CIDR.
func bounds(cidr string) (first, last netip.Addr, ok bool) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil || !p.Addr().Is4() {
		return first, last, false
	}
	a := p.Masked().Addr().As4()
	first = netip.AddrFrom4(a)
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 1 << (7 - bit%8)
	}
	return first, netip.AddrFrom4(a), true
}
