package printer

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

// Format is what -o asks for.
type Format struct {
	Output   string // "", wide, json, yaml, name, jsonpath=TEMPLATE
	NoHeader bool
}

var formats = []string{"json", "yaml", "name", "wide", "jsonpath="}

// AddFlags registers -o and --no-headers.
func (f *Format) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.Output, "output", "o", f.Output, "Output format: json, yaml, name, wide or jsonpath=TEMPLATE")
	cmd.Flags().BoolVar(&f.NoHeader, "no-headers", f.NoHeader, "Leave out the headers of tables")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// Validate refuses a format that Object does not know.
func (f Format) Validate() error {
	if f.IsTable() || strings.HasPrefix(f.Output, "jsonpath=") || slices.Contains(formats, f.Output) {
		return nil
	}
	return fmt.Errorf("unknown output format %q: choose json, yaml, name, wide or jsonpath=TEMPLATE", f.Output)
}

// IsTable is whether a table is wanted.
func (f Format) IsTable() bool { return f.Output == "" || f.Output == "wide" }

// IsWide is whether the table shall have all its columns.
func (f Format) IsWide() bool { return f.Output == "wide" }

// Object writes a versioned object (one with apiVersion and kind) in a format other than a table. names is what -o name prints, a line each.
func (f Format) Object(w io.Writer, object any, names ...string) error {
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
			if _, err = fmt.Fprintln(w, name); err != nil {
				break
			}
		}
	default:
		err = jsonPath(w, strings.TrimPrefix(f.Output, "jsonpath="), raw)
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", f.Output, err)
	}
	return nil
}

func jsonPath(w io.Writer, template string, raw []byte) error {
	printer, err := printers.NewJSONPathPrinter(template)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &object.Object); err != nil {
		return err
	}
	if err := printer.PrintObj(object, w); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w)
	return err
}
