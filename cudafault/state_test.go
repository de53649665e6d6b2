package cudafault

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// full has another value in each field.
func full() State {
	return State{
		Run: "run-7k2", Generation: 0x0102030405060708, ArmedAt: time.UnixMilli(1_800_000_000_123).UTC(),
		Expires: time.UnixMilli(1_800_000_600_000).UTC(),
		Process: "python3*", Rank: 3, Nodes: []string{"gpu-1", "gpu-2"}, Devices: []int{0, 2, 63},
		Function: "cuMemAlloc*", Classes: ClassAlloc | ClassCapture, Surface: SurfaceSync,
		AfterCalls: 11, Every: 12, Probability: 0.25, Seed: 13, Max: 14, After: 15 * time.Millisecond,
		WindowFrom: 16 * time.Second, WindowTo: 17 * time.Second,
		Flags: FlagSticky | FlagRuntime, Error: 226, ErrorInit: 100, NVMLError: 15, ErrorFallback: 214,
		ErrorMinDriver: 12080,
		Latency:        18 * time.Microsecond, Jitter: 19 * time.Microsecond, LatencyClasses: ClassInit,
		MemLimit: 20 << 30,
		Hide:     []int{1}, Corrupt: 0.5,
		HangClasses: ClassSync, NVMLInitError: 18,
	}
}

// The layout is a contract with the shim: the offsets here are literal, as struct gf_state has them.
func TestStateLayout(t *testing.T) {
	t.Parallel()
	data, err := full().Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(data) != 1024 {
		t.Fatalf("%d bytes", len(data))
	}
	for at, want := range map[int]string{0: "GPUFAULT", 48: "run-7k2\x00", 80: "python3*\x00", 672: "cuMemAlloc*\x00"} {
		if got := string(data[at : at+len(want)]); got != want {
			t.Errorf("text at %d is %q, want %q", at, got, want)
		}
	}
	for at, want := range map[int]uint32{
		8: 1, 12: 1024, 144: 3, 148: 2, 736: 16 | 32768, 740: 1, 760: 1 << 30, 764: 1 | 4, 808: 226, 812: 100, 816: 15,
		820: 214, 824: 12080,
		828: 18, 832: 19, 836: 1, 856: 1 << 31, 860: 512, 864: 18,
	} {
		if got := binary.LittleEndian.Uint32(data[at:]); got != want {
			t.Errorf("32 bits at %d are %d, want %d", at, got, want)
		}
	}
	for at, want := range map[int]uint64{
		24: 0x0102030405060708, 32: 1_800_000_000_123, 40: 1_800_000_600_000, 152: 1<<63 | 5, 744: 11, 752: 12, 768: 13,
		776: 14, 784: 15, 792: 16000, 800: 17000,
		840: 20 << 30, 848: 2,
		160: 0x1f19a73a85ab003b, 168: 0x1f19a83a85ab01ee, 176: 0, // FNV-1a 64 of gpu-1 and gpu-2
	} {
		if got := binary.LittleEndian.Uint64(data[at:]); got != want {
			t.Errorf("64 bits at %d are %#x, want %#x", at, got, want)
		}
	}
	golden.Compare(t, "state.golden", hex.Dump(data))
	alone, err := State{Rank: AllRanks}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "state-disarmed.golden", hex.Dump(alone))
}

