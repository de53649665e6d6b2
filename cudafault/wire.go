package cudafault

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"
)

// probabilityBits returns a probability in units of 2^-32. The result 0 means always, so a tiny probability is rounded
// up to 1.
func probabilityBits(p float64) uint32 {
	if p <= 0 || p >= 1 {
		return 0
	}
	return max(1, shareBits(p))
}

// shareBits returns a share in units of 2^-32, limited to 2^32-1. A tiny share is rounded up to 1.
func shareBits(p float64) uint32 {
	switch {
	case p <= 0:
		return 0
	case p >= 1:
		return math.MaxUint32
	}
	return uint32(min(max(1, math.Round(p*(1<<32))), math.MaxUint32))
}

// writer writes fields to a file, and keeps the first error.
type writer struct {
	buf []byte
	err error
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *writer) u32(f span, v uint32) { binary.LittleEndian.PutUint32(w.buf[f.at:], v) }
func (w *writer) u64(f span, v uint64) { binary.LittleEndian.PutUint64(w.buf[f.at:], v) }

// text writes a string, with at least one NUL after it.
func (w *writer) text(f span, what, text string) {
	switch {
	case len(text) >= f.size:
		w.fail("%s %q has %d bytes, but the maximum is %d", what, text, len(text), f.size-1)
	case strings.ContainsRune(text, 0):
		w.fail("%s %q contains a NUL", what, text)
	default:
		copy(w.buf[f.at:], text)
	}
}

func (w *writer) time(f span, what string, t time.Time) {
	if t.IsZero() {
		return
	}
	if t.UnixMilli() <= 0 {
		w.fail("%s: %s is before 1970", what, t)
	}
	w.u64(f, uint64(t.UnixMilli()))
}

// count returns a time as a number of units. It fails if the time is not a whole number of units.
func (w *writer) count(what string, d, unit time.Duration, most int64) uint64 {
	switch {
	case d < 0:
		w.fail("%s %s is negative", what, d)
	case d%unit != 0:
		w.fail("%s %s is too precise: the resolution is %s", what, d, unit)
	case int64(d/unit) > most:
		w.fail("%s %s is longer than %s", what, d, time.Duration(most)*unit)
	}
	return uint64(d / unit)
}

func (w *writer) code(f span, what string, code int) {
	if code < 0 || code > math.MaxInt32 {
		w.fail("invalid %s %d: must be 0 to %d", what, code, math.MaxInt32)
	}
	w.u32(f, uint32(code))
}

func (w *writer) classes(f span, c Class) {
	if c > allClasses {
		w.fail("unknown classes: %#x", uint32(c))
	}
	w.u32(f, uint32(c))
}

// share fails unless p is from 0 to 1. NaN fails too, because its comparisons are false.
func (w *writer) share(what string, p float64) {
	if !(p >= 0 && p <= 1) {
		w.fail("invalid %s %g: must be 0 to 1", what, p)
	}
}

func (w *writer) mask(what string, list []int) uint64 {
	var mask uint64
	for _, d := range list {
		if d < 0 || d >= maxDevices {
			w.fail("invalid %s %d: must be 0 to %d", what, d, maxDevices-1)
			continue
		}
		mask |= 1 << d
	}
	return mask
}

func (w *writer) nodes(names []string) {
	if len(names) > maxNodes {
		w.fail("too many nodes: %d, but the maximum is %d", len(names), maxNodes)
		return
	}
	w.u32(atNodeCount, uint32(len(names)))
	for i, name := range names {
		if name == "" {
			w.fail("a node name is empty")
		}
		w.u64(span{atNodes.at + 8*i, 8}, nodeHash(name))
	}
}

// reader reads fields of a file that is long enough.
type reader struct{ buf []byte }

func (r reader) u32(f span) uint32 { return binary.LittleEndian.Uint32(r.buf[f.at:]) }
func (r reader) u64(f span) uint64 { return binary.LittleEndian.Uint64(r.buf[f.at:]) }

// text returns a string up to the first NUL.
func (r reader) text(f span) string {
	text, _, _ := bytes.Cut(r.buf[f.at:f.at+f.size], []byte{0})
	return string(text)
}

// time returns the zero time if the value is zero or out of range.
func (r reader) time(f span) time.Time {
	ms := r.u64(f)
	if ms == 0 || ms > math.MaxInt64 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}

// duration returns the longest duration if the value is out of range.
func (r reader) duration(f span, unit time.Duration) time.Duration {
	n := uint64(0)
	if f.size == 4 {
		n = uint64(r.u32(f))
	} else {
		n = r.u64(f)
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64 / unit * unit
	}
	return time.Duration(n) * unit
}

// code returns math.MaxInt32 if the value is out of range.
func (r reader) code(f span) int { return int(min(r.u32(f), math.MaxInt32)) }

func (r reader) mask(f span) []int {
	var list []int
	for rest := r.u64(f); rest != 0; rest &= rest - 1 {
		list = append(list, bits.TrailingZeros64(rest))
	}
	return list
}
