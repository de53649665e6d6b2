package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/helper"
)

// stamps looks into the programs that this machine cannot run, too.
func stamps(w *world) (string, error) {
	for _, p := range platforms {
		raw, err := w.binary(p)
		if err != nil {
			return "", err
		}
		for _, stamp := range []string{version, w.commit, w.date} {
			if !bytes.Contains(raw, []byte(stamp)) {
				return "", fmt.Errorf("%s: the program does not carry %s", p.base(), stamp)
			}
		}
		if bytes.Contains(raw, []byte(w.repo+"/")) {
			return "", fmt.Errorf("%s: the program carries the folder that it was built in", p.base())
		}
	}
	return version + ", " + w.commit, nil
}

func helperDigests(w *world) (string, error) {
	said, err := w.command(filepath.Join("bin/release", runtime.GOOS+"_"+runtime.GOARCH, program), "version",
		"--client", "-o", "json")
	if err != nil {
		return "", err
	}
	var report struct {
		Client  struct{ Version, Commit, Date string }
		Helpers map[string]string
	}
	if err := json.Unmarshal([]byte(said), &report); err != nil {
		return "", err
	}
	if c := report.Client; c.Version != version || c.Commit != w.commit || c.Date != w.date {
		return "", fmt.Errorf("version says %v", c)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		raw, err := helper.For(arch)
		if err != nil {
			return "", err
		}
		if got, want := report.Helpers[arch], digest(raw); got != want {
			return "", fmt.Errorf("version says that the helper for %s is %q, and it is %s", arch, got, want)
		}
	}
	return "amd64, arm64", nil
}

// bills compares each bill of materials with what Go wrote into the program, and into the helpers that are inside of
// it.
func bills(w *world) (string, error) {
	var least int
	for _, p := range platforms {
		raw, err := os.ReadFile(filepath.Join(dist, p.base()+".cdx.json"))
		if err != nil {
			return "", err
		}
		var bill struct {
			BOMFormat, SpecVersion string
			Metadata               struct {
				Timestamp string
				Component struct{ Version string }
			}
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(raw, &bill); err != nil {
			return "", err
		}
		if bill.BOMFormat != "CycloneDX" || bill.Metadata.Component.Version != version ||
			bill.Metadata.Timestamp != w.date {
			return "", fmt.Errorf("%s: it is %s of %s, %s", p.base(), bill.BOMFormat, bill.Metadata.Component.Version,
				bill.Metadata.Timestamp)
		}
		named := map[string]bool{}
		for _, c := range bill.Components {
			named[c.Name+" "+c.Version] = true
		}
		program, err := w.binary(p)
		if err != nil {
			return "", err
		}
		helpers, err := nodeHelpers()
		if err != nil {
			return "", err
		}
		for _, linked := range append(helpers, program) {
			info, err := buildinfo.Read(bytes.NewReader(linked))
			if err != nil {
				return "", err
			}
			for _, m := range info.Deps {
				if !named[m.Path+" "+m.Version] {
					return "", fmt.Errorf("%s: %s %s is linked and not named", p.base(), m.Path, m.Version)
				}
			}
		}
		if least == 0 || len(bill.Components) < least {
			least = len(bill.Components)
		}
	}
	return fmt.Sprintf("CycloneDX, at least %d modules each", least), nil
}

// nodeHelpers returns those that this tree's client carries.
func nodeHelpers() ([][]byte, error) {
	var all [][]byte
	for _, arch := range helper.Architectures() {
		raw, err := helper.For(arch)
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
	}
	return all, nil
}

// reproducible builds this platform's archive again, from a copy of the tree in another folder.
func reproducible(w *world) (string, error) {
	copied := filepath.Join(w.dir, "copied")
	if _, err := w.command("git", "clone", "--quiet", "--shared", w.repo, copied); err != nil {
		return "", err
	}
	// What is not committed yet, too.
	changed, err := w.command("git", "ls-files", "--modified", "--others", "--exclude-standard")
	if err != nil {
		return "", err
	}
	for _, name := range strings.Fields(changed) {
		raw, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			err = os.Remove(filepath.Join(copied, name))
		} else if err == nil {
			_, err = w.write(filepath.Join("copied", name), string(raw))
		}
		if err != nil {
			return "", err
		}
	}
	if err := w.release(copied, version, ""); err != nil {
		return "", err
	}
	first, err := sum(archive())
	if err != nil {
		return "", err
	}
	second, err := sum(filepath.Join(copied, archive()))
	if err != nil {
		return "", err
	}
	if first != second {
		return "", fmt.Errorf("here it is %s, there %s", first, second)
	}
	return first[:12], nil
}
