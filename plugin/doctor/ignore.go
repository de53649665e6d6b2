package doctor

import (
	"fmt"
	"io"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// ignoreKind is the kind of an ignore file.
const ignoreKind = "DoctorIgnore"

// ignoreList is the content of an ignore file.
type ignoreList struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Items      []engine.Ignore `json:"items"`
}

// ignoreExample returns an example of an ignore file, for help and error messages.
func ignoreExample() string {
	return fmt.Sprintf(`  apiVersion: %s
  kind: %s
  items:
  - id: hw.row-remap     # as in the report, or a pattern: 'hw.*'
    object: Node gpu-7   # as in the report, or a pattern; all if omitted
    reason: "to be replaced, ticket 4711"`, snapshot.APIVersion, ignoreKind)
}

// shapeProblem describes a parser error in terms of YAML instead of Go types.
func shapeProblem(err error) string {
	text := err.Error()
	if _, field, ok := strings.Cut(text, "unknown field "); ok {
		return "unknown field " + field
	}
	if _, where, ok := strings.Cut(text, "yaml: "); ok {
		return "invalid YAML: " + strings.TrimSpace(strings.ReplaceAll(where, "\n", " "))
	}
	return "a field has the wrong type"
}

// maxIgnoreFile is the maximum size of an ignore file in bytes. Without a limit, /dev/zero would use up all memory.
const maxIgnoreFile = 1 << 20

// readIgnore reads an ignore file. It returns nil if the name is empty.
func readIgnore(file string) ([]engine.Ignore, error) {
	if file == "" {
		return nil, nil
	}
	opened, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--ignore-file: %w", err)
	}
	defer func() { _ = opened.Close() }() // read only
	raw, err := io.ReadAll(io.LimitReader(opened, maxIgnoreFile+1))
	if err != nil {
		return nil, fmt.Errorf("--ignore-file: %w", err)
	}
	if len(raw) > maxIgnoreFile {
		return nil, fmt.Errorf("--ignore-file %q: must be at most %d bytes", file, maxIgnoreFile)
	}
	refused := func(format string, args ...any) error {
		return fmt.Errorf("--ignore-file %s: %s; example:\n%s", file, fmt.Sprintf(format, args...),
			ignoreExample())
	}
	var list ignoreList
	if err := yaml.UnmarshalStrict(raw, &list); err != nil {
		return nil, refused("%s", shapeProblem(err))
	}
	if list.APIVersion != snapshot.APIVersion || list.Kind != ignoreKind {
		return nil, refused("must begin with apiVersion: %s and kind: %s", snapshot.APIVersion, ignoreKind)
	}
	for i, item := range list.Items {
		if item.ID == "" {
			return nil, refused("item %d has no id (id: \"*\" with an object hides all findings about it)", i+1)
		}
		if err := known("--ignore-file "+file, []string{item.ID}); err != nil {
			return nil, err
		}
	}
	return list.Items, nil
}
