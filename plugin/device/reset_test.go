package device

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
)

// TestResetIsRefused: a reset cannot be undone, so it takes one GPU of one node, and a flag of its own.
func TestResetIsRefused(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*resetting){
		"specify --gpu":           func(f *resetting) { f.gpu = "" },
		"specify --allow-reset":   func(f *resetting) { f.allow = false },
		"specify one node":        func(f *resetting) { f.Nodes.Selector = "a=b" },
		"selects several GPUs":    func(f *resetting) { f.gpu = "0,1" },
		"--gpu all selects sever": func(f *resetting) { f.gpu = "all" },
		"invalid value":           func(f *resetting) { f.gpu = "first" },
	} {
		f := &resetting{Flags: nodefault.New(), gpu: "1", allow: true}
		f.Nodes.Names = []string{"gpu-1"}
		if err := f.validate(); err != nil {
			t.Fatal(err)
		}
		change(f)
		if err := f.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f := resetting{}
	var err error
	if f.gpus, err = gpus.Parse("0000:99:00"); err != nil {
		t.Fatal(err)
	}
	info := twoGPUs()
	info.GPUs = nil
	if _, err := f.choose(t.Context(), nil, "n", info, api.Devices{}); err == nil {
		t.Error("a GPU that the driver does not have is reset")
	}
}
