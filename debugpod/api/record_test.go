package api

import (
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	long := strings.Repeat("x", MaxKmsgRecord-len("<4>\n"))
	for name, tc := range map[string]struct {
		record KmsgRecord
		want   string // part of the error; empty for none
	}{
		"as the driver writes": {
			KmsgRecord{Data: "<4>kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n"}, "",
		},
		"longest":             {KmsgRecord{Data: "<4>" + long + "\n"}, ""},
		"one byte too long":   {KmsgRecord{Data: "<4>" + long + "x\n"}, "977 bytes"},
		"two lines":           {KmsgRecord{Data: "<4>a\nb\n"}, ""},
		"highest priority":    {KmsgRecord{Data: "<191>a\n"}, ""},
		"priority too high":   {KmsgRecord{Data: "<192>a\n"}, "192"},
		"no priority":         {KmsgRecord{Data: "a\n"}, "priority"},
		"priority not closed": {KmsgRecord{Data: "<4 a\n"}, "priority"},
		"priority empty":      {KmsgRecord{Data: "<>a\n"}, "priority"},
		"priority with sign":  {KmsgRecord{Data: "<+4>a\n"}, "priority"},
		"priority long":       {KmsgRecord{Data: "<0004>a\n"}, "priority"},
		"no newline":          {KmsgRecord{Data: "<4>a"}, "newline"},
		"no text":             {KmsgRecord{Data: "<4>\n"}, "no text"},
		"NUL":                 {KmsgRecord{Data: "<4>a\x00b\n"}, "NUL"},
		"delay":               {KmsgRecord{Data: "<4>a\n", Delay: time.Hour}, ""},
		"too many escapes":    {KmsgRecord{Data: "<4>" + strings.Repeat("\x01", MaxKmsgShown/4+1) + "\n"}, "are escaped"},
		"negative delay":      {KmsgRecord{Data: "<4>a\n", Delay: -1}, "negative"},
		"empty":               {KmsgRecord{}, "priority"},
	} {
		t.Run(name, func(t *testing.T) {
			err := WriteKmsg{Records: []KmsgRecord{tc.record}}.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if err := (WriteKmsg{}).Validate(); err == nil {
		t.Error("no records are taken")
	}
	if err := (WriteKmsg{Records: make([]KmsgRecord, MaxKmsgRecords+1)}).Validate(); err == nil ||
		!strings.Contains(err.Error(), "10001") {
		t.Errorf("too many records: %v", err)
	}
}

// The rows were seen on kernels 6.1 and 6.18.
func TestExpected(t *testing.T) {
	for _, tc := range []struct {
		data     string
		priority int
		text     string
	}{
		{"<4>NVRM: Xid\n", 12, "NVRM: Xid"},
		{"<3>x\n", 11, "x"},
		{"<0>x\n", 8, "x"},
		{"<11>x\n", 11, "x"},
		{"<27>x\n", 27, "x"},
		{"<4>a\nb\n", 12, `a\x0ab`},
		{"<4>a\n\n", 12, `a\x0a`},
		{"<4>tab\tback\\é\n", 12, `tab\x09back\x5c\xc3\xa9`},
		{"<4> <5>x\x7f~\n", 12, ` <5>x\x7f~`},
	} {
		if priority, text := Stored(tc.data); priority != tc.priority || text != tc.text {
			t.Errorf("%q: got %d %q, want %d %q", tc.data, priority, text, tc.priority, tc.text)
		}
	}
}
