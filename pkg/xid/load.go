package xid

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/tsv"
)

//go:embed sxids.tsv
var sxidsTSV string

type data struct {
	codes []Code // sorted by number
	sxids []SXid // sorted by number
}

// tables loads the embedded tables once. A malformed table is a bug that fails a test, but never causes a panic.
var tables = sync.OnceValues(func() (*data, error) {
	catalog, bodies, err := largeTables()
	if err != nil {
		return nil, err
	}
	return load(catalog, bodies, sxidsTSV)
})

func load(catalog, bodies, sxids string) (*data, error) {
	d := &data{}
	err := eachRow("catalog.tsv", catalog, catalogColumns, func(r row) error {
		c, err := codeOf(r)
		d.codes = append(d.codes, c)
		return err
	})
	if err != nil {
		return nil, err
	}
	sorting.Func(d.codes, func(a, b Code) int { return a.Number - b.Number })
	at := make(map[int]int, len(d.codes))
	for i, c := range d.codes {
		if _, twice := at[c.Number]; twice {
			return nil, fmt.Errorf("catalog.tsv: duplicate code %d", c.Number)
		}
		at[c.Number] = i
	}
	err = eachRow("bodies.tsv", bodies, bodyColumns, func(r row) error {
		n, t, err := templateOf(r)
		if err != nil {
			return err
		}
		i, ok := at[n]
		if !ok {
			return fmt.Errorf("code %d is not in the catalog", n)
		}
		d.codes[i].Variants = append(d.codes[i].Variants, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, c := range d.codes {
		if len(c.Variants) == 0 {
			return nil, fmt.Errorf("bodies.tsv: code %d has no body", c.Number)
		}
		d.codes[i].Template = c.Variants[0]
	}
	err = eachRow("sxids.tsv", sxids, sxidColumns, func(r row) error {
		s, err := sxidOf(r)
		d.sxids = append(d.sxids, s)
		return err
	})
	sorting.Func(d.sxids, func(a, b SXid) int { return a.Number - b.Number })
	return d, err
}

const (
	catalogColumns = "number name aliases description class families nvidia_immediate nvidia_investigatory recovery_since " +
		"nvsentinel_action nvsentinel_fatal nvsentinel_note gpud_type gpud_unhealthy gpud_actions eks device_plugin"
	bodyColumns = "code variant drivers evidence process body source"
	sxidColumns = "code severity link evidence gpud body source"
)

// row is one line of a table. It maps columns to cells, with "" for "-".
type row map[string]string

func eachRow(file, text, columns string, do func(row) error) error {
	return tsv.Each(file, text, columns, func(cells map[string]string) error { return do(cells) })
}

func (r row) list(column string) []string {
	if r[column] == "" || r[column] == "?" {
		return nil
	}
	return strings.Split(r[column], ",")
}

// oneOf returns the cell if it is one of the space-separated words. This catches typos.
func (r row) oneOf(column, words string) (string, error) {
	if v := r[column]; slices.Contains(strings.Fields(words), v) {
		return v, nil
	}
	return "", fmt.Errorf("%s is %q, want one of %s", column, r[column], words)
}

func codeOf(r row) (Code, error) {
	n, err := strconv.Atoi(r["number"])
	if err != nil || n < 1 {
		return Code{}, fmt.Errorf("number is %q", r["number"])
	}
	c := Code{
		Number: n, Name: r["name"], Aliases: r.list("aliases"), Description: r["description"],
		Families: r.list("families"),
		NVIDIA:   NVIDIAAction{r["nvidia_immediate"], r["nvidia_investigatory"], r["recovery_since"]},
	}
	if c.Name == "" || c.Description == "" {
		return Code{}, fmt.Errorf("code %d has no name or description", n)
	}
	if c.Class, err = r.oneOf("class", "app driver_fw memory link gpu_fatal info unused"); err != nil {
		return Code{}, err
	}
	fatal, err := r.oneOf("nvsentinel_fatal", "yes no message")
	if err != nil {
		return Code{}, err
	}
	unhealthy, err := r.oneOf("gpud_unhealthy", "yes no rule unless-remapping")
	if err != nil {
		return Code{}, err
	}
	eks, err := r.oneOf("eks", "condition event")
	if err != nil {
		return Code{}, err
	}
	plugin, err := r.oneOf("device_plugin", "unhealthy ignored")
	if err != nil {
		return Code{}, err
	}
	gpud := Reaction{Action: r["gpud_actions"], Severity: r["gpud_type"], Fatal: unhealthy != "no"}
	switch {
	case gpud.Severity == "":
		gpud.Note = "not in the table: the line is dropped"
	case unhealthy == "rule":
		gpud.Note = "its NVLink rule for the unit and the registers determines the severity"
	case unhealthy == "unless-remapping":
		gpud.Note = "dropped on GPUs that remap rows (A100 and later)"
	}
	c.Detectors = map[string]Reaction{
		IDNVSentinel:   {Action: r["nvsentinel_action"], Fatal: fatal != "no", Note: r["nvsentinel_note"]},
		IDGpud:         gpud,
		IDEKS:          {Action: eks, Fatal: eks == "condition"},
		IDDevicePlugin: {Action: plugin, Fatal: plugin == "unhealthy"},
	}
	return c, nil
}

func sxidOf(r row) (SXid, error) {
	n, err := strconv.Atoi(r["code"])
	if err != nil {
		return SXid{}, fmt.Errorf("code is %q", r["code"])
	}
	link, err := strconv.Atoi(r["link"])
	if err != nil {
		return SXid{}, fmt.Errorf("link is %q", r["link"])
	}
	severity, err := r.oneOf("severity", "Fatal Non-fatal")
	if err != nil {
		return SXid{}, err
	}
	gpud, err := r.oneOf("gpud", "yes no ?")
	if err != nil {
		return SXid{}, err
	}
	e, err := r.oneOf("evidence", "real rendered generic")
	return SXid{n, Severity(severity), link, r["body"], Evidence(e), r["source"], gpud}, err
}
