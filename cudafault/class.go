package cudafault

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Class is a set of classes of driver calls. A call may be in several: cuMemcpyPeer is in COPY and PEER.
type Class uint32

// The classes of calls, as in GF_CLASS_* in shim/state.h.
const (
	ClassInit    Class = 1 << iota // cuInit
	ClassDevice                    // enumeration: cuDeviceGet, cuDeviceGetCount
	ClassContext                   // cuCtxCreate, cuDevicePrimaryCtxRetain
	ClassModule                    // loading code
	ClassAlloc                     // memory: cuMemAlloc, cuMemCreate
	ClassFree
	ClassCopy    // cuMemcpy...
	ClassSet     // cuMemset...
	ClassLaunch  // kernels and graphs
	ClassSync    // calls that wait for the GPU
	ClassQuery   // status queries that do not wait: cuStreamQuery, cuEventQuery
	ClassEvent   // cuEventRecord, cuStreamWaitEvent
	ClassStream  // creating streams
	ClassPeer    // between GPUs
	ClassIPC     // between processes
	ClassCapture // stream capture

	allClasses = 1<<16 - 1
)

// classNames has the names in the order of the bits.
const classNames = "init device context module alloc free copy set launch sync query event stream peer ipc capture"

// String returns the names of the classes, such as "copy,launch", or "none".
func (c Class) String() string {
	if c == 0 {
		return "none"
	}
	return strings.Join(c.Names(), ",")
}

// Names returns the names of the classes.
func (c Class) Names() []string {
	names := strings.Fields(classNames)
	var out []string
	for rest := uint32(c); rest != 0; rest &= rest - 1 {
		bit := bits.TrailingZeros32(rest)
		if bit < len(names) {
			out = append(out, names[bit])
		} else {
			out = append(out, fmt.Sprintf("bit%d", bit))
		}
	}
	return out
}

// MarshalText returns the names, for use in JSON.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// parseClass parses names separated by commas, in any order.
func parseClass(text string) (Class, error) {
	if text == "none" {
		return 0, nil
	}
	names := strings.Fields(classNames)
	var c Class
	for word := range strings.SplitSeq(text, ",") {
		i := slices.Index(names, strings.ToLower(word))
		if i < 0 {
			return 0, fmt.Errorf("unknown class of calls %q; supported values: %s", word, strings.Join(names, ", "))
		}
		c |= 1 << i
	}
	return c, nil
}