func TestStateRoundTrip(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]State{
		"disarmed": {Rank: AllRanks}, "full": full(),
		"extremes": {
			Rank: math.MaxInt32, Generation: math.MaxUint64, AfterCalls: math.MaxUint64, Every: math.MaxUint64,
			Max: math.MaxUint64, Seed: math.MaxUint64,
			MemLimit: math.MaxUint64, Devices: AllDevices(), Hide: AllDevices(), Run: strings.Repeat("r", 31),
			Process:  strings.Repeat("p", 63),
			Function: strings.Repeat("f", 63), Latency: math.MaxUint32 * time.Microsecond,
			Corrupt: float64(math.MaxUint32) / (1 << 32), Probability: 1.0 / (1 << 32),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := s.Encode()
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeState(data)
			if err != nil {
				t.Fatal(err)
			}
			for i, n := range s.Nodes {
				s.Nodes[i] = NodeHash(n) // the names are not in the file
			}
			if diff := cmp.Diff(s, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodes(t *testing.T) {
	t.Parallel()
	data, err := full().Encode()
	if err != nil {
		t.Fatal(err)
	}
	s, err := DecodeState(data)
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]bool{"gpu-1": true, "gpu-2": true, "gpu-3": false} {
		if s.HasNode(node) != want || full().HasNode(node) != want {
			t.Errorf("HasNode(%s) is not %v", node, want)
		}
	}
	if !(State{}).HasNode("any") {
		t.Error("a state without nodes leaves one out")
	}
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	many := make([]string, 65)
	for i := range many {
		many[i] = "node"
	}
	for name, test := range map[string]struct {
		change func(*State)
		want   string
	}{
		"run":         {func(s *State) { s.Run = strings.Repeat("r", 32) }, "the maximum is 31"},
		"process":     {func(s *State) { s.Process = strings.Repeat("p", 64) }, "the maximum is 63"},
		"function":    {func(s *State) { s.Function = strings.Repeat("f", 64) }, "the maximum is 63"},
		"NUL":         {func(s *State) { s.Run = "a\x00b" }, "NUL"},
		"rank":        {func(s *State) { s.Rank = -2 }, "rank -2"},
		"nodes":       {func(s *State) { s.Nodes = many }, "too many nodes: 65"},
		"empty node":  {func(s *State) { s.Nodes = []string{""} }, "empty"},
		"device":      {func(s *State) { s.Devices = []int{64} }, "device 64"},
		"hidden":      {func(s *State) { s.Hide = []int{-1} }, "hidden device -1"},
		"NaN":         {func(s *State) { s.Probability = math.NaN() }, "probability"},
		"above 1":     {func(s *State) { s.Corrupt = 1.1 }, "corruption"},
		"negative":    {func(s *State) { s.After = -time.Second }, "negative"},
		"fraction":    {func(s *State) { s.After = time.Microsecond }, "resolution is 1ms"},
		"nanoseconds": {func(s *State) { s.Latency = time.Nanosecond }, "resolution is 1µs"},
		"latency":     {func(s *State) { s.Latency = 72 * time.Minute }, "longer than"},
		"classes":     {func(s *State) { s.Classes = 1 << 16 }, "classes"},
		"flags":       {func(s *State) { s.Flags = 8 }, "flags"},
		"surface":     {func(s *State) { s.Surface = 2 }, "surface"},
		"error":       {func(s *State) { s.Error = -1 }, "error -1"},
		"old":         {func(s *State) { s.ArmedAt = time.UnixMilli(-1) }, "before 1970"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := State{}
			test.change(&s)
			if _, err := s.Encode(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// A file that was cut or changed must never be obeyed, whatever byte it is.
func TestDecodeStateRefusesEveryChange(t *testing.T) {
	t.Parallel()
	data, err := full().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		data[i] ^= 0x10
		if _, err := DecodeState(data); err == nil {
			t.Errorf("byte %d changed, and it was read", i)
		}
		data[i] ^= 0x10
	}
	for _, n := range []int{0, 1, 512, 1023} {
		if _, err := DecodeState(data[:n]); err == nil {
			t.Errorf("%d bytes were read", n)
		}
	}
	if _, err := DecodeState(append(data, 0)); err == nil {
		t.Error("1025 bytes were read")
	}
}

// What has the right checksum and is still not as we write it was written by something else.
func TestDecodeStateRefusesWhatItWouldNotWrite(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		at    int
		bytes []byte
	}{
		"rest":         {1023, []byte{1}},
		"behind a NUL": {79, []byte("x")},
		"nodes":        {148, []byte{65}},
		"unused node":  {160 + 8*2, []byte{1}},
		"class":        {736, []byte{0, 0, 1}},
		"flag":         {764, []byte{8}},
		"surface":      {740, []byte{2}},
		"rank":         {144, []byte{0xfe, 0xff, 0xff, 0xff}},
		"far future":   {40, []byte{0, 0, 0, 0, 0, 0, 0, 0xff}},
		"long after":   {784, []byte{0, 0, 0, 0, 0, 0, 0, 1}},
		"large code":   {808, []byte{0, 0, 0, 0xff}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := full().Encode()
			if err != nil {
				t.Fatal(err)
			}
			copy(data[test.at:], test.bytes)
			binary.LittleEndian.PutUint64(data[16:], checksum(data))
			if s, err := DecodeState(data); err == nil {
				t.Errorf("it was read: %+v", s)
			}
		})
	}
}

func FuzzDecodeState(f *testing.F) {
	for _, s := range []State{{}, full(), {Rank: AllRanks}} {
		data, err := s.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, false)
	}
	f.Add([]byte("GPUFAULT"), true)
	f.Fuzz(func(t *testing.T, data []byte, mend bool) {
		if mend && len(data) == StateSize { // else nothing gets past the checksum
			copy(data, stateMagic)
			binary.LittleEndian.PutUint32(data[8:], stateVersion)
			binary.LittleEndian.PutUint32(data[12:], StateSize)
			binary.LittleEndian.PutUint64(data[16:], checksum(data))
		}
		s, err := DecodeState(data)
		if err != nil {
			return
		}
		again, err := s.Encode()
		if err != nil || string(again) != string(data) {
			t.Fatalf("%+v encodes otherwise (%v)", s, err)
		}
		s.Trips(0)
		s.Immediate()
		s.HasNode("node")
	})
}
