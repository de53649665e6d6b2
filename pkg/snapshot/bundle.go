package snapshot

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Open reads a bundle, or a directory with an unpacked bundle. A bundle is unpacked in memory; nothing is
// written. Open ignores links and devices in an archive, and links that point outside the directory.
func Open(path string) (*Snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var s *Snapshot
	if info.IsDir() {
		s, err = openFolder(path)
	} else {
		s, err = readBundle(f)
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", path, err)
	}
	return s, nil
}

func openFolder(path string) (*Snapshot, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // read-only
	s, err := Read(root.FS())
	if err != nil {
		return nil, err
	}
	return s, s.isOne()
}

// isOne returns an error if the directory or archive is not a snapshot.
func (s *Snapshot) isOne() error {
	if s.Meta.Kind == "" {
		return errors.New(
			"snapshot.json not found: specify a file or a directory that `kubectl gpu-fault doctor --bundle` created",
		)
	}
	return nil
}

// readBundle reads a tar.gz.
func readBundle(f io.Reader) (*Snapshot, error) {
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, unpackError(err)
	}
	limited := &limitedReader{r: unzipped, left: maxTotal}
	r := newReader()
	entries := tar.NewReader(limited)
	folder := ""
	for n := 0; ; n++ {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, unpackError(err)
		}
		if n >= maxEntries {
			return nil, fmt.Errorf(
				"more than %d files: not created by this tool", maxEntries,
			)
		}
		name, err := entryName(header.Name, &folder)
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := r.add(name, header.Size, entries); err != nil {
			return nil, unpackError(err)
		}
	}
	// Read the archive to its end, because that is where the checksum is.
	if _, err := io.Copy(io.Discard, limited); err != nil {
		return nil, unpackError(err)
	}
	s, err := r.finish()
	if err != nil {
		return nil, err
	}
	return s, s.isOne()
}

// entryName returns the name of an entry in the layout, without "./" and without the directory that contains the whole
// bundle.
func entryName(raw string, folder *string) (string, error) {
	name := strings.TrimSuffix(strings.TrimPrefix(raw, "./"), "/")
	if name == "" {
		return ".", nil
	}
	if !fs.ValidPath(name) {
		return "", fmt.Errorf(
			"invalid file name %q: not created by this tool",
			cut(raw),
		)
	}
	first, rest, deeper := strings.Cut(name, "/")
	if !slices.Contains(topLevel(), first) && deeper && (*folder == "" || *folder == first) {
		*folder = first
		return rest, nil
	}
	return name, nil
}

// cut truncates names for messages.
func cut(text string) string {
	const longest = 200
	if len(text) > longest {
		return strings.ToValidUTF8(text[:longest], "") + "..." // do not split a rune
	}
	return text
}

// oneLine returns the message of an error as a single line, because the message may quote file contents.
func oneLine(err error) string { return cut(strings.Join(strings.Fields(err.Error()), " ")) }

// unpackError explains how to handle an archive that cannot be unpacked.
func unpackError(err error) error {
	switch {
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, io.EOF):
		return errors.New(
			"not a tar.gz: specify a file that `kubectl gpu-fault doctor --bundle` created, or a directory",
		)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("truncated: copy the file again")
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, tar.ErrHeader):
		return fmt.Errorf("corrupt (%w): copy the file again", err)
	}
	return err
}

// limitedReader returns an error at its limit, unlike io.LimitReader.
type limitedReader struct {
	r    io.Reader
	left int64
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooMuch()
	}
	if int64(len(p)) > l.left {
		p = p[:l.left]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	return n, err
}
