package printer

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// hostile is what a name, a kernel line or a record can hold.
const hostile = "a\x1b[2Jb\u009bc\x07d\u202ee\rf\u2066g\x7f\xff"

// TestScreenEscapesWhoeverWrites: what a terminal would obey is shown, also when a character comes in two writes, and
// what is below is reached by Raw alone.
func TestScreenEscapesWhoeverWrites(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := Screen(&out)
	for i := range len(hostile) { // a byte at a time
		if _, err := s.Write([]byte{hostile[i]}); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = s.Write([]byte("\n\ttäxt\n"))
	if want := `a\x1b[2Jb\u009bc\x07d\u202ee\x0df\u2066g\x7f\xff` + "\n\ttäxt\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if Raw(s) != &out || Screen(s) != s || Raw(&out) != &out {
		t.Error("Raw is not what is below the screen")
	}
}

// TestCellsAndNamesKeepTheirLine: a line break in a cell or in a name of -o name begins no line.
func TestCellsAndNamesKeepTheirLine(t *testing.T) {
	t.Parallel()
	table := Table{Header: []string{"RUN"}}
	table.Add("xid-1\nxid-2 reverted")
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	if err := (Format{Output: "name"}).Object(&out, struct{}{}, "run/a\nrun/b\x1b"); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 3 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q", out.String())
	}
}

// FuzzScreen holds that nothing dangerous gets through however a text is cut into writes, and that harmless text
// stays as it is.
func FuzzScreen(f *testing.F) {
	f.Add([]byte(hostile), 3)
	f.Add([]byte("plain\ttext ü\n"), 13)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		cut = max(0, min(cut, len(data)))
		var out bytes.Buffer
		s := Screen(&out)
		_, _ = s.Write(data[:cut])
		_, _ = s.Write(data[cut:])
		for _, r := range out.String() {
			if IsDangerous(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q lets %q through", data, r)
			}
		}
		harmless := utf8.Valid(data) &&
			!strings.ContainsFunc(string(data), func(r rune) bool { return IsDangerous(r) && r != '\n' && r != '\t' })
		if harmless && out.String() != string(data) {
			t.Fatalf("%q became %q", data, out.String())
		}
		if one := Clean(string(data)); strings.ContainsFunc(one, IsDangerous) || !utf8.ValidString(one) {
			t.Fatalf("Clean(%q) is %q", data, one)
		}
	})
}
