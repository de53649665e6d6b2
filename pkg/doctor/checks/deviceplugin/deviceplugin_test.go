package deviceplugin

import (
	"testing"
)

// FuzzPluginConfig tests that no configuration makes the check panic.
func FuzzPluginConfig(f *testing.F) {
	f.Add("version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n")
	f.Add("flags:\n  renameByDefault: true")
	f.Add("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: all}]}}")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parsePluginConfig(text)
		if err == nil {
			_ = c.shared()
		}
	})
}
