package xid

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzParse(f *testing.F) {
	for _, line := range readLines(f, "lines.txt") {
		f.Add(line)
	}
	for _, before := range []string{
		"<4>kernel: ", "4,344,5240688,-;", "[12345.678901] ", "[Tue Nov  3 10:11:12 2026] ",
		"Nov  3 10:11:12 h kernel: ", "2026-11-03T10:11:12.5Z h kernel: ",
	} {
		f.Add(before + lost)
	}
	f.Add("Nov  3 10:11:12 h kernel: " + strings.ReplaceAll(fallen, "\n", "#012"))
	f.Fuzz(func(t *testing.T, line string) {
		e, p, err := Parse(line)
		if err != nil {
			return
		}
		if p.Format == "" || p.Uptime < 0 {
			t.Fatalf("prefix %+v", p)
		}
		// Whatever parses can be written and read again.
		text := e.Text()
		if again := parseText(text); again != e {
			t.Fatalf("%q: %+v\n%q: %+v", line, e, text, again)
		}
		if _, err := Record(e, FormPlain); err != nil && len(text) < MaxRecord-len("<4>\n") {
			t.Fatal(err)
		}
		JudgeAll(e, FormKernel)
	})
}

func FuzzParseLog(f *testing.F) {
	f.Add([]byte("[   10.000000] " + fallen1 + "\n" + strings.Repeat(" ",
		15) + fallen2 + "\n" + strings.Repeat(" ", 15) + fallen3 + "\nusb\n"))
	f.Add([]byte("Dec 31 23:59:59 h kernel: " + lost + "\nJan  1 00:00:01 h kernel: " + lost))
	f.Add([]byte("4,1,1000000,-;" + escape(fallen) + "\n4,1,1,-;" + lost + "\n" + lost))
	f.Add([]byte("[Tue Nov  3 10:11:12 0000] " + lost + "\n[Tue Nov  3 10:11:12 9999] " + lost))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := ParseLog(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if len(l.Entries)+len(l.Refused)+l.Skipped > l.Lines {
			t.Fatalf("%d entries, %d refused and %d skipped of %d lines", len(l.Entries), len(l.Refused), l.Skipped,
				l.Lines)
		}
		var last Entry
		for _, e := range l.Entries {
			if e.Offset < last.Offset || e.Line <= last.Line {
				t.Fatalf("%+v after %+v", e, last)
			}
			if _, err := e.Record(FormPlain); err != nil && len(e.Text) < MaxRecord-len("<4>\n") {
				t.Fatal(err)
			}
			last = e
		}
	})
}

func FuzzRemap(f *testing.F) {
	for _, line := range readLines(f, "lines.txt") {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e := Entry{Text: text}
		a, b := PCI{Bus: 1}, PCI{Bus: 2}
		to := map[PCI]PCI{a: b, b: a}
		moved := e.Remap(to)
		if len(moved.Text) != len(text) {
			t.Fatalf("%q becomes %q", text, moved.Text)
		}
		if back := moved.Remap(to).Text; !strings.EqualFold(back, text) && utf8.ValidString(text) {
			t.Fatalf("%q and back is %q", text, back)
		}
	})
}

func FuzzParsePCI(f *testing.F) {
	for _, s := range []string{"0000:17:00", "00000000:AB:1f.7", "17:00.0", "PCI:0002:00:00", "PCI:23:0:0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePCI(s)
		if err != nil {
			return
		}
		if again, err := ParsePCI(p.WithFunction()); err != nil || again != p {
			t.Fatalf("%q: %v, %v", s, again, err)
		}
	})
}

func FuzzParseUUID(f *testing.F) {
	f.Add("GPU-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3")
	f.Add("MIG-GPU-455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3/7/0")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseUUID(s)
		if err != nil {
			return
		}
		if again, err := ParseUUID(string(u)); err != nil || again != u {
			t.Fatalf("%q: %v, %v", s, again, err)
		}
	})
}

func FuzzParseSelector(f *testing.F) {
	for _, s := range []string{"79", "sxid:20034", "fallen-off-bus", "xid:0", "-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sel, err := ParseSelector(s)
		if err != nil {
			return
		}
		if again, err := ParseSelector(sel.String()); err != nil || again != sel {
			t.Fatalf("%q: %v, %v", s, again, err)
		}
	})
}

// FuzzRecord: whatever a user passes becomes exactly one record of one line, or an error.
func FuzzRecord(f *testing.F) {
	f.Add(79, "GPU has fallen off the bus.", "python", 1234, uint64(0))
	f.Add(999, "pid=1, name=x, caused by previous Xid 3", "", 0, uint64(7))
	f.Add(45, "x caused by previous Xid 149", "a,b", -1, uint64(7))
	f.Add(154, "a\n<0>b", "", 0, uint64(7))
	f.Fuzz(func(t *testing.T, code int, message, name string, pid int, seed uint64) {
		e, err := New(code, Options{PCI: gpu17, Message: message, Process: Process{PID: pid, Name: name}, Seed: seed})
		if err != nil {
			return
		}
		k, err := Record(e, FormKernel)
		if err != nil {
			return
		}
		raw := k.Bytes()
		if len(raw) > MaxRecord || bytes.IndexByte(raw, '\n') != len(raw)-1 || bytes.ContainsAny(raw, "\r\x00\x1b") {
			t.Fatalf("%q", raw)
		}
		if identifier, got := JournaldView(k); identifier != "kernel" || got != e.Text() {
			t.Fatalf("journald has %q, %q", identifier, got)
		}
		got, _, err := Parse(string(raw))
		if err != nil || got.Code != e.Code || got.PCI != e.PCI || got.Text() != e.Text() {
			t.Fatalf("%q: %+v, %v; want %+v", raw, got, err, e)
		}
	})
}

func FuzzJournaldView(f *testing.F) {
	f.Add(1, "kernel: NVRM: x\ny")
	f.Add(1, "a[1]: \\x41")
	f.Add(0, "é: x")
	f.Fuzz(func(t *testing.T, facility int, text string) {
		identifier, message := JournaldView(Kmsg{Facility: facility, Text: text})
		if !strings.HasSuffix(text, message) || len(identifier) > len(escape(text))+len("kernel") {
			t.Fatalf("%q: %q, %q", text, identifier, message)
		}
	})
}
