// Command docs generates pages of docs/ from the program, so that they are always current: the command reference and
// the XID table.
//
//	go run ./hack/docs
//
// A test in this package checks that the committed pages are current.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
)

// commandsFolder is the directory in docs in which every page is generated.
const commandsFolder = "commands"

func main() {
	if err := write("docs"); err != nil {
		fmt.Fprintf(os.Stderr, "docs: %v\n", err)
		os.Exit(1)
	}
}

// write generates all pages below folder, and removes the pages of commands that no longer exist.
func write(folder string) error {
	if len(xid.All()) == 0 { // a page without XIDs would look like a change of them
		return errors.New("the XID catalog has errors: `go test ./pkg/xid` describes them")
	}
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

// pages returns the contents of all generated pages by their paths in docs.
func pages() map[string]string {
	all := commandPages(plugin.NewCommand(genericiooptions.NewTestIOStreamsDiscard()))
	all["xid.md"] = xidPage()
	return all
}

// stale returns the pages of commands that no longer exist.
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
