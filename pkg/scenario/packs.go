package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"filippo.io/age"
	"github.com/agext/levenshtein"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/packs"
)

// builtin are the scenarios of the program; its own files do not change while it runs.
var builtin = sync.OnceValues(func() ([]*Scenario, error) { return parseAll(packs.Files) })

// Builtin returns the scenarios that come with the program, by difficulty and name. They are the same ones at each
// call: do not change them.
func Builtin() ([]*Scenario, error) {
	all, err := builtin()
	return slices.Clone(all), err
}

// parseAll parses the YAML files of a folder. The error has the problems of all of them, and what is right is returned
// all the same.
func parseAll(folder fs.FS) ([]*Scenario, error) {
	names, err := fs.Glob(folder, "*.yaml")
	if err != nil {
		return nil, err
	}
	var all []*Scenario
	var errs []error
	seen := map[string]string{}
	for _, name := range names {
		data, err := fs.ReadFile(folder, name)
		if err != nil {
			return nil, err
		}
		s, err := Parse(name, data)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if other, twice := seen[s.Metadata.Name]; twice {
			errs = append(errs, fmt.Errorf("%s: %s is already the scenario's name in %s", name, s.Metadata.Name, other))
			continue
		}
		seen[s.Metadata.Name] = name
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *Scenario) int {
		rank := func(s *Scenario) int { return slices.Index(difficulties, s.Metadata.Difficulty) }
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	return all, errors.Join(errs...)
}

// Find returns the built-in scenario of a name; the error says which may have been meant.
func Find(name string) (*Scenario, error) {
	all, err := Builtin()
	for _, s := range all {
		if s.Metadata.Name == name {
			return s, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return nil, unknownScenario(name, all)
}

func unknownScenario(name string, all []*Scenario) error {
	best, least := "", len(name)/3+2
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Metadata.Name
		d := alike(strings.ToLower(name), names[i])
		if d < least {
			best, least = names[i], d
		}
	}
	if best != "" {
		return fmt.Errorf("there is no scenario %q: did you mean %s? (kubectl gpu-fault scenario list)", name, best)
	}
	slices.Sort(names)
	return fmt.Errorf("there is no scenario %q: there are %s; for one in a file write its path, as ./%s.yaml", name,
		strings.Join(names, ", "), name)
}

// alike returns the distance of what a user wrote from a name, or from some of its words: "memory", "role-binding".
func alike(wrote, name string) int {
	least := levenshtein.Distance(wrote, name, nil)
	words := strings.Split(name, "-")
	for i := range words {
		for j := i + 1; j <= len(words); j++ {
			for _, sep := range []string{"-", ""} {
				least = min(least, levenshtein.Distance(wrote, strings.Join(words[i:j], sep), nil)+1)
			}
		}
	}
	return least
}

// Load reads a scenario from a file, also a sealed one: then it needs an identity that opens it, and without one the
// error is ErrSealed and the scenario has its public half only.
func Load(path string, identities ...age.Identity) (*Scenario, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if isSealed(data) {
		return ParseSealed(path, data, identities...)
	}
	return Parse(path, data)
}

// readFile reads no more than a scenario can have, so that neither a disk image nor /dev/zero takes the memory.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading a scenario: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a folder: name a file in it", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading a scenario: %w", err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("%s has more than %d bytes, which no scenario has", path, maxFile)
	}
	return data, nil
}

// File returns where the scenario was read from, "" when it was not.
func (s *Scenario) File() string {
	if s.source == nil {
		return ""
	}
	return s.source.file
}
