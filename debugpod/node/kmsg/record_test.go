package kmsg

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

func TestParseKmsg(t *testing.T) {
	for _, tc := range []struct {
		raw  string
		want api.WrittenKmsg
		err  string
	}{
		{
			raw: "12,1034,2471154731,-;gpu: a\\x5cb\n",
			want: api.WrittenKmsg{
				Sequence: 1034, Uptime: 2471154731 * time.Microsecond, Priority: 12, Text: `gpu: a\x5cb`,
			},
		},
		{
			raw:  "6,339,5140900,c,caller=T1;NVRM; Xid\n SUBSYSTEM=pci\n DEVICE=+pci:0000:17:00.0\n",
			want: api.WrittenKmsg{Sequence: 339, Uptime: 5140900 * time.Microsecond, Priority: 6, Text: "NVRM; Xid"},
		},
		{raw: "4,18446744073709551615,0,-;", want: api.WrittenKmsg{Sequence: 1<<64 - 1, Priority: 4}},
		{raw: "", err: "semicolon"},
		{raw: "4,1;x", err: "begins with"},
		{raw: "x,1,2,-;x", err: "priority"},
		{raw: "4,-1,2,-;x", err: "sequence"},
		{raw: "4,1,9223372036854775807,-;x", err: "time"},
	} {
		got, err := Parse(tc.raw)
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) ||
			got != tc.want {
			t.Errorf("%q: got %+v, %v; want %+v, %q", tc.raw, got, err, tc.want, tc.err)
		}
	}
}

func FuzzParseKmsg(f *testing.F) {
	f.Add("12,1034,2471154731,-;text\n KEY=value\n")
	f.Add(",,;")
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := Parse(raw)
		if err == nil && (got.Uptime < 0 || got.Priority < 0 || strings.Contains(got.Text, "\n")) {
			t.Errorf("%q: %+v", raw, got)
		}
	})
}

// FuzzRecord holds that what Validate takes is found again when a kernel shows it.
func FuzzRecord(f *testing.F) {
	f.Add("<4>kernel: NVRM: Xid\n")
	f.Add("<191>;\\\x01é\n\n")
	f.Fuzz(func(t *testing.T, data string) {
		if (api.WriteKmsg{Records: []api.KmsgRecord{{Data: data}}}).Validate() != nil {
			return
		}
		priority, text := api.Stored(data)
		got, err := Parse(fmt.Sprintf("%d,1,2,-;%s\n", priority, text))
		if err != nil || got.Text != text || got.Priority != priority || priority>>3 == 0 {
			t.Errorf("%q: %+v, %v", data, got, err)
		}
	})
}
