package xid

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var generations = []Generation{R535, R580, R595}

// TestEveryBody makes every text that the catalog can produce, and reads it back.
func TestEveryBody(t *testing.T) {
	t.Parallel()
	for _, c := range All() {
		for _, variant := range c.Variants {
			o := Options{PCI: gpu17, Variant: variant.Variant}
			for _, g := range generations {
				o.Driver = g
				o.Seed = 0
				checkEvent(t, mustNew(t, c.Number, o))
				o.Seed = 9
				checkEvent(t, mustNew(t, c.Number, o))
			}
			o.MIG = MIG{On: true, GI: 5}
			checkEvent(t, mustNew(t, c.Number, o))
			if variant.NoProcess {
				continue
			}
			o.Process = UnknownProcess()
			checkEvent(t, mustNew(t, c.Number, o))
			o.Process, o.MIG.HasCI = Process{PID: 1234, Name: "python"}, true
			checkEvent(t, mustNew(t, c.Number, o))
		}
	}
}

// checkEvent: Parse(Record(e)) is e, in every form.
func checkEvent(t *testing.T, e Event) {
	t.Helper()
	for _, f := range []Form{FormKernel, FormPlain, FormBracket, FormModule} {
		k, err := Record(e, f)
		if err != nil {
			t.Fatalf("Record(%+v, %s): %v", e, f, err)
		}
		lines := []string{string(k.Bytes()), k.Raw(7, 5240688)}
		for _, line := range lines {
			got, p, err := Parse(line)
			if err != nil {
				t.Fatalf("Parse(%q): %v", line, err)
			}
			if got != e {
				t.Fatalf("Parse(%q): %s", line, cmp.Diff(e, got))
			}
			if p.Form != f && f != FormModule || f == FormModule && p.Format == FormatKmsg && p.Form != f {
				t.Fatalf("Parse(%q): form %s, want %s", line, p.Form, f)
			}
		}
	}
}

// TestExampleBodies: with the seed 0, the templates give the lines that were seen, byte for byte.
func TestExampleBodies(t *testing.T) {
	t.Parallel()
	for _, line := range readLines(t, "examples.txt") {
		want, _, err := Parse(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if want.Text() != line {
			t.Errorf("Text() = %s\n     want %s", want.Text(), line)
		}
		c, ok := Lookup(want.Code)
		if !ok {
			t.Fatalf("%s: not in the catalog", line)
		}
		found := false
		for _, v := range c.Variants {
			for _, g := range generations {
				o := Options{PCI: want.PCI, Driver: g, Variant: v.Variant}
				if !v.NoProcess {
					o.Process = want.Process
				}
				e := mustNew(t, want.Code, o)
				e.Process = want.Process // none in the line is none, whatever the template blames
				found = found || e == want
			}
		}
		if !found {
			t.Errorf("no template gives %s", line)
		}
	}
}

func TestSeeds(t *testing.T) {
	t.Parallel()
	o := Options{PCI: gpu17}
	fixed := mustNew(t, 31, o)
	o.Seed = 1
	one, again := mustNew(t, 31, o), mustNew(t, 31, o)
	if one != again {
		t.Error("the same seed gives different texts")
	}
	o.Seed = 2
	if two := mustNew(t, 31, o); one == two || one == fixed {
		t.Error("seeds do not vary the text")
	}
}

// TestNamedNumbers: equal names must have equal ranges, or a cascade could print impossible numbers.
func TestNamedNumbers(t *testing.T) {
	t.Parallel()
	ranges := map[string]string{}
	for _, c := range All() {
		for _, v := range c.Variants {
			for _, h := range hole.FindAllString(v.Body, -1) {
				m := verb.FindStringSubmatch(h)
				if m == nil || m[1] == "" {
					continue
				}
				if r := m[3] + "-" + m[4]; ranges[m[1]] == "" {
					ranges[m[1]] = r
				} else if ranges[m[1]] != r {
					t.Errorf("code %d: %s is %s, elsewhere %s", c.Number, m[1], r, ranges[m[1]])
				}
			}
		}
	}
}

func TestGenerations(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code int
		o    Options
		want string
	}{
		{43, Options{Driver: R535}, "43, pid=2924364, name=pt_main_thread, Ch 00000008"},
		{43, Options{Driver: R580}, "43, pid=2924364, name=pt_main_thread, channel 0x00000008"},
		{79, Options{Driver: R535}, "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."},
		{79, Options{}, "79, GPU has fallen off the bus."},
		{79, Options{Process: Process{PID: 1, Name: "x"}}, "79, pid=1, name=x, GPU has fallen off the bus."},
		{154, Options{Driver: R535}, "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"},
		{
			154, Options{Variant: "reboot"},
			"154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
		},
		{119, Options{Driver: R595, Process: Process{PID: 1, Name: "x"}},
			"119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU1 GSP! " +
				"Expected function 76 (GSP_RM_CONTROL) sequence 1234 (0x20802a02 0x8)."},
		{200, Options{Message: "pid=7, name=a b, text"}, "200, pid=7, name=a b, text"},
		{
			45, Options{Message: "channel 0x00000002 caused by previous Xid 149"},
			"45, channel 0x00000002 caused by previous Xid 149",
		},
	} {
		test.o.PCI = gpu17
		e := mustNew(t, test.code, test.o)
		if got, want := e.Text(), "NVRM: Xid (PCI:0000:17:00): "+test.want; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		checkEvent(t, e)
	}
}

