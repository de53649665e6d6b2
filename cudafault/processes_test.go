package cudafault

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// table returns a process file as the shim writes it, with one process in the place i; the offsets are literal.
func table(i int) []byte {
	data := make([]byte, 16256)
	u32, u64 := binary.LittleEndian.PutUint32, binary.LittleEndian.PutUint64
	copy(data, "GPUFRUN1")
	u32(data[8:], 1)
	u32(data[12:], 63)
	u64(data[16:], 9)
	u64(data[24:], 1_800_000_000_000)
	slot := data[128+256*i:]
	u32(slot, 42)
	u32(slot[4:], 12080)
	u64(slot[8:], 1_800_000_000_001)
	u64(slot[16:], 1_800_000_000_002)
	u64(slot[24:], 9)
	u32(slot[32:], 4)
	u32(slot[36:], 2|4|16)
	u32(slot[40:], 300)
	u32(slot[44:], 999)
	u64(slot[48:], 1234)
	u64(slot[56:], 3)
	u64(slot[64:], 1_800_000_000_003)
	u64(slot[72:], 4026531836)
	copy(slot[80:], "python3")
	copy(slot[128:], "cuLaunchKernel")
	return data
}

func TestDecodeProcesses(t *testing.T) {
	t.Parallel()
	at := func(ms int64) time.Time { return time.UnixMilli(1_800_000_000_000 + ms).UTC() }
	want := Processes{TrippedGeneration: 9, TrippedAt: at(0), Trips: 3, List: []Process{{
		PID: 42, Namespace: 4026531836, Name: "python3", Driver: 12080, Started: at(1), Looked: at(2), Generation: 9,
		Status: StatusPoisoned,
		Paths:  PathDlsym | PathProcAddress | PathNVML, Hooks: 300, LastError: 999, Calls: 1234, Trips: 3,
		TrippedAt: at(3), Function: "cuLaunchKernel",
	}}}
	for _, slot := range []int{0, 62} {
		got, err := DecodeProcesses(table(slot))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("place %d (-want +got):\n%s", slot, diff)
		}
	}
	if p := want.List[0]; p.Status.String() != "poisoned" || p.Paths.String() != "dlsym,cuGetProcAddress,nvml" {
		t.Errorf("status %s, paths %s", p.Status, p.Paths)
	}
	if got := Status(99).String() + " " + Status(-1).String() + " " + Paths(0).String() + " " +
		StatusNoState.String(); got != "unknown unknown none no-state" {
		t.Error(got)
	}
}

func TestDecodeProcessesRefuses(t *testing.T) {
	t.Parallel()
	if p, err := DecodeProcesses(make([]byte, ProcessesSize)); err != nil || len(p.List) != 0 {
		t.Errorf("a file that was just made: %+v, %v", p, err)
	}
	for name, test := range map[string]struct {
		change func([]byte) []byte
		want   string
	}{
		"short":   {func(b []byte) []byte { return b[:100] }, "100 bytes"},
		"magic":   {func(b []byte) []byte { b[0] = 'g'; return b }, "GPUFRUN1"},
		"version": {func(b []byte) []byte { b[8] = 2; return b }, "version 2"},
		"slots":   {func(b []byte) []byte { b[12] = 64; return b }, "64 places"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := DecodeProcesses(test.change(table(0))); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// report returns what the shim prints.
func report(files ...[]byte) []byte {
	var out []byte
	for _, f := range files {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(f)))
		out = append(out, f...)
	}
	return out
}

func TestDecodeReport(t *testing.T) {
	t.Parallel()
	state, err := full().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		stdout           []byte
		state, processes bool
		want             string
	}{
		"both":           {report(state, table(1)), true, true, ""},
		"nothing yet":    {report(nil, nil), false, false, ""},
		"no processes":   {report(state, nil), true, false, ""},
		"no state":       {report(nil, table(0)), false, true, ""},
		"damaged state":  {report([]byte("x"), table(0)), false, true, "state file"},
		"damaged file":   {report(state, []byte("x")), true, false, "process file"},
		"cut":            {report(state, table(0))[:2000], true, false, "truncated after"},
		"cut early":      {report(state)[:500], false, false, "truncated after"},
		"empty":          {nil, false, false, "truncated after 0"},
		"one file":       {report(state), true, false, "truncated after 0"},
		"text of an ld":  {[]byte("exec format error"), false, false, "truncated after"},
		"something more": {append(report(state, table(0)), 'x'), true, false, "too many"},
		"endless length": {[]byte{0xff, 0xff, 0xff, 0xff}, false, false, "truncated after"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p, err := DecodeReport(test.stdout)
			if (s != nil) != test.state || (p != nil) != test.processes {
				t.Errorf("state %v, processes %v", s, p)
			}
			if test.want == "" && err != nil ||
				test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func FuzzDecodeReport(f *testing.F) {
	state, err := full().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(report(state, table(0)))
	f.Add(report(nil, table(62)))
	f.Add([]byte{1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, stdout []byte) {
		_, p, _ := DecodeReport(stdout)
		if p == nil {
			return
		}
		for _, one := range p.List {
			if one.PID <= 0 || one.Status.String() == "" || one.Paths.String() == "" || len(one.Name) > 48 ||
				len(one.Function) > 64 {
				t.Fatalf("%+v", one)
			}
		}
	})
}
