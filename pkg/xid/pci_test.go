package xid

import (
	"encoding/json"
	"testing"
)

func TestParsePCI(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"0000:17:00":       "0000:17:00.0",
		"0000:17:00.0":     "0000:17:00.0",
		"00000000:17:00.0": "0000:17:00.0",
		"0000:AB:1F.7":     "0000:ab:1f.7",
		"17:00.0":          "0000:17:00.0",
		"PCI:0002:00:00":   "0002:00:00.0",
		" 0001:8d:00.0\n":  "0001:8d:00.0",
		"10000:e1:00.0":    "10000:e1:00.0",
		"0001FFFF:01:00":   "1ffff:01:00.0",
	} {
		p, err := ParsePCI(in)
		if err != nil || p.WithFunction() != want {
			t.Errorf("ParsePCI(%q) = %s, %v; want %s", in, p.WithFunction(), err, want)
		}
		if again, err := ParsePCI(p.WithFunction()); err != nil || again != p {
			t.Errorf("ParsePCI(%q) = %v, %v", p.WithFunction(), again, err)
		}
	}
	for in, want := range map[string]string{
		"":               "0000:17:00",
		"17:00":          "must be an address such as 0000:17:00",
		"0":              "invalid PCI address",
		"PCI:23:0:0":     "invalid PCI address",
		"0000:17:20":     "must be at most 1f",
		"0000:17:00.8":   "must be at most 7",
		"0000:17:00.":    "invalid PCI address",
		"0000:17:00.0x":  "invalid PCI address",
		"000:17:00.0":    "invalid PCI address",
		"g000:17:00.0":   "invalid PCI address",
		"0000:17:00\n.0": "invalid PCI address",
	} {
		_, err := ParsePCI(in)
		wantError(t, err, want)
	}
	var p PCI
	raw, err := json.Marshal(map[PCI]PCI{gpu17: gpu17})
	if err != nil || string(raw) != `{"0000:17:00.0":"0000:17:00.0"}` {
		t.Errorf("%s, %v", raw, err)
	}
	if err := json.Unmarshal([]byte(`"0000:17:00"`), &p); err != nil || p != gpu17 {
		t.Errorf("%v, %v", p, err)
	}
	if err := json.Unmarshal([]byte(`"x"`), &p); err == nil || p != gpu17 {
		t.Errorf("%v, %v", p, err)
	}
}

func TestParseUUID(t *testing.T) {
	t.Parallel()
	const hex = "455e672a-1aa1-4b62-9a4f-0e60a1b0f2c3"
	for in, want := range map[string]struct {
		uuid UUID
		mig  bool
		gpu  UUID
	}{
		"GPU-" + hex: {"GPU-" + hex, false, "GPU-" + hex},
		" gpu-455E672A-1AA1-4B62-9A4F-0E60A1B0F2C3": {"GPU-" + hex, false, "GPU-" + hex},
		"MIG-" + hex:              {"MIG-" + hex, true, ""},
		"MIG-GPU-" + hex + "/7/0": {"MIG-GPU-" + hex + "/7/0", true, "GPU-" + hex},
	} {
		u, err := ParseUUID(in)
		if err != nil || u != want.uuid || u.IsMIG() != want.mig {
			t.Errorf("ParseUUID(%q) = %q, %v", in, u, err)
		}
		if gpu, err := u.GPU(); gpu != want.gpu || (err != nil) != (want.gpu == "") {
			t.Errorf("%q.GPU() = %q, %v", u, gpu, err)
		}
	}
	for _, in := range []string{
		"", "GPU-", hex, "GPU-455e672a", "GPU-" + hex + "0", "GPU-" + hex + "/1/0", "MIG-GPU-" + hex,
		"GPU-g55e672a-1aa1-4b62-9a4f-0e60a1b0f2c3",
	} {
		_, err := ParseUUID(in)
		wantError(t, err, "invalid GPU UUID")
	}
}

