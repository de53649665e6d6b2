package xid

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// PCI is the address of a PCI device.
type PCI struct {
	Domain   uint32
	Bus      uint8
	Device   uint8 // 0 to 31
	Function uint8 // 0 to 7; GPUs and NVSwitches are function 0
}

var (
	// The kernel and the driver print a domain with 4 digits, nvidia-smi with 8.
	pciText  = regexp.MustCompile(`^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-9a-fA-F]))?$`)
	pciShort = regexp.MustCompile(`^([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-9a-fA-F])$`)
)

// ParsePCI parses an address in the notation of the driver (0000:17:00), the kernel (0000:17:00.0), nvidia-smi
// (00000000:17:00.0) or lspci (17:00.0, in domain 0), in upper or lower case, with an optional "PCI:" prefix. An
// address without a domain must have a function, as in lspci, because a bare 17:00 is usually a mistake.
func ParsePCI(s string) (PCI, error) {
	text := strings.TrimPrefix(strings.TrimSpace(s), "PCI:")
	m := pciText.FindStringSubmatch(text)
	if short := pciShort.FindStringSubmatch(text); short != nil {
		m = []string{"", "0", short[1], short[2], short[3]}
	}
	if m == nil {
		return PCI{},
			fmt.Errorf("invalid PCI address %q: must be an address such as 0000:17:00 (see nvidia-smi --query-gpu=pci.bus_id)", s)
	}
	var n [4]uint64
	for i, digits := range m[1:5] {
		if digits != "" {
			n[i], _ = strconv.ParseUint(digits, 16, 32) // the pattern allows at most eight hexadecimal digits
		}
	}
	if n[2] > 0x1f {
		return PCI{}, fmt.Errorf("PCI address %q has the device number %s: must be at most 1f", s, m[3])
	}
	if n[3] > 7 {
		return PCI{}, fmt.Errorf("PCI address %q has the function %s: must be at most 7", s, m[4])
	}
	return PCI{Domain: uint32(n[0]), Bus: uint8(n[1]), Device: uint8(n[2]), Function: uint8(n[3])}, nil
}

// String returns the driver's notation: lower case, a domain of at least four digits, and no function: 0000:17:00.
func (p PCI) String() string { return fmt.Sprintf("%04x:%02x:%02x", p.Domain, p.Bus, p.Device) }

// WithFunction returns the kernel's notation: 0000:17:00.0.
func (p PCI) WithFunction() string { return fmt.Sprintf("%s.%x", p, p.Function) }

// MarshalText returns the address with its function, so that no information is lost in JSON and map keys.
func (p PCI) MarshalText() ([]byte, error) { return []byte(p.WithFunction()), nil }

// UnmarshalText parses the formats that [ParsePCI] supports.
func (p *PCI) UnmarshalText(text []byte) error {
	parsed, err := ParsePCI(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}

// UUID is the UUID of a GPU or MIG device in lower case: GPU-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3.
type UUID string

var uuidText = regexp.MustCompile(
	`^(?i:(GPU-|MIG-GPU-|MIG-)([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}))(/\d{1,2}/\d{1,2})?$`,
)

// ParseUUID parses GPU-UUID, MIG-UUID, and MIG-GPU-UUID/GI/CI, the form used by drivers before R470.
func ParseUUID(s string) (UUID, error) {
	m := uuidText.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return "", fmt.Errorf(
			"invalid GPU UUID %q: must be a UUID such as GPU-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3 (see nvidia-smi -L)",
			s,
		)
	}
	kind := strings.ToUpper(m[1])
	if (kind == "MIG-GPU-") != (m[3] != "") {
		return "", fmt.Errorf("invalid GPU UUID %q: only the form MIG-GPU-UUID/GI/CI may end with MIG instances", s)
	}
	return UUID(kind + strings.ToLower(m[2]) + m[3]), nil
}

// IsMIG reports whether the UUID belongs to a MIG device.
func (u UUID) IsMIG() bool { return strings.HasPrefix(string(u), "MIG-") }

// GPU returns the UUID of the whole GPU. The UUID of a MIG device contains the GPU's UUID only in the form used before
// R470.
func (u UUID) GPU() (UUID, error) {
	if !u.IsMIG() {
		return u, nil
	}
	if whole, ok := strings.CutPrefix(string(u), "MIG-GPU-"); ok {
		whole, _, _ = strings.Cut(whole, "/")
		return UUID("GPU-" + whole), nil
	}
	return "", errors.New(
		"the UUID of a MIG device does not identify its GPU: specify the GPU's UUID (see nvidia-smi -L)",
	)
}
