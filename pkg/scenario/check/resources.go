package check

import (
	"encoding/json"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// errNoModule is for checks of a module if no module was submitted. Grading omits such checks.
var errNoModule = errors.New("no Terraform module was submitted")

// resources lists the resources of a type in the Terraform module.
func (c *Checker) resources(of string) (view, error) {
	if c.Module == nil {
		return view{}, errNoModule
	}
	list := c.Module.List(of)
	if list == nil {
		list = []any{}
	}
	shown, err := json.Marshal(c.Module.Resources[of])
	if err != nil {
		return view{}, err
	}
	return view{vars: expr.Vars{"list": list}, evidence: string(shown)}, nil
}
