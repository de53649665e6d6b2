package containerd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// Running parses info["config"] of CRI's Status, which is the daemon's configuration in memory. The format of handlers
// is the same since 1.3.
func Running(criConfig []byte) (*Merged, error) {
	criConfig, err := unwrap(criConfig)
	if err != nil {
		return nil, err
	}
	var config struct {
		Containerd *struct {
			DefaultRuntimeName string
			Runtimes           map[string]struct {
				RuntimeType string
				Options     map[string]any
			}
		}
	}
	if err := json.Unmarshal(criConfig, &config); err != nil {
		return nil, fmt.Errorf("invalid CRI info[\"config\"]: %w", err)
	}
	if config.Containerd == nil {
		return nil, errors.New("CRI's info[\"config\"] contains no containerd configuration: is the runtime containerd?")
	}
	m := &Merged{DefaultRuntime: config.Containerd.DefaultRuntimeName, Handlers: map[string]Handler{}}
	for name, r := range config.Containerd.Runtimes {
		m.Handlers[name] = newHandler(name, map[string]any{"runtime_type": r.RuntimeType, "options": r.Options})
	}
	return m, nil
}

// ConfigSum returns the SHA-256 checksum, in hexadecimal, of CRI's info["config"] without white space and with sorted
// keys. Equal configurations have equal checksums. It returns "" if criConfig is empty or null.
func ConfigSum(criConfig []byte) string {
	if len(bytes.TrimSpace(criConfig)) == 0 {
		return ""
	}
	plain, err := unwrap(criConfig)
	if err != nil {
		return patch.Sum(criConfig)
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(plain))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return patch.Sum(criConfig)
	}
	if v == nil {
		return ""
	}
	canonical, err := json.Marshal(v) // sorts the keys
	if err != nil {
		return patch.Sum(criConfig)
	}
	return patch.Sum(canonical)
}

// unwrap returns the JSON inside a JSON string, because CRI's info is a map of strings that contain JSON.
func unwrap(criConfig []byte) ([]byte, error) {
	criConfig = bytes.TrimSpace(criConfig)
	if len(criConfig) == 0 || criConfig[0] != '"' {
		return criConfig, nil
	}
	var text string
	if err := json.Unmarshal(criConfig, &text); err != nil {
		return nil, fmt.Errorf("CRI's info[\"config\"] is not JSON: %w", err)
	}
	return []byte(text), nil
}
