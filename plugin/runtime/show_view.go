package runtime

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// These types are shared with doctor.
type (
	settings     = runtimeview.Settings
	runtimeClass = runtimeview.RuntimeClass
	toolkit      = runtimeview.Toolkit
	setting      = runtimeview.Setting
)

// view is a printable runtime view.
type view struct {
	runtimeview.View

	local *time.Location // time zone for times in tables
}

func newView(nodeName string, found api.Runtime, classes []runtimeClass, toolkits []toolkit) view {
	return view{View: runtimeview.New(nodeName, found, classes, toolkits), local: time.Local}
}
