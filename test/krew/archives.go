package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// platforms are all that a release is for, with a reader that refuses a program for another one.
var platforms = []platform{
	{"linux", "amd64", isELF(elf.EM_X86_64)},
	{"linux", "arm64", isELF(elf.EM_AARCH64)},
	{"darwin", "amd64", isMachO(macho.CpuAmd64)},
	{"darwin", "arm64", isMachO(macho.CpuArm64)},
	{"windows", "amd64", isPE(pe.IMAGE_FILE_MACHINE_AMD64)},
}

type platform struct {
	os, arch string
	check    func([]byte) error
}

func (p platform) base() string { return strings.Join([]string{program, version, p.os, p.arch}, "_") }

func (p platform) archive() string {
	if p.os == "windows" {
		return filepath.Join(dist, p.base()+".zip")
	}
	return filepath.Join(dist, p.base()+".tar.gz")
}

func (p platform) program() string {
	if p.os == "windows" {
		return program + ".exe"
	}
	return program
}

func isELF(want elf.Machine) func([]byte) error {
	return func(raw []byte) error {
		f, err := elf.NewFile(bytes.NewReader(raw))
		if err == nil && f.Machine != want {
			err = fmt.Errorf("program is for %s", f.Machine)
		}
		return err
	}
}

func isMachO(want macho.Cpu) func([]byte) error {
	return func(raw []byte) error {
		f, err := macho.NewFile(bytes.NewReader(raw))
		if err == nil && f.Cpu != want {
			err = fmt.Errorf("program is for %s", f.Cpu)
		}
		return err
	}
}

func isPE(want uint16) func([]byte) error {
	return func(raw []byte) error {
		f, err := pe.NewFile(bytes.NewReader(raw))
		if err == nil && f.Machine != want {
			err = fmt.Errorf("program is for machine %#x", f.Machine)
		}
		return err
	}
}

// file is one of an archive.
type file struct {
	name     string
	content  []byte
	mode     os.FileMode
	modified time.Time
	owner    string
}

// files unpacks the platform's archive, once.
func (w *world) files(p platform) ([]file, error) {
	if files, unpacked := w.unpacked[p.base()]; unpacked {
		return files, nil
	}
	raw, err := os.ReadFile(p.archive())
	if err != nil {
		return nil, err
	}
	unpack := untar
	if p.os == "windows" {
		unpack = unzip
	}
	files, err := unpack(raw)
	if err == nil {
		w.unpacked[p.base()] = files
	}
	return files, err
}

// binary returns the program in the platform's archive.
func (w *world) binary(p platform) ([]byte, error) {
	files, err := w.files(p)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.name == p.program() {
			return f.content, nil
		}
	}
	return nil, fmt.Errorf("%s has no %s", p.archive(), p.program())
}

func untar(raw []byte) ([]file, error) {
	unpacked, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	var files []file
	for r := tar.NewReader(unpacked); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		owner := fmt.Sprintf("%d:%d%s%s", h.Uid, h.Gid, h.Uname, h.Gname)
		files = append(files, file{h.Name, content, h.FileInfo().Mode(), h.ModTime, owner})
	}
}

func unzip(raw []byte) ([]file, error) {
	r, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		return nil, err
	}
	var files []file
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(in)
		if err != nil {
			return nil, err
		}
		files = append(files, file{f.Name, content, f.Mode(), f.Modified, "0:0"})
	}
	return files, nil
}

func sum(name string) (string, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	return digest(raw), nil
}

func digest(raw []byte) string {
	s := sha256.Sum256(raw)
	return hex.EncodeToString(s[:])
}

func checksumsHold(w *world) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dist, "checksums.txt"))
	if err != nil {
		return "", err
	}
	listed := map[string]bool{"checksums.txt": true}
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		want, name, _ := strings.Cut(line, "  ")
		got, err := sum(filepath.Join(dist, name))
		if err != nil {
			return "", err
		}
		if got != want {
			return "", fmt.Errorf("%s has %s, and checksums.txt says %s", name, got, want)
		}
		listed[name] = true
	}
	entries, err := os.ReadDir(dist)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if !listed[e.Name()] {
			return "", fmt.Errorf("checksums.txt does not list %s", e.Name())
		}
	}
	return fmt.Sprintf("%d files", len(listed)-1), nil
}

func archivesHold(w *world) (string, error) {
	date, err := time.Parse(time.RFC3339, w.date)
	if err != nil {
		return "", err
	}
	for _, p := range platforms {
		files, err := w.files(p)
		if err != nil {
			return "", err
		}
		want := []string{p.program(), "LICENSE", "LICENSE-kernel-module", "THIRD_PARTY_NOTICES.txt"}
		texts := map[string]string{
			"LICENSE": "Apache License", "LICENSE-kernel-module": "GNU GENERAL PUBLIC LICENSE",
			"THIRD_PARTY_NOTICES.txt": "k8s.io/client-go v",
		}
		var names []string
		for _, f := range files {
			names = append(names, f.name)
			mode := os.FileMode(0o644)
			if f.name == p.program() {
				mode = 0o755
				if err := p.check(f.content); err != nil {
					return "", fmt.Errorf("%s: %w", p.base(), err)
				}
			} else if err := has(string(f.content), texts[f.name]); err != nil {
				return "", fmt.Errorf("%s: %s lacks %q", p.base(), f.name, texts[f.name])
			}
			if f.mode != mode || !f.modified.Equal(date) || f.owner != "0:0" {
				return "", fmt.Errorf("%s: %s has mode %s, owner %s, time %s; want %s, 0:0, the commit's %s",
					p.base(), f.name, f.mode, f.owner, f.modified, mode, date)
			}
		}
		if got := strings.Join(names, " "); got != strings.Join(want, " ") {
			return "", fmt.Errorf("%s has %s, not %v", p.base(), got, want)
		}
	}
	return fmt.Sprintf("%d platforms", len(platforms)), nil
}

// Limits for users of slow lines: 23 MB to fetch, 52 MiB to keep. The two helpers, which net/http for the kubelet's
// device plugin API has made 1.1 MB larger each, do not get smaller in the archive: 21.6 MB for Linux, whose program
// has 49.7 MiB. Those for macOS and Windows have about 1.2 MB more.
const archiveLimit, programLimit = 23e6, 52 << 20

func sizes(w *world) (string, error) {
	var tooBig []string
	fmt.Fprintf(&w.sizes, "%-16s %12s %12s\n", "PLATFORM", "ARCHIVE MB", "PROGRAM MiB")
	for _, p := range platforms {
		info, err := os.Stat(p.archive())
		if err != nil {
			return "", err
		}
		raw, err := w.binary(p)
		if err != nil {
			return "", err
		}
		name := p.os + "/" + p.arch
		fmt.Fprintf(&w.sizes, "%-16s %12.1f %12.1f\n", name, float64(info.Size())/1e6, float64(len(raw))/(1<<20))
		if info.Size() > archiveLimit || len(raw) > programLimit {
			tooBig = append(tooBig,
				fmt.Sprintf("%s: %.1f MB and %.1f MiB", name, float64(info.Size())/1e6, float64(len(raw))/(1<<20)))
		}
	}
	if len(tooBig) > 0 {
		return "", errors.New(strings.Join(tooBig, "; "))
	}
	return "", nil
}
