package xid

import (
	"strings"
	"testing"
)

func TestRecord(t *testing.T) {
	t.Parallel()
	e := mustNew(t, 79, Options{PCI: gpu17, Process: Process{PID: 1234, Name: "python"}})
	const text = "NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus."
	for f, want := range map[Form]string{
		"":          "<4>kernel: " + text + "\n",
		FormAuto:    "<4>kernel: " + text + "\n",
		FormKernel:  "<4>kernel: " + text + "\n",
		FormPlain:   "<4>" + text + "\n",
		FormBracket: "<4>[6085126.134786] " + text + "\n",
		FormModule:  "<4>" + text + "\n",
	} {
		k, err := Record(e, f)
		if err != nil || string(k.Bytes()) != want {
			t.Errorf("%s: %q, %v", f, k.Bytes(), err)
		}
		if (k.Facility == 0) != (f == FormModule) {
			t.Errorf("%s: facility %d", f, k.Facility)
		}
	}
	wantError(t, second(Record(e, "x")), "unknown form")
	wantError(t, second(Record(Event{}, FormAuto)), "unknown event kind")
	wantError(t, second(Record(Event{Kind: KindXID, Code: 43, Body: "x", CausedBy: 1}, FormAuto)), "only an XID 45")
	wantError(t, second(Record(Event{Kind: KindUUID, Body: "a\nb"}, FormAuto)), "line break")
	wantError(t, second(Record(Event{Kind: KindFallenOff, DeviceID: "a\nb"}, FormAuto)), "line break")
}

func TestRecordLimit(t *testing.T) {
	t.Parallel()
	overhead := len("<4>kernel: NVRM: Xid (PCI:0000:17:00): 79, \n")
	e := mustNew(t, 79, Options{PCI: gpu17, Message: strings.Repeat("x", MaxRecord-overhead)})
	k, err := Record(e, FormKernel)
	if err != nil || len(k.Bytes()) != MaxRecord {
		t.Fatalf("%d bytes, %v", len(k.Bytes()), err)
	}
	e.Body += "xy"
	wantError(t, second(Record(e, FormKernel)), "978 bytes", "by 2 bytes")
	if _, err := Record(e, FormPlain); err != nil {
		t.Errorf("the limit counts the form: %v", err)
	}
}

func TestRaw(t *testing.T) {
	t.Parallel()
	k := Kmsg{Facility: 1, Level: 4, Text: "kernel: a\nb\\c\u00e9"}
	if got, want := k.Raw(344, 5240688), `12,344,5240688,-;kernel: a\x0ab\x5cc\xc3\xa9`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, s := range []string{"", `\`, `\x`, `\x4`, `\xzz`, `a\x5cb`, "\\x41", "é\n\t\x7f"} {
		if got := unescape(escape(s)); got != s {
			t.Errorf("unescape(escape(%q)) = %q", s, got)
		}
	}
	if got := unescape(`\x41\x4Z\x`); got != `A\x4Z\x` {
		t.Errorf("%q", got)
	}
}

// TestJournaldView has what was measured with systemd 252.
func TestJournaldView(t *testing.T) {
	t.Parallel()
	const xid = "Xid (PCI:0000:04:00): 79, x"
	for _, test := range []struct {
		facility            int
		text                string
		identifier, message string
	}{
		{1, "NVRM: " + xid, "NVRM", xid},
		{1, "nvidia-nvswitch0: SXid (PCI:0000:04:00.0): 20034", "nvidia-nvswitch0", "SXid (PCI:0000:04:00.0): 20034"},
		{1, " NVRM: " + xid, "NVRM", xid},
		{1, "[6085126.134786] NVRM: " + xid, "", "[6085126.134786] NVRM: " + xid},
		{1, "kernel: NVRM: " + xid, "kernel", "NVRM: " + xid},
		{1, "NVRM: NVRM: " + xid, "NVRM", "NVRM: " + xid},
		{1, "NVRM:" + xid, "", "NVRM:" + xid},
		{3, "NVRM: " + xid, "NVRM", xid},
		{0, "NVRM: " + xid, "kernel", "NVRM: " + xid},
		{1, "first line\nsecond", "", "first line\nsecond"},
		{1, "kernel: NVRM: The\nNVRM: (PCI", "kernel", "NVRM: The\nNVRM: (PCI"},
		{1, "word:\nx", "", "word:\nx"}, // the newline is escaped when journald looks for the word
		{1, "python[123]: NVRM: x", "python", "NVRM: x"},
		{1, "a]: x", "a]", "x"},
		{1, ": x", "", "x"},
		{1, "word:", "word", ""},
		{1, "word:  x", "word", " x"},
		{1, "", "", ""},
		{1, `word: a\x41`, "word", `a\x41`},
	} {
		identifier, message := JournaldView(Kmsg{Facility: test.facility, Level: 4, Text: test.text})
		if identifier != test.identifier || message != test.message {
			t.Errorf("JournaldView(%d, %q) = %q, %q; want %q, %q", test.facility, test.text, identifier, message,
				test.identifier, test.message)
		}
	}
}
