package check

import (
	"context"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// A handler is read once for all looks, since that takes a pod on the node; where nodes cannot be read, the check
// fails, whatever it expects.
func TestHandlersAreReadOnce(t *testing.T) {
	t.Parallel()
	reads := 0
	handler := func(_ context.Context, what scenario.Handler) (map[string]any, error) {
		reads++
		if what.Name != "nvidia" {
			return nil, nil
		}
		return map[string]any{"type": "io.containerd.runc.v2", "binaryName": "/usr/bin/nvidia-container-runtime"}, nil
	}
	for name, test := range map[string]struct {
		checker *Checker
		handler string
		expect  string
		ok      bool
	}{
		"NVIDIA's": {&Checker{Handler: handler}, "nvidia", "o != null && o.binaryName.contains('nvidia')", true},
		"missing":  {&Checker{Handler: handler}, "other", "o == null", true},
		"no nodes": {&Checker{}, "nvidia", "o == null", false},
	} {
		results, err := test.checker.Run(t.Context(), []scenario.Check{{
			Name: name, Handler: &scenario.Handler{Node: "gpu-1", Name: test.handler}, Expect: test.expect,
		}})
		if err != nil || len(results) != 1 || results[0].OK != test.ok {
			t.Errorf("%s: %+v, %v", name, results, err)
		}
		if !test.ok && !strings.Contains(results[0].Message, "nodes cannot be read here") {
			t.Errorf("%s: %q", name, results[0].Message)
		}
	}
	c := &Checker{Handler: handler}
	s := c.handler(scenario.Handler{Node: "gpu-1", Name: "nvidia"})
	reads = 0
	for range 3 {
		if _, err := s.look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if reads != 1 {
		t.Errorf("read %d times", reads)
	}
}