func TestParseSmallThings(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Generation{
		"": R580, "535": R535, "r565": R535, "R570": R580, "580.95.05": R580, "595.45.04": R595, "R600": R595,
	} {
		if g, err := ParseGeneration(in); err != nil || g != want {
			t.Errorf("ParseGeneration(%q) = %s, %v", in, g, err)
		}
	}
	wantError(t, second(ParseGeneration("new")), "580.95.05")

	for in, want := range map[string]string{
		"1234,python": "pid=1234, name=python", "7": "pid=7", "1,a b": "pid=1, name=a b",
	} {
		if p, err := ParseProcess(in); err != nil || p.String() != want {
			t.Errorf("ParseProcess(%q) = %s, %v", in, p, err)
		}
	}
	for in, want := range map[string]string{
		"": "PID,NAME", "python": "PID,NAME", "0,x": "PID,NAME", "-1,x": "PID,NAME", "1,": "empty name",
		"1,a,b":  "comma",
		"1,a\tb": "control character", "99999999999": "PID,NAME", "1,sixteen_letters_": `use "sixteen_letters"`,
		"1, x": "white space",
	} {
		wantError(t, second(ParseProcess(in)), want)
	}

	for in, want := range map[string]string{
		"": "", "5": "GPU-I:05", "5/0": "GPU-I:05 GPU-CI:00", "GPU-I:05 GPU-CI:00": "GPU-I:05 GPU-CI:00",
	} {
		if m, err := ParseMIG(in); err != nil || m.String() != want {
			t.Errorf("ParseMIG(%q) = %s, %v", in, m, err)
		}
	}
	wantError(t, second(ParseMIG("5.0")), "5/0")
}

func TestSelector(t *testing.T) {
	t.Parallel()
	for in, known := range map[string]bool{
		"79": true, "sxid:20034": true, "fallen-off-bus": true, "999": false, "sxid:1": false,
	} {
		s, err := ParseSelector(in)
		if err != nil || s.String() != in || s.Known() != known {
			t.Errorf("ParseSelector(%q) = %v, known %v, %v", in, s, s.Known(), err)
		}
		if _, err := s.Event(Options{PCI: gpu17}); (err == nil) != known {
			t.Errorf("%q: %v", in, err)
		}
	}
	if s, err := ParseSelector("xid:79"); err != nil || s.String() != "79" {
		t.Errorf("%v, %v", s, err)
	}
	for in, want := range map[string]string{
		"": "invalid XID", "0": "1 to 99999", "-1": "1 to 99999", "x": "xid list",
		"+7": "invalid XID", "7.9": "invalid XID",
		"100000": "1 to 99999",
		"sxid:":  "invalid XID", "yid:7": "invalid XID", "99999999999999999999": "invalid XID",
	} {
		wantError(t, second(ParseSelector(in)), want)
	}
	if _, err := (Selector{Kind: KindNote}).Event(Options{}); err == nil {
		t.Error("a note can be selected")
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	for _, f := range Forms() {
		if got, err := ParseForm(string(f)); err != nil || got != f {
			t.Errorf("%s: %v", f, err)
		}
	}
	wantError(t, second(ParseForm("module")), "auto, kernel, plain, bracket")
	wantError(t, second(ParseVia("x")), "kmsg, kmod")
	for _, test := range []struct {
		f    Form
		v    Via
		want Form // "" is an error
	}{
		{FormAuto, ViaKmsg, FormKernel},
		{FormPlain, ViaKmsg, FormPlain},
		{FormModule, ViaKmsg, ""},
		{FormAuto, ViaKmod, FormModule},
		{FormPlain, ViaKmod, FormModule},
		{FormKernel, ViaKmod, ""},
		{FormBracket, ViaKmod, ""},
	} {
		v, err := ParseVia(string(test.v))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := test.f.Resolve(v); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s.Resolve(%s) = %s, %v", test.f, v, got, err)
		}
	}
}
