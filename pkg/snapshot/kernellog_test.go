package snapshot

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Whoever has no bundle gives what dmesg printed, in whichever of its forms.
func TestParseKernelLogForms(t *testing.T) {
	t.Parallel()
	at := 12*time.Second + 345678*time.Microsecond
	for line, want := range map[string]api.KernelRecord{
		`812;4;12345678;NVRM: a;b\x0ac`:           {Sequence: 812, Priority: 4, Uptime: at, Text: "NVRM: a;b\nc"},
		"[   12.345678] NVRM: Xid":                {Sequence: 1, Priority: 4, Uptime: at, Text: "NVRM: Xid"},
		"[   12.345678][ T1234] NVRM: Xid":        {Sequence: 1, Priority: 4, Uptime: at, Text: "NVRM: Xid"},
		"<14>[   12.345678] user":                 {Sequence: 1, Priority: 14, Uptime: at, Text: "user"},
		"kern  :warn  : [   12.345678] NVRM: Xid": {Sequence: 1, Priority: 4, Uptime: at, Text: "NVRM: Xid"},
		"[Thu Jan  1 12:00:00 2026] NVRM: Xid": {
			Sequence: 1, Priority: 4, Time: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), Text: "NVRM: Xid",
		},
		"Jan  1 12:00:00 host kernel: NVRM: Xid": {
			Sequence: 1, Priority: 4, Text: "Jan  1 12:00:00 host kernel: NVRM: Xid",
		},
		"[drm] initialised":         {Sequence: 1, Priority: 4, Text: "[drm] initialised"},
		"[99999999999999.000000] x": {Sequence: 1, Priority: 4, Text: "[99999999999999.000000] x"},
		"1;2;x;NVRM":                {Sequence: 1, Priority: 4, Text: "1;2;x;NVRM"},
		"1;4;9223372036854775807;longer than for ever": {
			Sequence: 1, Priority: 4, Text: "1;4;9223372036854775807;longer than for ever",
		},
	} {
		if got := ParseKernelLog(line + "\r\n\n"); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%q is read as %+v, wanted %+v", line, got, want)
		}
	}
}

// The driver breaks some messages into lines, of which only the first has a time.
func TestParseKernelLogKeepsTheTimeOfLinesThatFollow(t *testing.T) {
	t.Parallel()
	got := ParseKernelLog("[    2.000000] NVRM: The NVIDIA GPU\nNVRM: fallen off the bus\n")
	if len(got) != 2 || got[1].Uptime != 2*time.Second || got[1].Sequence != 2 {
		t.Errorf("%+v", got)
	}
}

func FuzzKernelLog(f *testing.F) {
	f.Add("812;4;12345678;NVRM: a;b\\x0ac\n[   12.345678] NVRM: Xid\n<4>[Thu Jan  1 12:00:00 2026] x\n\xff\\x5cx0a")
	f.Fuzz(func(t *testing.T, text string) {
		records := ParseKernelLog(text)
		again := ParseKernelLog(formatKernelLog(records))
		if len(records) != len(again) {
			t.Fatalf("%d records became %d", len(records), len(again))
		}
		for i := range records {
			records[i].Time = time.Time{} // not written: it follows from the probe's
			if !reflect.DeepEqual(records[i], again[i]) {
				t.Fatalf("%+v became %+v", records[i], again[i])
			}
		}
	})
}

// A bundle of 16 kB can unpack to millions of lines, each of which would be a record.
func TestParseKernelLogIsBounded(t *testing.T) {
	t.Parallel()
	got := ParseKernelLog(strings.Repeat("a\n", 1<<20) + "[    2.000000] NVRM: the newest\n")
	if len(got) != maxLogRecords || got[len(got)-1].Text != "NVRM: the newest" {
		t.Errorf("%d records, the last is %+v", len(got), got[len(got)-1])
	}
	if got := ParseKernelLog(strings.Repeat("a\n", maxLogRecords)); len(got) != maxLogRecords {
		t.Errorf("of %d lines %d are read", maxLogRecords, len(got))
	}
}
