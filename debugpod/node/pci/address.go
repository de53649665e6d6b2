// Package pci parses PCI addresses.
package pci

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Address is a PCI address. Addresses sort by domain, bus, device, and function.
type Address uint64

func (a Address) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", uint64(a>>16), uint8(a>>8), uint8(a>>3)&0x1f, uint8(a)&7)
}

// Parse parses an address such as 0000:17:00.0, or 00000000:17:00.0 in nvidia-smi's format.
func Parse(s string) (Address, error) {
	fail := fmt.Errorf("%q is not a PCI address", s)
	s, function, _ := strings.Cut(s, ".")
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return 0, fail
	}
	var a Address
	for i, p := range []struct {
		text string
		bits int
	}{{parts[0], 32}, {parts[1], 8}, {parts[2], 5}, {cmp.Or(function, "0"), 3}} {
		n, err := strconv.ParseUint(p.text, 16, p.bits)
		if err != nil {
			return 0, fail
		}
		if i == 0 {
			a = Address(n)
		} else {
			a = a<<p.bits | Address(n)
		}
	}
	return a, nil
}
