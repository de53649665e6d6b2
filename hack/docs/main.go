// Command docs writes the pages of docs/ that are made from the program itself, so that they cannot fall behind it: the
// reference of all commands from the commands, and the table of XIDs from the catalog.
//
//	go run ./hack/docs
//
// A test beside it holds that the committed pages are current.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
)

// commandsFolder is below docs; every page in it is made here.
const commandsFolder = "commands"

func main() {
	if err := write("docs"); err != nil {
		fmt.Fprintf(os.Stderr, "docs: %v\n", err)
		os.Exit(1)
	}
}

// write makes all pages below folder anew, and removes those of commands that are gone.
func write(folder string) error {
	all := pages()
	for _, name := range stale(folder, all) {
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(folder, commandsFolder), 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(all[name]), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pages returns the texts of all generated pages, by their paths below docs.
func pages() map[string]string {
	all := commandPages(plugin.NewCommand(genericiooptions.NewTestIOStreamsDiscard()))
	all["xid.md"] = xidPage()
	return all
}

// stale returns the pages of commands that there are no more.
func stale(folder string, all map[string]string) []string {
	var names []string
	files, _ := filepath.Glob(filepath.Join(folder, commandsFolder, "*.md"))
	for _, file := range files {
		if name := filepath.Join(commandsFolder, filepath.Base(file)); all[name] == "" {
			names = append(names, name)
		}
	}
	return names
}
