package cudafault

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/tsv"
)

type data struct {
	errors   []cudaError // by code
	nvml     []nvmlError // by code
	profiles []Profile   // XID profiles by number, then the others
}

// tables parses the embedded tables once. Tests detect invalid tables, so an error here does not panic.
var tables = sync.OnceValues(func() (*data, error) {
	var all [3]string
	for i, name := range []string{"errors.tsv", "nvml.tsv", "profiles.tsv"} {
		text, err := embedded(name)
		if err != nil {
			return nil, err
		}
		all[i] = string(text)
	}
	return load(all[0], all[1], all[2])
})

// loaded returns the tables, which are empty if they are invalid.
func loaded() *data {
	d, err := tables()
	if err != nil {
		return &data{}
	}
	return d
}

func load(errors, nvml, profiles string) (*data, error) {
	d := &data{}
	err := eachRow("errors.tsv", errors, errorColumns, func(r row) error {
		e, err := errorOf(r)
		if err == nil && len(d.errors) > 0 && d.errors[len(d.errors)-1].code >= e.code {
			err = fmt.Errorf("code %d is not greater than the previous one", e.code)
		}
		d.errors = append(d.errors, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = eachRow("nvml.tsv", nvml, nvmlColumns, func(r row) error {
		e, err := nvmlOf(r)
		d.nvml = append(d.nvml, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = eachRow("profiles.tsv", profiles, profileColumns, func(r row) error {
		p, err := profileOf(r)
		if err == nil {
			err = p.check(d)
		}
		if err == nil && slices.ContainsFunc(d.profiles, func(q Profile) bool { return q.Name == p.Name }) {
			err = fmt.Errorf("duplicate profile %s", p.Name)
		}
		d.profiles = append(d.profiles, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// row contains the cells of one row of a table, by column, with "" for "-".
type row map[string]string

func eachRow(file, text, columns string, do func(row) error) error {
	return tsv.Each(file, text, columns, func(cells map[string]string) error { return do(cells) })
}

// oneOf returns the cell, or an error if the cell is not one of the words. The words are separated by blanks.
func (r row) oneOf(column, words string) (string, error) {
	if v := r[column]; slices.Contains(strings.Fields(words), v) {
		return v, nil
	}
	return "", fmt.Errorf("%s is %q, but must be one of %s", column, r[column], words)
}
