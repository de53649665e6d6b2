package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// cheats is the part of attempts that people made who had seen only the card of a scenario and the objects of its
// namespaces: some tried to pass without a repair, others repaired it in an unusual way. test/cheats has a file for
// each scenario, with the lists solutions and wrongFixes of packs.
const cheats = "cheats and unusual fixes"

// cheatSeeds are the variants that they are played with: each with the first that has it.
const cheatSeeds = "1,0,2,3,4,5,6,7,8,9,10,11,12,13,14,15"

// cheatJob returns the job that plays the cheats of a scenario, whose file it gets.
func cheatJob(root, name, pack string) (job, error) {
	file := filepath.Join(root, "test/cheats", name+".yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return job{}, err
	}
	pack = withAttempts(pack, string(text)) // whose anchors the file may refer to
	var made struct {
		Sealed struct{ Solutions, WrongFixes []struct{ Name string } }
	}
	if err := yaml.Unmarshal([]byte(pack), &made); err != nil {
		return job{}, fmt.Errorf("%s: %w", file, err)
	}
	return job{
		part: cheats, name: "cheats " + name, tier: rest, site: pair,
		seconds: attemptSeconds * float64(len(made.Sealed.Solutions)+len(made.Sealed.WrongFixes)) / 2,
		run: func(b *bay) ([]result, error) {
			results, err := playFile(b, name, cheatSeeds, pack, "--once")
			if err != nil {
				return nil, err
			}
			for _, attempt := range slices.Concat(made.Sealed.Solutions, made.Sealed.WrongFixes) {
				is := func(r result) bool { return r.row.(played).Attempt == attempt.Name }
				if !slices.ContainsFunc(results, is) {
					return nil, fmt.Errorf("none of the seeds %s has %q of %s", cheatSeeds, attempt.Name, file)
				}
			}
			return results, nil
		},
	}, nil
}

// withAttempts returns a pack with other attempts. They are the end of every pack.
func withAttempts(pack, attempts string) string {
	kept, _, _ := strings.Cut(pack, "\n  solutions:\n")
	return kept + "\n  " + strings.ReplaceAll(strings.TrimSpace(attempts), "\n", "\n  ") + "\n"
}

func playFile(b *bay, name, seeds, pack string, args ...string) ([]result, error) {
	file, err := os.CreateTemp("", name+"-*.yaml")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	if _, err := io.WriteString(file, pack); err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	return selftest(b, name, seeds, append(args, "--file", file.Name(), "--trust-pack")...)
}

// printCheats prints how many cheats were caught, and how many honest fixes were accepted.
func printCheats(w io.Writer, p *partReport) {
	if p == nil {
		return
	}
	right, all := map[string]int{}, map[string]int{}
	for _, row := range p.rows {
		a := row.(played)
		all[a.Wanted]++
		if a.OK {
			right[a.Wanted]++
		}
	}
	fmt.Fprintf(w, "unusual fixes accepted %d of %d\n", right["passed"], all["passed"])
	fmt.Fprintf(w, "cheats caught %d of %d\n", right["failed"], all["failed"])
}
