package driver

import (
	"strings"
	"testing"
)

func TestParseDriverVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  gcc 12.2.0\n":          "535.104.05",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)  Fri Jan 24\n":            "570.86.15",
		"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  590.48.01  Release Build\nGCC version:  Selected multilib: .;@m64\n": "590.48.01",
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.95  x\n":                                                                  "580.95",
		"GCC version:  gcc version 12.2.0\n": "",
		"":                                   "",
	} {
		if got := Version(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func FuzzParseDriverVersion(f *testing.F) {
	f.Add("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat")
	f.Fuzz(func(t *testing.T, s string) {
		if v := Version(s); strings.Trim(v, "0123456789.") != "" {
			t.Errorf("%q", v)
		}
	})
}
