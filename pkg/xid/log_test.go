package xid

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

const (
	fallen1 = "NVRM: The NVIDIA GPU 0000:b3:00.0"
	fallen2 = "NVRM: (PCI ID: 10de:26b5) installed in this system has"
	fallen3 = "NVRM: fallen off the bus and is not responding to commands."
	fallen  = fallen1 + "\n" + fallen2 + "\n" + fallen3
	lost    = "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus."
)

// show gives "offset kind" per entry.
func show(l Log) string {
	var out []string
	for _, e := range l.Entries {
		out = append(out, fmt.Sprintf("%v %s", e.Offset, e.Event.Kind))
	}
	return strings.Join(out, "; ")
}

func TestParseLog(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, log, want string }{
		{
			"dmesg", "[   10.000000] pci: x\n[   11.500000] " + lost + "\n[   12.000001] NVRM: GPU 0000:b3:00.0: x\n",
			"0s xid; 500.001ms gpu-note",
		},
		{"kmsg", "4,1,1000000,-;" + lost + "\n SUBSYSTEM=pci\n4,2,1000500,c;" + lost + "\n", "0s xid; 500µs xid"},
		{"syslog over new year", "Dec 31 23:59:59 h kernel: " + lost + "\nJan  1 00:00:01 h kernel: " + lost +
			"\nJan  1 00:00:02 h kernel: " + lost, "0s xid; 2s xid; 3s xid"},
		{"leap day", "Feb 28 23:59:59 h kernel: " + lost + "\nFeb 29 00:00:00 h kernel: " + lost, "0s xid; 1s xid"},
		{"ctime", "[Tue Nov  3 10:11:12 2026] " + lost + "\n[Tue Nov  3 10:12:12 2026] " + lost, "0s xid; 1m0s xid"},
		{"no time", lost + "\n\n" + lost, "0s xid; 0s xid"},
		{"mixed", "[   10.000000] " + lost + "\n[   12.000000] " + lost + "\n" + lost +
			"\n2026-11-03T10:11:12Z h kernel: " + lost +
			"\n2026-11-03T10:11:13Z h kernel: " + lost + "\n[   20.000000] " + lost,
			"0s xid; 2s xid; 2s xid; 2s xid; 3s xid; 10s xid"},
		{
			"reboot",
			"[  100.000000] " + lost + "\n[  101.000000] " + lost + "\n[    5.000000] " + lost + "\n[    6.000000] " +
				lost,
			"0s xid; 1s xid; 1s xid; 2s xid",
		},
		{"wrong year", "[Tue Nov  3 10:11:12 1026] " + lost + "\n[Tue Nov  3 10:11:12 2026] " + lost +
			"\n[Tue Nov  3 10:11:13 2026] " + lost, "0s xid; 0s xid; 1s xid"},
		{"one record in kmsg", "4,1,1000000,-;" + escape(fallen), "0s fallen-off-bus"},
		{
			"one record in rsyslog", "Nov  3 10:11:12 h kernel: " + strings.ReplaceAll(fallen, "\n", "#012"),
			"0s fallen-off-bus",
		},
		{"three lines of dmesg", "[   10.000000] " + fallen1 + "\n" + strings.Repeat(" ",
			15) + fallen2 + "\n" + strings.Repeat(" ", 15) + fallen3 + "\n", "0s fallen-off-bus"},
		{
			"three lines with times",
			"[   10.000000] " + fallen1 + "\n[   10.000000] " + fallen2 + "\n[   10.000000] " + fallen3,
			"0s fallen-off-bus",
		},
		{"torn off", "[   10.000000] " + fallen1 + "\n[   10.000000] " + fallen2, "0s note; 0s note"},
		{"interrupted", fallen1 + "\nusb 1-1: x\n" + fallen2 + "\n" + fallen3, "0s note; 0s note; 0s note"},
		{"twice", fallen1 + "\n" + fallen + "\r\n", "0s note; 0s fallen-off-bus"},
		{"nothing", "a\nb\n", ""},
		{"empty", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l, err := ParseLog(strings.NewReader(test.log))
			if err != nil {
				t.Fatal(err)
			}
			if got := show(l); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			for _, e := range l.Entries {
				if e.Event.Kind == KindFallenOff && e.Text != fallen {
					t.Errorf("%q", e.Text)
				}
			}
		})
	}
}

func TestParseLogCounts(t *testing.T) {
	t.Parallel()
	l, err := ParseLog(strings.NewReader("usb 1-1: x\n\n" + lost + "\nNVRM: a\tb\nnvidia-nvswitch0: open\n"))
	if err != nil {
		t.Fatal(err)
	}
	if l.Lines != 4 || l.Skipped != 1 || len(l.Entries) != 2 || len(l.Refused) != 1 || l.Refused[0].Line != 4 ||
		l.Entries[1].Line != 5 {
		t.Errorf("%+v", l)
	}
	wantError(t, l.Refused[0].Err, "control character")
}

