// Command release builds what a release consists of: an archive for each platform with the program and all licenses, a
// software bill of materials for each, checksums, the manifest for krew and the release notes.
//
// The same commit gives the same bytes in every folder and on every machine with the same Go: nothing of the machine,
// the user or the time gets in; files are as old as the commit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const program = "kubectl-gpu_fault"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var r release
	flag.StringVar(&r.version, "version", "", "Version of the release, like v1.2.3")
	flag.StringVar(&r.commit, "commit", "", "Commit that is released")
	flag.StringVar(&r.date, "date", "", "Date of the commit, RFC 3339")
	flag.StringVar(&r.flags, "flags", "", "Flags of go build, between spaces")
	flag.StringVar(&r.ldflags, "ldflags", "", "Flags for Go's linker, which stamp version, commit and date")
	flag.StringVar(&r.dist, "dist", "dist",
		"Folder for what is released; what an earlier release left there is removed")
	only := flag.String("platforms", "",
		"Only these, like linux/amd64,windows/amd64; then there is no manifest (default: all)")
	flag.Parse()
	if err := r.run(ctx, *only); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// release is one release, from this folder's repository.
type release struct {
	version, commit, date, flags, ldflags, dist string
	// modified is date: how old all files in the archives are.
	modified time.Time
}

// run makes the release. Everything that may be wrong with the request is found before anything is built, and dist is
// touched only when all is built.
func (r release) run(ctx context.Context, only string) error {
	platforms, err := choose(only)
	if err != nil {
		return err
	}
	if err := checkVersion(r.version); err != nil {
		return err
	}
	if err := checkRepository(ctx, r.version); err != nil {
		return err
	}
	if r.modified, err = time.Parse(time.RFC3339, r.date); err != nil {
		return fmt.Errorf("the commit's date %q is none: %w", r.date, err)
	}
	if err := r.helpers(ctx); err != nil {
		return err
	}
	texts, err := r.texts(ctx)
	if err != nil {
		return err
	}
	staged, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staged)
	if err := r.archives(ctx, staged, platforms, texts); err != nil {
		return err
	}
	if only == "" {
		if err := r.manifest(staged); err != nil {
			return err
		}
	}
	if err := r.notes(ctx, staged); err != nil {
		return err
	}
	if err := writeChecksums(staged); err != nil {
		return err
	}
	return r.publish(staged)
}

// archives builds and packs the program for each platform. One is packed while the next is linked.
func (r release) archives(ctx context.Context, staged string, platforms []platform, texts []file) error {
	packing, ctx := errgroup.WithContext(ctx)
	for _, p := range platforms {
		binary, err := r.build(ctx, p)
		if err != nil {
			return errors.Join(err, packing.Wait())
		}
		packing.Go(func() error {
			files := append([]file{{name: filepath.Base(binary), source: binary, mode: 0o755}}, texts...)
			if err := pack(filepath.Join(staged, p.archive(r.version)), files, r.modified); err != nil {
				return fmt.Errorf("pack the archive for %s: %w", p, err)
			}
			return r.sbom(ctx, staged, p, binary)
		})
	}
	return packing.Wait()
}

// publish replaces what an earlier release left in dist, and nothing else there.
func (r release) publish(staged string) error {
	if err := os.MkdirAll(r.dist, 0o755); err != nil {
		return err
	}
	for _, ours := range []string{program + "_*", checksums, manifestName, notesName} {
		old, err := filepath.Glob(filepath.Join(r.dist, ours))
		if err != nil {
			return err
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(staged)
	if err != nil {
		return err
	}
	var total int64
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(staged, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.dist, e.Name()), raw, 0o644); err != nil {
			return err
		}
		total += int64(len(raw))
		fmt.Fprintf(os.Stderr, "%9.2f MB  %s\n", float64(len(raw))/1e6, e.Name())
	}
	fmt.Fprintf(os.Stderr, "%s: %d files, %.1f MB, in %s\n", r.version, len(entries), float64(total)/1e6,
		strings.TrimSuffix(r.dist, "/")+"/")
	return nil
}
