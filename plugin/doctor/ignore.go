package doctor

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// ignoreKind is the kind of ignore files.
const ignoreKind = "DoctorIgnore"

// ignoreList is an ignore file.
type ignoreList struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Items      []doctor.Ignore `json:"items"`
}

// readIgnore reads an ignore file; an empty name is none.
func readIgnore(file string) ([]doctor.Ignore, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--ignore-file: %w", err)
	}
	var list ignoreList
	if err := yaml.UnmarshalStrict(raw, &list); err != nil {
		return nil, fmt.Errorf("--ignore-file %s: %w", file, err)
	}
	if list.APIVersion != snapshot.APIVersion || list.Kind != ignoreKind {
		return nil, fmt.Errorf("--ignore-file %s: it must begin with apiVersion: %s and kind: %s, and list items with id, object and reason", file, snapshot.APIVersion, ignoreKind)
	}
	for i, item := range list.Items {
		if item.ID == "" {
			return nil, fmt.Errorf("--ignore-file %s: item %d has no id; to hide all findings about an object give id: \"*\"", file, i+1)
		}
		if err := known("--ignore-file "+file, []string{item.ID}); err != nil {
			return nil, err
		}
	}
	return list.Items, nil
}
