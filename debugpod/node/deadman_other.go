//go:build !linux

package node

import (
	"context"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

func enterNode(string, []byte) error { return errors.New("namespaces are supported only on Linux") }

func deadMan(_ context.Context, _ api.Request, _ hostfs.Host, answers *answers) error {
	return answers.fail(api.Errorf(api.CodeUnsupported, "changing files is supported only on Linux"))
}
