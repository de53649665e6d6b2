package xid

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMeasured has what was measured with the detectors themselves, one write per line.
func TestMeasured(t *testing.T) {
	t.Parallel()
	const (
		yes, no, dep = Yes, No, Depends
		pci          = "NVRM: Xid (PCI:0000:04:00"
		bus          = "GPU has fallen off the bus."
	)
	for _, test := range []struct {
		detector, line string
		form           Form
		seen           Sight
		action         string
		fatal          bool
	}{
		{IDNVSentinel, pci + "): 79, " + bus, FormPlain, no, "", false},
		{IDNVSentinel, pci + "): 79, " + bus, FormBracket, yes, "RESTART_BM", true},
		{IDNVSentinel, pci + "): 79, " + bus, FormKernel, yes, "RESTART_BM", true},
		{IDNVSentinel, pci + "): 79, " + bus, FormModule, yes, "RESTART_BM", true},
		{IDNVSentinel, pci + " GPU-I:05): 94, x", FormKernel, no, "", false},
		{IDNVSentinel, pci + ".0): 48, x", FormKernel, yes, "COMPONENT_RESET", true},
		{
			IDNVSentinel, pci + "): 154, from 0x0 (None) to 0x1 (GPU Reset Required)", FormKernel, yes,
			"COMPONENT_RESET", true,
		},
		{
			IDNVSentinel, pci + "): 154, from 0x0 (None) to 0x2 (Node Reboot Required)", FormKernel, yes, "RESTART_BM",
			true,
		},
		{IDNVSentinel, pci + "): 154, from 0x1 (GPU Reset Required) to 0x0 (None)", FormKernel, yes, "NONE", false},
		{IDNVSentinel, pci + "): 154, from 0x0 (None) to 0x3 (Drain P2P)", FormKernel, yes, "CONTACT_SUPPORT", true},
		{IDNVSentinel, pci + "): 31, x", FormKernel, yes, "NONE", false},
		{
			IDNVSentinel, pci + "): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)", FormKernel,
			yes, "BY_RULE", true,
		},
		{IDNVSentinel, pci + "): 149, x", FormKernel, yes, "CONTACT_SUPPORT", true},
		{IDNVSentinel, pci + "): 999, x", FormKernel, yes, "CONTACT_SUPPORT", true},
		{IDNVSentinel, pci + "): 45, x", FormKernel, yes, "CONTACT_SUPPORT", true},
		{IDNVSentinel, pci + "): 74, x", FormKernel, yes, "CONTACT_SUPPORT", true},
		{IDNVSentinel, pci + "): 163, x", FormKernel, yes, "CONTACT_SUPPORT", true},
		{IDNVSentinel, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 29 x", FormPlain, no, "", false},
		{
			IDNVSentinel, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 29 x", FormKernel, dep,
			"CONTACT_SUPPORT", true,
		},
		{
			IDNVSentinel, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 28002, Non-fatal, Link 29 x", FormKernel, dep,
			"NONE", false,
		},
		{IDNVSentinel, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Severity 1 x", FormKernel, no, "", false},
		{IDNVSentinel, fallen, FormKernel, yes, "RESTART_BM", true},
		{IDNVSentinel, fallen, FormPlain, no, "", false},
		{IDNVSentinel, "NVRM: GPU at PCI:0000:55:00: GPU-455e672a", FormKernel, yes, "", false},
		{IDNVSentinel, "NVRM: GPU 0000:01:00.0: " + bus, FormKernel, no, "", false},

		{IDGpud, pci + "): 79, " + bus, FormPlain, yes, "RebootSystem,HardwareInspection", true},
		{IDGpud, pci + "): 79, " + bus, FormBracket, yes, "RebootSystem,HardwareInspection", true},
		{IDGpud, pci + "): 79, " + bus, FormKernel, yes, "RebootSystem,HardwareInspection", true},
		{IDGpud, "NVRM: Xid (0000:04:00): 79, " + bus, FormKernel, yes, "RebootSystem,HardwareInspection", true},
		{IDGpud, pci + ".0): 79, " + bus, FormKernel, no, "", false},
		{IDGpud, pci + " GPU-I:05): 79, " + bus, FormKernel, no, "", false},
		{IDGpud, pci + "): 79", FormKernel, no, "", false},
		{IDGpud, pci + "): 133, x", FormKernel, no, "", false},
		{IDGpud, pci + "): 999, x", FormKernel, no, "", false},
		{IDGpud, pci + "): 63, x", FormKernel, dep, "RebootSystem,HardwareInspection", true},
		{IDGpud, fallen, FormPlain, yes, "RebootSystem,HardwareInspection", true},
		{IDGpud, "NVRM: GPU 0000:01:00.0: " + bus, FormPlain, yes, "RebootSystem,HardwareInspection", true},
		{IDGpud, "NVRM: GPU at PCI:0000:55:00: GPU-455e672a", FormPlain, no, "", false},
		{IDGpud, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 x", FormPlain, yes, "", false},
		{IDGpud, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 32 x", FormPlain, yes, "", true},
		{IDGpud, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28002, Non-fatal, Link 32 x", FormPlain, no, "", false},
		{IDGpud, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 11001, Fatal, x", FormPlain, dep, "", true},

		{IDNPDKmsg, pci + "): 79, " + bus, FormPlain, dep, "", true},
		{IDNPDKmsg, pci + "): 79, " + bus, FormKernel, dep, "", true},
		{IDNPDKmsg, fallen, FormPlain, dep, "", true},
		{IDNPDJournald, pci + "): 79, " + bus, FormKernel, dep, "", true},
		{IDNPDJournald, pci + "): 79, " + bus, FormModule, dep, "", true},
		{IDNPDJournald, pci + "): 79, " + bus, FormPlain, no, "", false},
		{IDNPDJournald, pci + "): 79, " + bus, FormBracket, no, "", false},
		{IDEKS, pci + "): 79, " + bus, FormModule, no, "", false},
		{IDDevicePlugin, pci + "): 79, " + bus, FormModule, no, "", false},
		{IDDCGM, pci + "): 79, " + bus, FormModule, no, "", false},
		{IDTracepoint, pci + "): 79, " + bus, FormModule, no, "", false},
		{IDHyperPod, pci + "): 74, x", FormKernel, dep, "", true},
		{IDGKE, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 x", FormKernel, no, "", false},
	} {
		e := parseText(test.line)
		if e.Text() != test.line {
			t.Fatalf("%s is not understood: %+v", test.line, e)
		}
		d, ok := LookupDetector(test.detector)
		if !ok {
			t.Fatal(test.detector)
		}
		v := d.Judge(e, test.form)
		if v.Seen != test.seen || v.Action != test.action || v.Fatal != test.fatal {
			t.Errorf("%s of %s %q: %+v", test.detector, test.form, test.line, v)
		}
	}
}

func TestVerdictTexts(t *testing.T) {
	t.Parallel()
	e := mustNew(t, 79, Options{PCI: gpu17})
	nvs, _ := LookupDetector(IDNVSentinel)
	if v := nvs.Judge(e, FormAuto); !v.MayReboot ||
		v.Reaction != "RESTART_BM: cordons and drains the node, and may reboot it" {
		t.Errorf("%+v", v)
	}
	if v := nvs.Judge(e, FormPlain); !strings.Contains(v.Why, `"NVRM: "`) || !strings.Contains(v.Why, "form kernel") {
		t.Errorf("%+v", v)
	}
	e.MIG.On = true
	if v := nvs.Judge(e, FormAuto); !strings.Contains(v.Why, "MIG") {
		t.Errorf("%+v", v)
	}
	if v := nvs.Judge(Event{Kind: KindXID, Code: 79, Body: "a\nb"}, FormAuto); v.Seen != No ||
		!strings.Contains(v.Why, "line break") {
		t.Errorf("%+v", v)
	}
	var ids []string
	for _, d := range Detectors() {
		ids = append(ids, d.ID)
		if d.Name == "" || d.Reads == "" || d.Forget == "" {
			t.Errorf("%s is not documented", d.ID)
		}
	}
	if len(JudgeAll(e, FormAuto)) != len(ids) {
		t.Error("JudgeAll leaves detectors out")
	}
	if slices.Sort(ids); len(slices.Compact(ids)) != 12 {
		t.Errorf("detectors %v", ids)
	}
}

// TestOneForm: FormKernel is the only one that all readers of the log can see, which is why it is the default.
func TestOneForm(t *testing.T) {
	t.Parallel()
	e := mustNew(t, 79, Options{PCI: gpu17})
	for _, f := range []Form{FormKernel, FormPlain, FormBracket} {
		all := true
		for _, id := range []string{IDNVSentinel, IDGpud, IDNPDKmsg, IDNPDJournald} {
			d, _ := LookupDetector(id)
			all = all && d.Judge(e, f).Seen != No
		}
		if all != (f == FormKernel) {
			t.Errorf("%s is seen by all: %v", f, all)
		}
	}
}

// TestNPDRule: the rules that we name match what they are for, and one that does not run to the end of the line never
// fires, as several published ones.
func TestNPDRule(t *testing.T) {
	t.Parallel()
	for _, line := range readLines(t, "lines.txt") {
		e := parseText(line)
		rule := npdRule(e)
		k, err := Record(e, FormPlain)
		if err != nil {
			t.Fatal(err)
		}
		if rule == "" {
			continue
		}
		if alone, all := regexp.MustCompile(rule+`\z`).MatchString(line), find("npd kmsg", k) != nil; alone != all {
			t.Errorf("%s: %q matches %v, npdRules %v", line, rule, alone, all)
		}
	}
	text := mustNew(t, 79, Options{PCI: gpu17}).Text()
	if regexp.MustCompile(`NVRM: Xid \(PCI:[^)]+\): (48|79),` + `\z`).MatchString(text) {
		t.Error("a rule without .* matches")
	}
}

func TestEventString(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		lost:   "XID 79 on 0000:b3:00",
		fallen: "fallen off the bus: 0000:b3:00",
		"nvidia-nvswitch1: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 07 x": "SXid 20034 on switch 1 (0000:04:00)",
		"NVRM: x": "NVRM: x",
	} {
		if got := parseText(line).String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
