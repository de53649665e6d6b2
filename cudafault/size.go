package cudafault

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// sizeUnits are the units that Kubernetes uses for sizes, largest first.
var sizeUnits = []struct { // a variable, because Go has no struct constants; never modified
	name  string
	bytes uint64
}{
	{"Ti", 1 << 40}, {"T", 1e12}, {"Gi", 1 << 30}, {"G", 1e9}, {"Mi", 1 << 20}, {"M", 1e6}, {"Ki", 1 << 10}, {"k", 1e3},
}

// sizeForm matches a number with an optional unit.
var sizeForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)$`)

// ParseSize parses a number of bytes in Kubernetes notation: 4Gi, 512Mi, 8G, 1.5Gi, 1073741824. The result must be a
// positive whole number of bytes.
func ParseSize(text string) (uint64, error) {
	m := sizeForm.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("invalid size %q: must be a number of bytes with a unit, such as 8Gi or 512Mi", text)
	}
	unit := uint64(1)
	if m[2] != "" {
		unit = 0
		for _, u := range sizeUnits {
			if m[2] == u.name {
				unit = u.bytes
			}
		}
		if unit == 0 {
			return 0, fmt.Errorf(
				"invalid size %q: unknown unit %q%s; supported units: Ki, Mi, Gi, Ti (powers of 1024) and k, M, G, T (powers of 1000)", text, m[2],
				meant(m[1], m[2]),
			)
		}
	}
	number, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, fmt.Errorf("invalid size %q: %q is not a number", text, m[1])
	}
	number.Mul(number, new(big.Rat).SetInt(new(big.Int).SetUint64(unit)))
	switch {
	case number.Sign() == 0:
		return 0, fmt.Errorf("invalid size %q: must be greater than 0", text)
	case !number.IsInt():
		return 0, fmt.Errorf("invalid size %q: not a whole number of bytes", text)
	case !number.Num().IsUint64():
		return 0, fmt.Errorf("invalid size %q: too large", text)
	}
	return number.Num().Uint64(), nil
}

// meant returns a suggested unit if the unit has the wrong case or a trailing B.
func meant(number, unit string) string {
	for _, u := range sizeUnits {
		if strings.EqualFold(unit, u.name) || strings.EqualFold(unit, u.name+"B") {
			return "; did you mean " + number + u.name + "?"
		}
	}
	return ""
}

// FormatSize formats bytes in the largest unit that gives a whole number.
func FormatSize(bytes uint64) string {
	for _, u := range sizeUnits {
		if bytes > 0 && bytes%u.bytes == 0 {
			return strconv.FormatUint(bytes/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatUint(bytes, 10)
}
