package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// The cheats and unusual fixes of each scenario fit into its file, in place of its own attempts: a typing error in them
// would otherwise be seen when they are played, once a week.
func TestCheatsFitTheirScenarios(t *testing.T) {
	t.Parallel()
	packs, err := filepath.Glob("../../pkg/scenario/packs/*.yaml")
	if err != nil || len(packs) == 0 {
		t.Fatal(packs, err)
	}
	for _, file := range packs {
		name := filepath.Base(file)
		pack, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		made, err := os.ReadFile("../cheats/" + name)
		if err != nil {
			t.Errorf("%s has no cheats: %v", name, err)
			continue
		}
		s, err := scenario.Parse(name, []byte(withAttempts(string(pack), string(made))))
		if err != nil {
			t.Errorf("%s:\n%v", name, err)
			continue
		}
		if len(s.Sealed.WrongFixes) < 4 || len(s.Sealed.Solutions) < 3 {
			t.Errorf("%s has %d cheats and %d unusual fixes: at least 4 and 3 are wanted", name,
				len(s.Sealed.WrongFixes), len(s.Sealed.Solutions))
		}
		if own := strings.TrimSuffix(name, ".yaml"); s.Metadata.Name != own {
			t.Errorf("%s is of scenario %s", name, s.Metadata.Name)
		}
	}
}
