package main

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// file is a file in an archive, either read from disk or with the given content.
type file struct {
	name    string
	source  string // path of the file on disk; if empty, use content
	content []byte
	mode    os.FileMode
}

func (f file) read() ([]byte, error) {
	if f.source == "" {
		return f.content, nil
	}
	return os.ReadFile(f.source)
}

// pack writes a reproducible archive, which depends only on the names, modes, and contents of the files, and on
// modified. The extension of name determines the format.
func pack(name string, files []file, modified time.Time) (err error) {
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if strings.HasSuffix(name, ".zip") {
		return writeZip(out, files, modified.UTC())
	}
	return writeTar(out, files, modified.UTC())
}

func writeTar(w io.Writer, files []file, modified time.Time) error {
	zipped, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zipped)
	for _, f := range files {
		raw, err := f.read()
		if err != nil {
			return err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(raw)), Mode: int64(f.mode), ModTime: modified,
			Format: tar.FormatUSTAR,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(raw); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zipped.Close())
}

func writeZip(w io.Writer, files []file, modified time.Time) error {
	archive := zip.NewWriter(w)
	archive.RegisterCompressor(zip.Deflate,
		func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	for _, f := range files {
		raw, err := f.read()
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: modified}
		header.SetMode(f.mode)
		entry, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := entry.Write(raw); err != nil {
			return err
		}
	}
	return archive.Close()
}

// checksums is the name of the file for `sha256sum --check`.
const checksums = "checksums.txt"

// writeChecksums writes the checksums of all files in the directory.
func writeChecksums(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		sum, err := sha256File(filepath.Join(folder, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, e.Name())
	}
	return os.WriteFile(filepath.Join(folder, checksums), []byte(lines.String()), 0o644)
}

// sha256File returns the SHA-256 checksum of a file in hexadecimal.
func sha256File(name string) (string, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}
