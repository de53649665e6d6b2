package experiment

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/suggest"
)

//go:embed builtin/*.yaml
var builtin embed.FS

// Builtin returns the built-in experiments, sorted by name.
func Builtin() ([]*Experiment, error) {
	files, err := builtin.ReadDir("builtin")
	if err != nil {
		return nil, err
	}
	var all []*Experiment
	for _, f := range files {
		e, err := Named(strings.TrimSuffix(f.Name(), ".yaml"))
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// Source returns the file of a built-in experiment.
func Source(name string) ([]byte, error) {
	data, err := builtin.ReadFile(path.Join("builtin", path.Base(name)+".yaml"))
	if err == nil {
		return data, nil
	}
	files, _ := builtin.ReadDir("builtin")
	var known []string
	for _, f := range files {
		known = append(known, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	if near := suggest.Nearest(name, known); near != "" {
		return nil, fmt.Errorf("experiment %q not found; did you mean %s?", name, near)
	}
	return nil, fmt.Errorf("experiment %q not found: must be one of %s; to use a file, specify -f", name,
		strings.Join(known, ", "))
}

// Named returns a built-in experiment.
func Named(name string) (*Experiment, error) {
	data, err := Source(name)
	if err != nil {
		return nil, err
	}
	return Parse(name+".yaml", data)
}