func TestNewErrors(t *testing.T) {
	t.Parallel()
	python := Process{PID: 1, Name: "python"}
	for _, test := range []struct {
		name string
		code int
		o    Options
		want []string
	}{
		{"zero", 0, Options{}, []string{"1 to 99999"}},
		{"negative", -1, Options{}, []string{"-1 does not exist"}},
		{"unknown", 9999, Options{}, []string{"not in the catalog", "--message"}},
		{"variant", 154, Options{Variant: "x"}, []string{`no variant "x"`, "reset, reboot, drain-p2p, drain-reset"}},
		{"process of 154", 154, Options{Process: python}, []string{"no process for XID 154"}},
		{"process in message of 154", 154, Options{Message: "pid=1, name=x, y"}, []string{"no process for XID 154"}},
		{"newline", 79, Options{Message: "a\nb"}, []string{"line break at byte 1"}},
		{"control", 79, Options{Message: "a\x1bb"}, []string{"control character U+001B"}},
		{"utf-8", 79, Options{Message: "a\xff"}, []string{"UTF-8"}},
		{"blank", 79, Options{Message: "  "}, []string{"blank"}},
		{"two processes", 79, Options{Message: "pid=2, name=x, y", Process: python}, []string{"remove one of them"}},
		{"comma", 79, Options{Process: Process{PID: 1, Name: "a,b"}}, []string{"comma"}},
		{"name without pid", 79, Options{Process: Process{Name: "a"}}, []string{"no process ID"}},
		{"negative pid", 79, Options{Process: Process{PID: -1}}, []string{"must not be negative"}},
		{"name with newline", 79, Options{Process: Process{PID: 1, Name: "a\nb"}}, []string{"line break"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := New(test.code, test.o)
			wantError(t, err, test.want...)
		})
	}
}

func TestSwitchAndFallenOff(t *testing.T) {
	t.Parallel()
	for _, s := range SXids() {
		e, err := NewSXid(s.Number, Options{PCI: PCI{Bus: 5}, Switch: 3})
		if err != nil {
			t.Fatal(err)
		}
		checkEvent(t, e)
	}
	e, err := NewSXid(12345, Options{PCI: PCI{Bus: 5}, Message: "Fatal, Link 07 text"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := e.Text(), "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12345, Fatal, Link 07 text"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	checkEvent(t, e)
	k, err := Record(e, FormKernel)
	if err != nil || !strings.HasPrefix(string(k.Bytes()), "<3>kernel: nvidia-nvswitch0: SXid") {
		t.Errorf("%q, %v", k.Bytes(), err)
	}
	if e, err = NewFallenOff(Options{PCI: PCI{Bus: 0xb3}}); err != nil {
		t.Fatal(err)
	}
	checkEvent(t, e)
	k, err = Record(e, FormAuto)
	want := "<4>kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n" +
		"NVRM: fallen off the bus and is not responding to commands.\n"
	if err != nil || string(k.Bytes()) != want {
		t.Errorf("%q, %v", k.Bytes(), err)
	}
	for name, err := range map[string]error{
		"the message of SXid 1":   second(NewSXid(1, Options{})),
		"must begin with its sev": second(NewSXid(1, Options{Message: "text"})),
		"no process":              second(NewSXid(12028, Options{MIG: MIG{On: true}})),
		"NVSwitch -1":             second(NewSXid(12028, Options{Switch: -1})),
		"invalid device ID":       second(NewFallenOff(Options{DeviceID: "x"})),
		"always the same":         second(NewFallenOff(Options{Message: "x"})),
	} {
		wantError(t, err, name)
	}
}

func second[T any](_ T, err error) error { return err }

func TestEvidence(t *testing.T) {
	t.Parallel()
	// Codes of which a line is known. Whoever finds another line adds its code here.
	var known []int
	for _, c := range All() {
		if slices.ContainsFunc(c.Variants, func(v Template) bool { return v.Evidence == Real }) {
			known = append(known, c.Number)
		}
	}
	want := []int{
		8, 13, 14, 31, 32, 43, 44, 45, 46, 48, 51, 61, 62, 63, 64, 69, 74, 79, 94, 95, 109, 119, 120, 137, 149, 154,
		171, 172,
	}
	if diff := cmp.Diff(want, known); diff != "" {
		t.Error(diff)
	}
}
