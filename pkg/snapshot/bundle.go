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

// Open reads a bundle, or the folder that one was unpacked into. A bundle is read while it is unpacked, and nothing of
// it is written anywhere. Links and devices in it are passed over, and so is what a link in a folder points to outside
// of it.
func Open(path string) (*Snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
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
	defer func() { _ = root.Close() }() // read only
	s, err := Read(root.FS())
	if err != nil {
		return nil, err
	}
	return s, s.isOne()
}

// isOne refuses folders and archives of something else.
func (s *Snapshot) isOne() error {
	if s.Meta.Kind == "" {
		return errors.New(
			"there is no snapshot.json in it: give a file or a folder that `kubectl gpu-fault doctor --bundle` made",
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
				"there are more than %d files in it, which no snapshot needs: it was not made by this tool", maxEntries,
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
	// The checksum stands at the end.
	if _, err := io.Copy(io.Discard, limited); err != nil {
		return nil, unpackError(err)
	}
	s, err := r.finish()
	if err != nil {
		return nil, err
	}
	return s, s.isOne()
}

// entryName returns the name in the layout: without "./", and without the folder that somebody may have packed.
func entryName(raw string, folder *string) (string, error) {
	name := strings.TrimSuffix(strings.TrimPrefix(raw, "./"), "/")
	if name == "" {
		return ".", nil
	}
	if !fs.ValidPath(name) {
		return "", fmt.Errorf(
			"there is a file %q in it, which lies outside of it or has no proper name: it was not made by this tool",
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

// cut keeps names in messages short.
func cut(text string) string {
	const longest = 200
	if len(text) > longest {
		return strings.ToValidUTF8(text[:longest], "") + "..." // not within a rune
	}
	return text
}

// oneLine returns an error that may quote what is in a file.
func oneLine(err error) string { return cut(strings.Join(strings.Fields(err.Error()), " ")) }

// unpackError returns what to do about an archive that cannot be unpacked.
func unpackError(err error) error {
	switch {
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, io.EOF):
		return errors.New("it is no tar.gz: give a file that `kubectl gpu-fault doctor --bundle` made, or a folder")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends in the middle: copy it once more")
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, tar.ErrHeader):
		return fmt.Errorf("it is damaged (%w): copy it once more", err)
	}
	return err
}

// limitedReader fails where io.LimitReader ends.
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
