package recorder

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const header = `{"apiVersion":"gpufault.dev/v1alpha1","kind":"Transcript","user":"engineer","began":"2026-01-01T00:00:00Z"}` +
	"\n"

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// line returns a request as it is written.
func line(t *testing.T, l Line) []byte {
	t.Helper()
	if l.Time.IsZero() {
		l.Time = began
	}
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// A transcript is for nobody else to read, and goes on where it ended: also in the middle of a line.
func TestTranscriptGoesOn(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "transcript.jsonl")
	for i, verb := range []string{"get", "list"} {
		f, err := Open(name, "engineer", began)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(line(t, Line{Verb: verb})); err != nil || f.Requests() != int64(i+1) {
			t.Errorf("%v, %d requests", err, f.Requests())
		}
		if _, err := f.Write([]byte(`{"time":`)); err != nil { // the machine was switched off
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	read, err := ReadFile(name)
	if err != nil || read.User != "engineer" || !read.Began.Equal(began) || len(read.Lines) != 2 ||
		read.Lines[1].Verb != "list" {
		t.Errorf("%+v, %v", read, err)
	}
}

// What is no transcript of this candidate stays as it is.
func TestTranscriptTakesNoFilesPlace(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for content, want := range map[string]string{
		"": "no complete line", "my notes\n": "line 1", header: "is the transcript of engineer",
		header + "{}\n":        "line 2",
		"notes without an end": "no complete line",
	} {
		name := filepath.Join(folder, "t")
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(name, "somebody", began); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "specify another name") {
			t.Errorf("%q: %v", content, err)
		}
		if now, err := os.ReadFile(name); err != nil || string(now) != content {
			t.Errorf("%q became %q, %v", content, now, err)
		}
	}
	if _, err := Open(folder, "engineer", began); err == nil ||
		!strings.Contains(err.Error(), "is not a regular file") {
		t.Error(err)
	}
	if _, err := Open(filepath.Join(folder, "none", "t"), "engineer", began); err == nil {
		t.Error("a folder that is not there was made")
	}
}

// What no reader would take is not written.
func TestTranscriptIsBounded(t *testing.T) {
	t.Parallel()
	f, err := Open(filepath.Join(t.TempDir(), "t"), "engineer", began)
	if err != nil {
		t.Fatal(err)
	}
	f.left = 100
	if _, err := f.Write(line(t, Line{Verb: strings.Repeat("x", 100)})); err == nil ||
		!strings.Contains(err.Error(), "is full") {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// The reader takes what recorders write and nothing else, and says what is wrong in which line.
func TestRead(t *testing.T) {
	t.Parallel()
	good := string(line(t, Line{Verb: "get"}))
	for text, want := range map[string]string{
		header: "", header + good: "", header + good + `{"ver`: "",
		"":                                       "no complete line",
		good:                                     "line 1",
		strings.Replace(header, "v1a", "v9a", 1): "unsupported kind gpufault.dev/v9alpha1 Transcript",
		header + header:                          "line 2",
		header + "\n":                            "line 2",
		header + good + "hello\n":                "line 3",
		header + `{"time":"2026-01-01T00:00:00Z","verb":"get","status":200,"millis":1,"verdict":"passed"}` +
			"\n": `unknown field "verdict"`,
		header + `{"verb":"get","status":200,"millis":1}` +
			"\n": "missing time",
		header + `{"time":"2026-01-01T00:00:00Z","status":200,"millis":1}` +
			"\n": "or verb",
		header + `{"time":"2026-01-01T00:00:00Z","verb":"get","status":-1,"millis":1}` +
			"\n": "out of range",
		header + good + strings.Repeat("x", longestLine+1) +
			"\n": "line 3 is larger than 128 KiB",
	} {
		read, err := Read(strings.NewReader(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) ||
			(read == nil) == (err == nil) {
			t.Errorf("%.200q: %v; wanted %q", text, err, want)
		}
	}
	if _, err := Read(strings.NewReader(header + strings.Repeat(good, mostBytes/len(good)))); err == nil ||
		!strings.Contains(err.Error(), "larger than 16 MiB") {
		t.Error(err)
	}
}

// Whatever a file holds is a transcript or an error; one that was read is the same when it is written and read again.
func FuzzRead(f *testing.F) {
	f.Add(header)
	f.Add(header + `{"time":"2026-01-01T00:00:00Z","verb":"get","resource":"pods","status":200,"millis":1}` + "\n{")
	f.Add("{}\n{}\n")
	f.Fuzz(func(t *testing.T, text string) {
		read, err := Read(strings.NewReader(text))
		if (read == nil) == (err == nil) {
			t.Fatalf("%+v, %v", read, err)
		}
		if err != nil {
			return
		}
		Summarize(read.Lines)
		again := header
		for _, l := range read.Lines {
			again += string(line(t, l))
		}
		second, err := Read(strings.NewReader(again))
		if err != nil || !slices.EqualFunc(
			read.Lines, second.Lines, func(a, b Line) bool { return string(line(t, a)) == string(line(t, b)) },
		) {
			t.Errorf("%+v became %+v, %v", read.Lines, second, err)
		}
	})
}
