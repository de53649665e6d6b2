package realxid

import (
	"errors"
	"strings"
	"testing"
	"unicode"
)

const good = "gpufault result 31 700 0000:17:00.0 GPU-66616b65-6375-6461-0000-000000000000\n"

func TestParseOutcome(t *testing.T) {
	t.Parallel()
	o, err := ParseOutcome("driver: some message\n"+good, 31)
	if err != nil {
		t.Fatal(err)
	}
	if o.PCI.String() != "0000:17:00" || o.GPU != "GPU-66616b65-6375-6461-0000-000000000000" ||
		o.CUDA() != "CUDA_ERROR_ILLEGAL_ADDRESS (700)" {
		t.Errorf("%+v", o)
	}
	for name, test := range map[string]struct {
		message string
		code    int
		want    string
	}{
		"empty":          {"", 31, "did not report an outcome"},
		"of the loader":  {"exec: no such file\n", 31, `"exec: no such file"`},
		"escapes":        {"\x1b[31mred\x00\xff", 31, `"[31mred ?"`},
		"other XID":      {good, 13, "it is for XID 31, not 13"},
		"other error":    {strings.Replace(good, "700", "999", 1), 31, "CUDA_ERROR_UNKNOWN (999), which is not an error"},
		"no error":       {strings.Replace(good, "700", "0", 1), 31, "is not an error caused by XID 31"},
		"missing word":   {"gpufault result 31 700 0000:17:00.0\n", 31, "malformed"},
		"negative":       {strings.Replace(good, "700", "-700", 1), 31, "malformed"},
		"address":        {strings.Replace(good, "0000:17", "0000-17", 1), 31, "malformed"},
		"UUID":           {strings.Replace(good, "GPU-", "MIG-", 1) + "\x1b", 31, "malformed"},
		"other kind":     {"gpufault done\n", 31, "did not report an outcome"},
		"refusal":        {"gpufault refused the device is a MIG instance\n", 31, "refused to run: the device is a MIG"},
		"failure":        {"gpufault failed cuInit returned 999\n", 31, "the program failed: cuInit returned 999"},
		"screen control": {"gpufault failed \x1b]0;x\a\n", 31, "the program failed: ]0;x"},
	} {
		_, err := ParseOutcome(test.message, test.code)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
		var failed *ProgramError
		if errors.As(err, &failed) != strings.Contains(test.want, "the program failed") && name != "refusal" {
			t.Errorf("%s: error %T", name, err)
		}
	}
}

func TestTheDriversLine(t *testing.T) {
	t.Parallel()
	o, err := ParseOutcome(good, 31)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]struct {
		is    bool
		other string
	}{
		"NVRM: Xid (PCI:0000:17:00): 31, pid=71, name=gpufault-crash, Ch 00000008":     {is: true},
		"NVRM: Xid (PCI:0000:17:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008": {is: true},
		"NVRM: Xid (PCI:0000:17:00): 31, Ch 00000008, intr 00000000":                   {is: true},
		"NVRM: Xid (PCI:0000:17:00): 31, pid=71, name=python, Ch 00000008": {
			other: `XID 31 from another process, "python"`,
		},
		"NVRM: Xid (PCI:0000:17:00): 13, pid=71, name=gpufault-crash, Graphics SM Warp": {other: "XID 13"},
		"NVRM: Xid (PCI:0000:1f:00): 31, pid=71, name=gpufault-crash, Ch 00000008":      {},
		"NVRM: GPU at PCI:0000:17:00: GPU-66616b65-6375-6461-0000-000000000000":         {},
		"usb 1-1: new device": {},
	} {
		if is, other := o.isIn(text); is != want.is || other != want.other {
			t.Errorf("%s: %t, %q, want %+v", text, is, other, want)
		}
	}
}

// What comes from a container is anything, and reaches people.
func FuzzParseOutcome(f *testing.F) {
	f.Add(good, 31)
	f.Add("gpufault refused x", 13)
	f.Add("gpufault failed \x1b[2J\n\u202e", 43)
	f.Add("x\ngpufault result 43 710 0000:17:00.0 GPU-66616b65-6375-6461-0000-00000000000g", 43)
	f.Fuzz(func(t *testing.T, message string, code int) {
		o, err := ParseOutcome(message, code)
		if err == nil {
			if o.check(code) != nil || !strings.HasPrefix(string(o.GPU), "GPU-") {
				t.Errorf("%q is taken as %+v", message, o)
			}
			return
		}
		if text := err.Error(); len(text) > 8*maxText || strings.ContainsFunc(text, unicode.IsControl) {
			t.Errorf("%q gives the error %q", message, text)
		}
	})
}
