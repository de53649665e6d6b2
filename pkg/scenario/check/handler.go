package check

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// errNoNodes is returned by checks that need a pod on a node if nodes cannot be read.
var errNoNodes = errors.New("nodes cannot be read here")

// handler reads a runtime handler on a node. It reads the handler only once, because this requires a pod.
func (c *Checker) handler(what scenario.Handler) source {
	var read *view
	return passive(func(ctx context.Context) (view, error) {
		if read != nil {
			return *read, nil
		}
		if c.Handler == nil {
			return view{}, errNoNodes
		}
		found, err := c.Handler(ctx, what)
		if err != nil {
			return view{}, fmt.Errorf("read the runtime handlers of node %s: %w", what.Node, err)
		}
		vars, evidence := expr.Vars{"o": nil}, "no such handler"
		if found != nil {
			vars["o"], evidence = found, fmt.Sprintf("%v %v", found["type"], found["binaryName"])
			if lost, _ := found["lost"].(string); lost != "" {
				evidence += ", but " + lost
			}
		}
		read = &view{vars: vars, evidence: evidence}
		return *read, nil
	})
}