func TestParseLogRefuses(t *testing.T) {
	t.Parallel()
	long := io.MultiReader(strings.NewReader(lost+"\n"), io.LimitReader(repeat('x'), MaxLog))
	for want, r := range map[string]io.Reader{
		"16 MiB":             long,
		"compressed":         strings.NewReader("\x1f\x8b\x08"),
		"journalctl -k":      strings.NewReader("LPKSHHRH\x00"),
		"not text":           strings.NewReader("NVRM: \x00"),
		"reading the log: x": iotest.ErrReader(errors.New("x")),
	} {
		wantError(t, second(ParseLog(r)), want)
	}
}

type repeat byte

func (r repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

func TestRemap(t *testing.T) {
	t.Parallel()
	a, b := PCI{Bus: 4}, PCI{Domain: 2, Bus: 0x9b, Device: 1}
	swap := map[PCI]PCI{a: b, b: a}
	for in, want := range map[string]string{
		"NVRM: Xid (PCI:0000:04:00): 79, x":                                         "NVRM: Xid (PCI:0002:9b:01): 79, x",
		"NVRM: Xid (PCI:0000:04:00 GPU-I:05): 79, x":                                "NVRM: Xid (PCI:0002:9b:01 GPU-I:05): 79, x",
		"NVRM: Xid (0000:04:00): 79, x":                                             "NVRM: Xid (0002:9b:01): 79, x",
		"NVRM: Xid (PCI:0000:04:00): 74, NVLink: failed to remote PCI:0002:9B:01":   "NVRM: Xid (PCI:0002:9b:01): 74, NVLink: failed to remote PCI:0000:04:00",
		"NVRM: GPU 0000:04:00.0: GPU serial number is 1.":                           "NVRM: GPU 0002:9b:01.0: GPU serial number is 1.",
		"NVRM: GPU at PCI:0000:04:00: GPU-455e672a":                                 "NVRM: GPU at PCI:0002:9b:01: GPU-455e672a",
		"NVRM: on GPU 00000000:04:00.0.":                                            "NVRM: on GPU 00000002:9b:01.0.",
		"nvidia-nvswitch0: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 30 x":        "nvidia-nvswitch0: SXid (PCI:0002:9b:01.0): 20034, Fatal, Link 30 x",
		"NVRM: The NVIDIA GPU 0000:04:00.0\nNVRM: (PCI ID: 10de:26b5) installed\n ": "NVRM: The NVIDIA GPU 0002:9b:01.0\nNVRM: (PCI ID: 10de:26b5) installed\n ",
		"NVRM: Xid (PCI:0000:05:00): 79, x":                                         "NVRM: Xid (PCI:0000:05:00): 79, x",
		"NVRM: a 10000:04:00 0000:04:00:11 x0000:04:00 ff:0000:04:00 -0000:04:00":   "NVRM: a 10000:04:00 0000:04:00:11 x0000:04:00 ff:0000:04:00 -0000:04:00",
		"NVRM: Xid (PCI:0002:9B:01): 79, x":                                         "NVRM: Xid (PCI:0000:04:00): 79, x",
	} {
		e := Entry{Text: in}
		got := e.Remap(swap)
		if got.Text != want {
			t.Errorf("Remap(%q)\n = %q\nwant %q", in, got.Text, want)
		}
		if back := got.Remap(swap); !strings.EqualFold(back.Text, in) {
			t.Errorf("and back: %q, want %q", back.Text, in)
		}
	}
	upper := Entry{Text: "NVRM: on GPU 00000000:8D:00.0"}.Remap(map[PCI]PCI{{Bus: 0x8d}: {Bus: 0xab}})
	if want := "NVRM: on GPU 00000000:AB:00.0"; upper.Text != want {
		t.Errorf("%s, want %s", upper.Text, want)
	}
}

// TestReplay follows an incident from the file to the records for another machine.
func TestReplay(t *testing.T) {
	t.Parallel()
	const uuid = UUID("GPU-00000000-1111-2222-3333-444444444444")
	log := "[  100.000000] NVRM: GPU at PCI:0000:b3:00: GPU-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3\n[  100.000010] " +
		lost +
		"\n[  101.000000] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
	l, err := ParseLog(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	if got := l.PCIs(); !slices.Equal(got, []PCI{{Bus: 0xb3}, {Bus: 5}}) {
		t.Errorf("PCIs() = %v", got)
	}
	var got []string
	for _, e := range l.Entries {
		k, err := e.Remap(map[PCI]PCI{{Bus: 0xb3}: gpu17}).WithUUID(uuid).Record(FormKernel)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Offset.Truncate(time.Millisecond).String()+" "+string(k.Bytes()))
	}
	want := []string{
		"0s <4>kernel: NVRM: GPU at PCI:0000:17:00: " + string(uuid) + "\n",
		"0s <4>kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n",
		"1s <3>kernel: nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	wantError(t, second(Entry{Line: 3, Text: "NVRM: a\nb"}.Record(FormKernel)), "line 3")
}
