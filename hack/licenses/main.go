// Command licenses checks that the licenses of all dependencies that are linked into the programs, on any system, allow
// redistribution. It reads the license files in the module cache and does not use the network. Run it in the root
// directory of the repository after downloading the modules.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed contains the SPDX identifiers of the allowed licenses. All of them permit distribution under Apache-2.0 if
// the notice is kept.
var allowed = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC"}

// excused contains modules with other licenses, each with the reason why it is allowed.
var excused = map[string]struct{ license, why string }{
	"github.com/apparentlymart/go-textseg/v15": {
		"Unicode-DFS-2016", "applies to the Unicode tables in the module; the notice must be kept, as for BSD",
	},
	"github.com/hashicorp/hcl/v2": {
		"MPL-2.0",
		"reads scenarios' Terraform modules; the license applies only to the module's own files, which are public and unchanged",
	},
	"github.com/opencontainers/go-digest": {
		"CC-BY-SA-4.0", "applies to the documentation, which is not linked; the code is Apache-2.0",
	},
}

// enough is the minimum percentage of a license file that the text of a license must cover. The rest consists of names
// and years.
const enough = 75

func main() {
	if err := check(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

func check(out io.Writer) error {
	modules, err := linked()
	if err != nil {
		return err
	}
	count, bad := map[string]int{}, 0
	for _, m := range modules {
		found, err := licenses(m.dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
		if len(found) == 0 {
			bad++
			fmt.Fprintf(out, "%s %s: no license was recognized in %s\n", m.path, m.version, m.dir)
		}
		for _, id := range found {
			count[id]++
			if !slices.Contains(allowed, id) && excused[m.path].license != id {
				bad++
				fmt.Fprintf(out, "%s %s: license %s is not allowed: %s\n", m.path, m.version, id,
					strings.Join(allowed, ", "))
			}
		}
	}
	for path := range excused {
		if !slices.ContainsFunc(modules, func(m module) bool { return m.path == path }) {
			bad++
			fmt.Fprintf(out, "%s is no longer linked: delete its exception\n", path)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d findings", bad)
	}
	var parts []string
	for id, n := range count {
		parts = append(parts, fmt.Sprintf("%s %d", id, n))
	}
	slices.Sort(parts)
	fmt.Fprintf(out, "licenses: %d modules: %s\n", len(modules), strings.Join(parts, ", "))
	return nil
}

// module is a linked module.
type module struct{ path, version, dir string }

// linked returns the third-party modules in the programs, for all supported systems.
func linked() ([]module, error) {
	var all []module
	for _, system := range []string{"linux", "darwin", "windows"} {
		cmd := exec.Command("go", "list", "-deps", "-f",
			"{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}", "./cmd/...")
		cmd.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		text, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list for %s: %w", system, err)
		}
		for line := range strings.Lines(string(text)) {
			if parts := strings.Split(strings.TrimSpace(line), "\t"); len(parts) == 3 {
				all = append(all, module{parts[0], parts[1], parts[2]})
			}
		}
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return slices.Compact(all), nil
}

// licenses returns the identifiers of the licenses in a module's license files.
func licenses(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		name := strings.ToUpper(entry.Name())
		if entry.IsDir() || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		coverage := licensecheck.Scan(text)
		if coverage.Percent < enough {
			return nil,
				fmt.Errorf("only %.0f%% of %s is a known license: read the file", coverage.Percent, entry.Name())
		}
		for _, match := range coverage.Match {
			if !slices.Contains(found, match.ID) {
				found = append(found, match.ID)
			}
		}
	}
	return found, nil
}
