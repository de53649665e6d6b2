package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// texts returns the license files for the archive: the project's license, the license of the kernel module, whose
// source is embedded in the program, and, because they require attribution, the licenses of all dependencies of the
// program and the node helper.
func (r release) texts(ctx context.Context) ([]file, error) {
	notices, err := thirdParty(ctx)
	if err != nil {
		return nil, err
	}
	return []file{
		{name: "LICENSE", source: "LICENSE", mode: 0o644},
		{name: "LICENSE-kernel-module", source: "kmod/module/LICENSE", mode: 0o644},
		{name: "THIRD_PARTY_NOTICES.txt", content: notices, mode: 0o644},
	}, nil
}

// linked is a package in the output of `go list -deps`.
type linked struct {
	Dir    string
	Module *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// thirdParty returns the licenses of all dependencies of the program and the embedded helper, on all platforms.
func thirdParty(ctx context.Context) ([]byte, error) {
	goroot, err := output(exec.CommandContext(ctx, "go", "env", "GOROOT"))
	if err != nil {
		return nil, err
	}
	found := notices{}
	if err := found.add("Go's standard library", goroot, goroot); err != nil {
		return nil, err
	}
	for _, p := range platforms {
		mains := []string{"./cmd/kubectl-gpu_fault"}
		if p.os == "linux" {
			mains = append(mains, "./cmd/gpu-fault-node")
		}
		cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-json=Dir,Module"}, mains...)...)
		cmd.Env = p.environment()
		out, err := output(cmd)
		if err != nil {
			return nil, err
		}
		for decoder := json.NewDecoder(strings.NewReader(out)); ; {
			var pkg linked
			if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("output of go list: %w", err)
			}
			if m := pkg.Module; m != nil && !m.Main {
				if err := found.add(m.Path+" "+m.Version, m.Dir, pkg.Dir); err != nil {
					return nil, err
				}
			}
		}
	}
	return found.text()
}

// notices maps each license text to its owners. It also tracks the modules that were processed.
type notices map[string][]string

var licenseFile = regexp.MustCompile(
	`(?i)^(un)?(licen[cs]es?|copying|copyright|notice|patents)([.-](txt|md|[a-z0-9-]+))?$`,
)

// add adds the license texts that apply to a package: those in its directory and its parent directories within the
// module. Some modules contain third-party code in a directory with a separate license.
func (n notices) add(owner, top, dir string) error {
	for {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.Type().IsRegular() || filepath.Ext(e.Name()) == ".go" || !licenseFile.MatchString(e.Name()) {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			text := strings.TrimSpace(strings.ReplaceAll(string(raw), "\r\n", "\n"))
			if text != "" && !slices.Contains(n[text], owner) {
				n[text] = append(n[text], owner)
			}
		}
		if dir == top {
			break
		}
		dir = filepath.Dir(dir)
	}
	for _, owners := range n {
		if slices.Contains(owners, owner) {
			return nil
		}
	}
	return fmt.Errorf("%s has no license in its directory: its authors do not allow redistribution, "+
		"or licenses.go does not recognize the file name", owner)
}

// text returns the contents of the file, which has each license text once, below the names of its owners.
func (n notices) text() ([]byte, error) {
	type notice struct {
		owners []string
		text   string
	}
	var all []notice
	for text, owners := range n {
		slices.Sort(owners)
		all = append(all, notice{owners, text})
	}
	slices.SortFunc(all, func(a, b notice) int {
		return cmp.Or(cmp.Compare(a.owners[0], b.owners[0]), cmp.Compare(a.text, b.text))
	})
	var b bytes.Buffer
	b.WriteString(
		"kubectl-gpu_fault and the node helper that it contains are linked with the following packages, on some platforms only with some of them.\n",
	)
	line := strings.Repeat("-", 80)
	for _, notice := range all {
		fmt.Fprintf(&b, "\n%s\n%s\n%s\n\n%s\n", line, strings.Join(notice.owners, "\n"), line, notice.text)
	}
	return b.Bytes(), nil
}
