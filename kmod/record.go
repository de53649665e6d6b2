package kmod

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// MaxRecord is the maximum length of a record that the module accepts, in bytes, including the newline.
const MaxRecord = 972

// The records that the module accepts. gpu_fault_xid.c implements the same rules in C, and `make test-kmod` compares
// the two implementations.
const (
	address = `[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F](?:\.[0-7])?`
	text    = `[ -~]+`
)

var (
	xidRecord = regexp.MustCompile(
		`^NVRM: Xid \((?:PCI:)?` + address + `(?: GPU-I:\d{2,3}(?: GPU-CI:\d{2,3})?)?\): [1-9]\d{0,4}(?:, ` + text +
			`)?$`,
	)
	fallenOff = regexp.MustCompile(`^NVRM: The NVIDIA GPU ` + address +
		`\nNVRM: \(PCI ID: [0-9a-fA-F]{4}:[0-9a-fA-F]{4}\) installed in this system has\n` +
		`NVRM: fallen off the bus and is not responding to commands\.$`)
	gpuRecord    = regexp.MustCompile(`^NVRM: ` + text + `$`)
	sxidRecord   = regexp.MustCompile(`^nvidia-nvswitch\d{1,3}: SXid \(PCI:` + address + `\): \d{5}, ` + text + `$`)
	switchRecord = regexp.MustCompile(`^nvidia-nvswitch\d{1,3}: ` + text + `$`)
	switchError  = regexp.MustCompile(`^nvidia-nvswitch\d{1,3}: SXid`)
)

// CheckRecord returns the reason why the module would reject a record, or nil if the module would accept it. The record
// is given without its final newline.
func CheckRecord(record string) error {
	switch {
	case len(record)+1 > MaxRecord:
		return fmt.Errorf("it has %d bytes with its newline, but the module accepts at most "+
			"%d", len(record)+1, MaxRecord)
	case strings.HasPrefix(record, "NVRM: Xid"):
		return match(xidRecord, record,
			"it is not an XID line from the driver, such as NVRM: Xid (PCI:0000:17:00): 79, ...")
	case switchError.MatchString(record):
		return match(sxidRecord, record,
			"it is not an SXid line from the driver, such as nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, ...")
	case strings.Contains(record, "\n"):
		return match(fallenOff, record,
			"it has several lines, but the only such record that the driver prints is the one for a GPU that fell "+
				"off the bus")
	case gpuRecord.MatchString(record), switchRecord.MatchString(record):
		return nil
	default:
		return errors.New(
			"not a line from the driver: the driver's lines begin with NVRM: or nvidia-nvswitchN: and contain only " +
				"printable ASCII characters",
		)
	}
}

func match(pattern *regexp.Regexp, record, otherwise string) error {
	if pattern.MatchString(record) {
		return nil
	}
	if strings.ContainsFunc(record, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }) {
		return errors.New("it contains characters that are not printable ASCII, which the kernel module does not " +
			"accept")
	}
	return errors.New(otherwise)
}
