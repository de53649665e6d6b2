// Command release builds the files of a release: for each platform, an archive with the program, all licenses and a
// software bill of materials; in addition, the checksums, the krew manifest, and the release notes.
//
// The build is reproducible: the same commit and Go version produce the same bytes in every directory and on every
// machine. The output does not contain data about the machine, the user, or the time. File times are the time of the
// commit.
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
	flag.StringVar(&r.version, "version", "", "Version of the release, such as v1.2.3")
	flag.StringVar(&r.commit, "commit", "", "Commit to release")
	flag.StringVar(&r.date, "date", "", "Date of the commit, RFC 3339")
	flag.StringVar(&r.flags, "flags", "", "Flags for go build, separated by spaces")
	flag.StringVar(&r.ldflags, "ldflags", "", "Flags for Go's linker, which set version, commit and date")
	flag.StringVar(&r.dist, "dist", "dist",
		"Directory for the release files; files from an earlier release are removed")
	only := flag.String("platforms", "",
		"Platforms to build, such as linux/amd64,windows/amd64, without a manifest (default: all)")
	flag.Parse()
	if err := r.run(ctx, *only); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// release is a release of the repository in the current directory.
type release struct {
	version, commit, date, flags, ldflags, dist string
	// modified is the parsed value of date. It is the modification time of all files in the archives.
	modified time.Time
}

// run builds the release. It validates the request before building anything, and changes dist only after everything is
// built.
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
		return fmt.Errorf("invalid commit date %q: %w", r.date, err)
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

// archives builds and packs the program for each platform. It packs one platform while it builds the next.
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

// publish replaces the files from an earlier release in dist, and no other files.
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
