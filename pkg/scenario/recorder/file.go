package recorder

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	kjson "sigs.k8s.io/json"
)

// APIVersion and Kind name the form of a transcript.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	Kind       = "Transcript"
)

const (
	// mostBytes is how long a transcript may be: of some 50,000 requests. What writes and what reads keep to it.
	mostBytes = 16 << 20
	// longestLine is more than any request takes, as all that is written of it is cut.
	longestLine = 128 << 10
)

// Header is the first line of a transcript.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// User is who works through the recorder, as the API server names them: each exercise has a candidate of its own.
	User string `json:"user"`
	// Began is when recording did, by the API server's clock.
	Began time.Time `json:"began"`
}

// Transcript is what a recorder has written: a JSON object in each line, the header and the requests.
type Transcript struct {
	Header
	Lines []Line

	size int64 // of all whole lines
}

// Read reads a transcript. It refuses what no recorder writes, and says in which line. A last line that was cut off is
// left out: the candidate's machine was switched off.
func Read(r io.Reader) (*Transcript, error) {
	t := &Transcript{}
	reader := bufio.NewReaderSize(io.LimitReader(r, mostBytes+1), longestLine)
	for n := 1; ; n++ {
		text, err := reader.ReadSlice('\n')
		switch {
		case t.size+int64(len(text)) > mostBytes:
			return nil, fmt.Errorf("it has more than %d MiB", mostBytes>>20)
		case errors.Is(err, io.EOF) && n == 1:
			return nil, errors.New("it has no line of a transcript")
		case errors.Is(err, io.EOF):
			return t, nil
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("line %d has more than %d KiB", n, longestLine>>10)
		case err != nil:
			return nil, err
		}
		t.size += int64(len(text))
		if err := t.add(n, text); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
}

func (t *Transcript) add(n int, text []byte) error {
	if n == 1 {
		if err := strictly(text, &t.Header); err != nil {
			return fmt.Errorf("it does not begin as a transcript does: %w", err)
		}
		if t.APIVersion != APIVersion || t.Kind != Kind {
			return fmt.Errorf("it is a %s %s, and wanted is a %s %s", t.APIVersion, t.Kind, APIVersion, Kind)
		}
		return nil
	}
	var line Line
	if err := strictly(text, &line); err != nil {
		return err
	}
	if line.Time.IsZero() || line.Verb == "" || line.Status < 0 || line.Status > 999 || line.Millis < 0 {
		return errors.New("it is no request: it lacks a time or a verb, or has a number that cannot be")
	}
	t.Lines = append(t.Lines, line)
	return nil
}

func strictly(text []byte, into any) error {
	unknown, err := kjson.UnmarshalStrict(text, into)
	if err == nil && len(unknown) > 0 {
		err = unknown[0]
	}
	return err
}

// File is a transcript that is being written.
type File struct {
	file     *os.File
	left     int64 // bytes that it may take
	requests atomic.Int64
}

// Open makes a transcript that nobody else may read, or goes on with one of the same user. Whatever else has that name
// is left as it is, and an error.
func Open(name, user string, began time.Time) (*File, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return resume(name, user)
	}
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(Header{APIVersion: APIVersion, Kind: Kind, User: user, Began: began})
	if err == nil {
		_, err = file.Write(append(text, '\n'))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(name))
	}
	return &File{file: file, left: mostBytes - int64(len(text)) - 1}, nil
}

func resume(name, user string) (_ *File, err error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // what would be read might never end
		return nil, fmt.Errorf("%s is no file: give another name", name)
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	t, err := Read(file)
	switch {
	case err != nil:
		return nil,
			fmt.Errorf("%s exists, and is no transcript that could be gone on with: %w; give another name", name, err)
	case t.User != user:
		return nil, fmt.Errorf("%s is the transcript of %s, and this is %s: give another name", name, t.User, user)
	}
	f := &File{file: file, left: mostBytes - t.size}
	f.requests.Store(int64(len(t.Lines)))
	return f, file.Truncate(t.size) // a line that was cut off
}

// Write takes one line.
func (f *File) Write(line []byte) (int, error) {
	if f.left -= int64(len(line)); f.left < 0 {
		return 0, fmt.Errorf("the transcript is full (%d MiB)", mostBytes>>20)
	}
	n, err := f.file.Write(line)
	if err == nil {
		f.requests.Add(1)
	}
	return n, err
}

// Requests returns how many the transcript has.
func (f *File) Requests() int64 { return f.requests.Load() }

// Close ends writing.
func (f *File) Close() error { return f.file.Close() }

// ReadFile reads a transcript that lies in a file.
func ReadFile(name string) (*Transcript, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	t, err := Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s is no transcript: %w", name, err)
	}
	return t, nil
}
