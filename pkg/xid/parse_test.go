package xid

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRealLines(t *testing.T) {
	t.Parallel()
	for _, line := range readLines(t, "lines.txt") {
		e, p, err := Parse(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if e.Text() != line {
			t.Errorf("Text() = %s\n     want %s", e.Text(), line)
		}
		if p.Format != FormatNone || p.Form != FormPlain {
			t.Errorf("%s: prefix %+v", line, p)
		}
		if isXID := strings.Contains(line, " Xid ("); isXID != (e.Kind == KindXID) {
			t.Errorf("%s: kind %s", line, e.Kind)
		}
		if isSXid := strings.Contains(line, " SXid ("); isSXid != (e.Kind == KindSXid) {
			t.Errorf("%s: kind %s", line, e.Kind)
		}
		checkEvent(t, e)
	}
}

func TestParseEvents(t *testing.T) {
	t.Parallel()
	gpu := PCI{Bus: 4}
	for _, test := range []struct {
		line string
		want Event
	}{
		{
			"NVRM: Xid (PCI:0000:04:00): 79, pid=1, name=nvc:[driver], x",
			Event{Kind: KindXID, Code: 79, PCI: gpu, Process: Process{PID: 1, Name: "nvc:[driver]"}, Body: "x"},
		},
		{"NVRM: Xid (PCI:0000:04:00): 79", Event{Kind: KindXID, Code: 79, PCI: gpu}},
		{"NVRM: Xid (0000:04:00): 79, x", Event{Kind: KindXID, Code: 79, PCI: gpu, Address: AddressOld, Body: "x"}},
		{
			"NVRM: Xid (PCI:00000000:04:00.0): 79, x",
			Event{Kind: KindXID, Code: 79, PCI: gpu, Address: AddressFunction, Body: "x"},
		},
		{"NVRM: Xid (PCI:0000:AB:00): 79, x", Event{Kind: KindXID, Code: 79, PCI: PCI{Bus: 0xab}, Body: "x"}},
		{"NVRM: Xid (PCI:0000:04:00 GPU-I:05 GPU-CI:00): 79, pid='<unknown>', x", Event{
			Kind: KindXID, Code: 79, PCI: gpu, MIG: MIG{On: true, GI: 5, HasCI: true}, Process: Process{Unknown: true},
			Body: "x",
		}},
		{
			"NVRM: Xid (PCI:0000:04:00): 45, channel 0x2 caused by previous Xid 149",
			Event{Kind: KindXID, Code: 45, PCI: gpu, Body: "channel 0x2", CausedBy: 149},
		},
		{
			"NVRM: Xid (PCI:0000:04:00): 43, x caused by previous Xid 149",
			Event{Kind: KindXID, Code: 43, PCI: gpu, Body: "x caused by previous Xid 149"},
		},
		{"NVRM: NVRM: Xid (PCI:0000:04:00): 79, x", Event{Kind: KindXID, Code: 79, PCI: gpu, Body: "x"}},
		{"nvidia-nvswitch1: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 07 x", Event{
			Kind: KindSXid, Code: 20034, PCI: gpu, Switch: 1, Severity: SeverityFatal, HasLink: true, Link: 7,
			Body: "x",
		}},
		// What would not survive is a note, so that a replay keeps it.
		{"NVRM: Xid (PCI:0000:04:00): 079, x", Event{Kind: KindNote, Body: "Xid (PCI:0000:04:00): 079, x"}},
		{"NVRM: Xid (PCI:0000:04:20): 79, x", Event{Kind: KindNote, Body: "Xid (PCI:0000:04:20): 79, x"}},
		{
			"nvidia-nvswitch1: SXid (PCI:0000:04:00): 20034, Fatal",
			Event{Kind: KindSwitchNote, Switch: 1, Body: "SXid (PCI:0000:04:00): 20034, Fatal"},
		},
		{"NVRM: GPU at PCI:0000:04:00: none", Event{Kind: KindNote, Body: "GPU at PCI:0000:04:00: none"}},
	} {
		e, _, err := Parse(test.line)
		if err != nil {
			t.Errorf("%s: %v", test.line, err)
		}
		if diff := cmp.Diff(test.want, e); diff != "" {
			t.Errorf("%s: %s", test.line, diff)
		}
	}
	for line, want := range map[string]string{
		"":                         "not a line from NVIDIA's driver",
		"usb 1-1: new device":      "NVRM:",
		"XNVRM: Xid":               "not a line",
		"NVRM: a\x1bb":             "control character",
		`4,1,2,-;NVRM: a\x0ab`:     "line break",
		"NVRM: a\xff":              "UTF-8",
		"Xid (PCI:0000:04:00): 79": "not a line",
	} {
		_, _, err := Parse(line)
		wantError(t, err, want)
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	const text = "NVRM: Xid (PCI:0000:04:00): 79, GPU has fallen off the bus."
	uptime := 12345*time.Second + 678901*time.Microsecond
	wall := time.Date(2026, 11, 3, 10, 11, 12, 0, time.UTC)
	noYear := wall.AddDate(-26, 0, 0)
	p := func(f Format, form Form) Prefix { return Prefix{Format: f, Form: form, Priority: -1} }
	up := func(f Format, form Form, priority int) Prefix {
		return Prefix{Format: f, Form: form, Priority: priority, HasUptime: true, Uptime: uptime}
	}
	at := func(f Format, form Form, when time.Time) Prefix {
		return Prefix{Format: f, Form: form, Priority: -1, Time: when}
	}
	for _, test := range []struct {
		before string
		want   Prefix
	}{
		{"", p(FormatNone, FormPlain)},
		{"kernel: ", p(FormatNone, FormKernel)},
		{"<4>", Prefix{Format: FormatWrite, Form: FormPlain, Priority: 4}},
		{"<3>kernel: ", Prefix{Format: FormatWrite, Form: FormKernel, Priority: 3}},
		{"<3>[6085126.134786] ", Prefix{Format: FormatWrite, Form: FormBracket, Priority: 3}},
		{"4,344,12345678901,c;", up(FormatKmsg, FormModule, 4)},
		{"12,344,12345678901,-,caller=T123;", up(FormatKmsg, FormPlain, 12)},
		{"12,344,12345678901,-;kernel: ", up(FormatKmsg, FormKernel, 12)},
		{"11,344,12345678901,-;[6085126.134786] ", up(FormatKmsg, FormBracket, 11)},
		{"[12345.678901] ", up(FormatDmesg, FormPlain, -1)},
		{"[ 12345.678901] kernel: ", up(FormatDmesg, FormKernel, -1)},
		{"[12345.678901] [6085126.134786] ", up(FormatDmesg, FormBracket, -1)},
		{"[12345.678901][ T1234] ", up(FormatDmesg, FormPlain, -1)},
		{"[12345.678901] [  C12] ", up(FormatDmesg, FormPlain, -1)},
		{"kern  :warn  : [12345.678901] ", up(FormatDmesg, FormPlain, -1)},
		{"[12345.678901] gpu-node-1 kernel: ", up(FormatDmesg, FormPlain, -1)},
		{"[Tue Nov  3 10:11:12 2026] ", at(FormatCtime, FormPlain, wall)},
		{"user  :err   : [Tue Nov  3 10:11:12 2026] kernel: ", at(FormatCtime, FormKernel, wall)},
		{"Nov  3 10:11:12 gpu-node-1 kernel: ", at(FormatSyslog, FormPlain, noYear)},
		{"Nov 03 10:11:12 gpu-node-1 kernel: ", at(FormatSyslog, FormPlain, noYear)},
		{"Nov  3 10:11:12 gpu-node-1 kernel: [12345.678901] ", at(FormatSyslog, FormPlain, noYear)},
		{"Nov  3 10:11:12 gpu-node-1 ", at(FormatSyslog, FormPlain, noYear)},
		{"2026-11-03T10:11:12.5+00:00 gpu-node-1 kernel: ", at(FormatISO, FormPlain, wall.Add(time.Second/2))},
		{"2026-11-03T10:11:12,500000+00:00 ", at(FormatISO, FormPlain, wall.Add(time.Second/2))},
		{"2026-11-03T10:11:12+0000 gpu-node-1 kernel: ", at(FormatISO, FormPlain, wall)},
		{"[gpu-health] [CRITICAL] GPU-1234: XID: ", p(FormatUnknown, FormPlain)},
		{"syslog.1:Nov  3 10:11:12 gpu-node-1 kernel: ", p(FormatUnknown, FormPlain)},
	} {
		for _, end := range []string{"", "\n", "\r\n"} {
			e, got, err := Parse(test.before + text + end)
			if err != nil {
				t.Fatalf("%q: %v", test.before, err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%q: %s", test.before, diff)
			}
			if e.Text() != text {
				t.Errorf("%q: %s", test.before, e.Text())
			}
		}
	}
}
