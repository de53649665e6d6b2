// Package planted reads archives of clusters in which people who did not know the code planted made-up secrets.
//
// The archives are compressed so that scanners of repositories do not take the secrets for real ones.
package planted

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// largest is the maximum size of a file of an archive, in bytes.
const largest = 64 << 20

// Files returns the files of a tar archive that zstd compressed, by path.
func Files(t testing.TB, name string) map[string][]byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // read only
	decoder, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	return Untar(t, decoder)
}

// Untar returns the regular files of a tar archive, by path.
func Untar(t testing.TB, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(archive, largest))
		if err != nil {
			t.Fatal(err)
		}
		files[path.Clean(header.Name)] = data
	}
}

// Rows returns the rows of a tab-separated file.
func Rows(data []byte) [][]string {
	var all [][]string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			all = append(all, strings.Split(line, "\t"))
		}
	}
	return all
}
