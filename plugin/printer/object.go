package printer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// Format holds the values of -o and --no-headers.
type Format struct {
	Output   string // "", wide, json, yaml, name, jsonpath=TEMPLATE
	NoHeader bool
	// Also is a list of the formats that a command supports in addition to the usual ones.
	Also []string
}

var formats = []string{"json", "yaml", "name", "wide", jsonPathPrefix}

// AddFlags registers -o and --no-headers.
func (f *Format) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.Output, "output", "o", f.Output,
		"Output format: json, yaml, name, wide or jsonpath=TEMPLATE")
	cmd.Flags().BoolVar(&f.NoHeader, "no-headers", f.NoHeader, "Do not print table headers")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

const jsonPathPrefix = "jsonpath="

// Validate returns an error if the output format is unknown.
func (f Format) Validate() error {
	if strings.HasPrefix(f.Output, jsonPathPrefix) {
		_, err := f.template()
		return err
	}
	if f.IsTable() || slices.Contains(formats, f.Output) || slices.Contains(f.Also, f.Output) {
		return nil
	}
	all := append([]string{"json", "yaml", "name", "wide"}, f.Also...)
	return fmt.Errorf("unknown output format %q: supported values: %s, jsonpath=TEMPLATE", f.Output,
		strings.Join(all, ", "))
}

// IsTable reports whether the output is a table.
func (f Format) IsTable() bool { return f.Output == "" || f.Output == "wide" }

// IsWide reports whether the table has all columns.
func (f Format) IsWide() bool { return f.Output == "wide" }

// Object writes a versioned object (one with apiVersion and kind) in a format other than a table. With -o name, it
// writes names, one per line.
func (f Format) Object(w io.Writer, object any, names ...string) error {
	if raw := Raw(w); Width(raw) == 0 { // read by programs, so not escaped
		w = raw
	} else if f.Output == "json" {
		w = Escaping(raw) // shown on a terminal, so escaped, but still valid JSON
	}
	raw, err := json.MarshalIndent(object, "", "    ")
	if err != nil {
		return fmt.Errorf("print as %s: %w", f.Output, err)
	}
	switch {
	case f.Output == "json":
		_, err = fmt.Fprintf(w, "%s\n", raw)
	case f.Output == "yaml":
		if raw, err = yaml.JSONToYAML(raw); err == nil {
			_, err = w.Write(raw)
		}
	case f.Output == "name":
		for _, name := range names {
			if _, err = fmt.Fprintln(w, Clean(name)); err != nil {
				break
			}
		}
	default:
		return f.jsonPath(w, raw)
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", f.Output, err)
	}
	return nil
}

// template parses the template of -o jsonpath=TEMPLATE.
func (f Format) template() (*jsonpath.JSONPath, error) {
	text := strings.TrimPrefix(f.Output, jsonPathPrefix)
	// As with `kubectl get`, a missing key prints nothing.
	template := jsonpath.New("out").AllowMissingKeys(true)
	if err := template.Parse(text); err != nil {
		return nil, fmt.Errorf("-o jsonpath: template %s: %w", text, err)
	}
	return template, nil
}

func (f Format) jsonPath(w io.Writer, raw []byte) error {
	template, err := f.template()
	if err != nil {
		return err
	}
	var (
		object any
		out    bytes.Buffer
	)
	if err := kjson.Unmarshal(raw, &object); err != nil { // keeps integers
		return fmt.Errorf("print as jsonpath: %w", err)
	}
	if err := template.Execute(&out, object); err != nil {
		return fmt.Errorf("-o jsonpath: template %s: %w", strings.TrimPrefix(f.Output, jsonPathPrefix), err)
	}
	if out.Len() == 0 {
		return nil
	}
	_, err = fmt.Fprintln(w, out.String())
	return err
}
