package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"filippo.io/age"
	"github.com/agext/levenshtein"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/packs"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// builtin returns the embedded scenarios, parsed once.
var builtin = sync.OnceValues(func() ([]*Scenario, error) {
	files, err := packs.Files()
	if err != nil {
		return nil, err
	}
	return parseAll(files)
})

// Builtin returns the embedded scenarios, sorted by difficulty and name. The scenarios are shared; callers must
// not change them.
func Builtin() ([]*Scenario, error) {
	all, err := builtin()
	return slices.Clone(all), err
}

// Listing returns the embedded scenarios like Builtin, but with only their metadata, requirements and public parts,
// which takes a fraction of the time.
func Listing() ([]*Scenario, error) {
	files, err := packs.Files()
	if err != nil {
		return nil, err
	}
	var all []*Scenario
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s, err := parsePublic(name, files[name])
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	sortByDifficulty(all)
	return all, nil
}

// parseAll parses scenarios from files, whose names are the keys of the map. It returns the valid scenarios even if
// others contain errors; the error joins the problems of all files.
func parseAll(files map[string][]byte) ([]*Scenario, error) {
	var all []*Scenario
	var errs []error
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s, err := Parse(name, files[name])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if other, twice := seen[s.Metadata.Name]; twice {
			errs = append(errs, fmt.Errorf("%s: duplicate scenario name %q, already used in %s",
				name, s.Metadata.Name, other))
			continue
		}
		seen[s.Metadata.Name] = name
		all = append(all, s)
	}
	sortByDifficulty(all)
	return all, errors.Join(errs...)
}

func sortByDifficulty(all []*Scenario) {
	sorting.Func(all, func(a, b *Scenario) int {
		rank := func(s *Scenario) int { return slices.Index(difficulties, s.Metadata.Difficulty) }
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
}

// Find returns the built-in scenario with the given name. The error suggests similar names.
func Find(name string) (*Scenario, error) {
	// Parse only the file with the scenario's name, because parsing all of them takes a fifth of a second.
	if files, err := packs.Files(); err == nil {
		if data, found := files[name+".yaml"]; found {
			if s, err := Parse(name+".yaml", data); err == nil && s.Metadata.Name == name {
				return s, nil
			}
		}
	}
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
		return fmt.Errorf(
			"scenario %q not found; did you mean %s? To list all scenarios, run: kubectl gpu-fault scenario list",
			name, best,
		)
	}
	slices.Sort(names)
	return fmt.Errorf("scenario %q not found; supported values: %s; to use a file, specify its path, such as ./%s.yaml",
		name, strings.Join(names, ", "), name)
}

// alike returns the edit distance between the user's input and a name or some of its words ("memory", "role-binding").
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

// Load reads a scenario from a file. A sealed file requires an identity that can decrypt it; without one, Load returns
// ErrSealed and a scenario with only its public half.
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

// readFile reads a file up to the size limit of scenarios, so that a disk image or /dev/zero does not exhaust
// memory.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a directory: specify a file in it", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read scenario: %w", err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("%s is too large: a scenario must be at most %d bytes", path, maxFile)
	}
	return data, nil
}

// File returns the path that the scenario was read from, or "".
func (s *Scenario) File() string {
	if s.source == nil {
		return ""
	}
	return s.source.file
}
