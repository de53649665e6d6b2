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

// APIVersion and Kind identify the format of a transcript.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	Kind       = "Transcript"
)

const (
	// mostBytes is the maximum size of a transcript, about 50,000 requests. It applies to reading and writing.
	mostBytes = 16 << 20
	// longestLine is the maximum size of a line. It exceeds the size of any request, because the fields of a request
	// are truncated.
	longestLine = 128 << 10
)

// Header is the first line of a transcript.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// User is the name of the recorded user according to the API server. Each exercise has its own candidate, and
	// therefore its own user.
	User string `json:"user"`
	// Began is the time at which recording began, according to the API server's clock.
	Began time.Time `json:"began"`
}

// Transcript is the output of a recorder: one JSON object per line, with the header first, then the requests.
type Transcript struct {
	Header
	Lines []Line

	size int64 // size of all complete lines
}

// Read reads a transcript. It rejects lines that a recorder would not write. It ignores an incomplete last line,
// because the candidate's machine may have been switched off.
func Read(r io.Reader) (*Transcript, error) {
	t := &Transcript{}
	reader := bufio.NewReaderSize(io.LimitReader(r, mostBytes+1), longestLine)
	for n := 1; ; n++ {
		text, err := reader.ReadSlice('\n')
		switch {
		case t.size+int64(len(text)) > mostBytes:
			return nil, fmt.Errorf("larger than %d MiB", mostBytes>>20)
		case errors.Is(err, io.EOF) && n == 1:
			return nil, errors.New("no complete line found")
		case errors.Is(err, io.EOF):
			return t, nil
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("line %d is larger than %d KiB", n, longestLine>>10)
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
			return fmt.Errorf("invalid header: %w", err)
		}
		if t.APIVersion != APIVersion || t.Kind != Kind {
			return fmt.Errorf("unsupported kind %s %s: must be %s %s", t.APIVersion, t.Kind, APIVersion, Kind)
		}
		return nil
	}
	var line Line
	if err := strictly(text, &line); err != nil {
		return err
	}
	if line.Time.IsZero() || line.Verb == "" || line.Status < 0 || line.Status > 999 || line.Millis < 0 {
		return errors.New("invalid request: missing time or verb, or number out of range")
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
	left     int64 // remaining bytes
	requests atomic.Int64
}

// Open creates a transcript that only its owner may read, or appends to an existing transcript of the same user. It
// returns an error if the file exists but is not such a transcript.
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
	if !info.Mode().IsRegular() { // reading such a file might block forever
		return nil, fmt.Errorf("%s is not a regular file: specify another name", name)
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
			fmt.Errorf("%s already exists and is not a transcript that can be continued: %w; specify another name",
				name, err)
	case t.User != user:
		return nil, fmt.Errorf("%s is the transcript of %s, not of %s: specify another name", name, t.User, user)
	}
	f := &File{file: file, left: mostBytes - t.size}
	f.requests.Store(int64(len(t.Lines)))
	return f, file.Truncate(t.size) // remove an incomplete line
}

// Write writes one line.
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

// Requests returns the number of requests in the transcript.
func (f *File) Requests() int64 { return f.requests.Load() }

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// ReadFile reads a transcript from a file.
func ReadFile(name string) (*Transcript, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	t, err := Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s is not a valid transcript: %w", name, err)
	}
	return t, nil
}
