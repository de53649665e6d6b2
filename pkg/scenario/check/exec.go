package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// defaultExecTimeout is how long a command may take when the check does not say.
const defaultExecTimeout = 10 * time.Second

// defaultContainer is the annotation by which kubectl chooses a container, too.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// command runs a command in the first ready pod of those picked.
func (c *Checker) command(ctx context.Context, e scenario.Exec) (view, error) {
	pods, err := c.pick(ctx, e.Namespace, e.Labels, e.Pod)
	if err != nil {
		return view{}, err
	}
	for i := range pods {
		if !ready(&pods[i]) {
			continue
		}
		said, err := c.runIn(ctx, &pods[i], e.Container, e.Command, time.Duration(e.Timeout))
		if err != nil {
			return view{}, err
		}
		return view{
			vars: expr.Vars{"stdout": said.stdout, "stderr": said.stderr, "code": said.code}, evidence: said.String(),
		}, nil
	}
	return view{}, fmt.Errorf("no pod is ready to run the command in: %s is %s", pods[0].Name, podState(&pods[0]))
}

// said is what a command has said.
type said struct {
	stdout, stderr string
	code           int64
}

// String returns its exit code and its last words.
func (s said) String() string {
	words := lastLine(s.stderr, "")
	if words == "" || s.code == 0 {
		words = lastLine(s.stdout, words)
	}
	return strings.TrimSuffix(fmt.Sprintf("exit code %d: %s", s.code, words), ": ")
}

// errNotInTime is for a command that has not ended.
var errNotInTime = errors.New("the command has not ended in time")

// runIn runs a command in a container. A command that ends with another code than 0 is no error.
func (c *Checker) runIn(
	ctx context.Context, pod *corev1.Pod, name string, command []string, timeout time.Duration,
) (said, error) {
	execer, err := c.exec()
	if err != nil {
		return said{}, err
	}
	if len(command) == 0 {
		return said{}, errors.New("the check has no command")
	}
	if timeout <= 0 {
		timeout = defaultExecTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%w (%s)", errNotInTime, timeout))
	defer cancel()
	out, errs := &headBuffer{most: maxText}, &headBuffer{most: maxText}
	done := make(chan error, 1)
	go func() { // streams may take long to notice that ctx has ended, when the node is gone
		done <- execer.Exec(ctx, pod, containerOf(pod, name), command,
			debugpod.Streams{In: strings.NewReader(""), Out: out, Err: errs})
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		return said{}, fmt.Errorf("%s in pod %s/%s: %w", command[0], pod.Namespace, pod.Name, context.Cause(ctx))
	}
	var exit interface{ ExitStatus() int }
	switch {
	case err == nil:
		return said{stdout: out.String(), stderr: errs.String()}, nil
	case errors.As(err, &exit):
		return said{stdout: out.String(), stderr: errs.String(), code: int64(exit.ExitStatus())}, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return said{}, fmt.Errorf("%s in pod %s/%s: %w", command[0], pod.Namespace, pod.Name, err)
}

// containerOf returns the container that is meant: as with kubectl the one of the annotation, or the first.
func containerOf(pod *corev1.Pod, name string) string {
	switch {
	case name != "":
		return name
	case pod.Annotations[defaultContainer] != "":
		return pod.Annotations[defaultContainer]
	case len(pod.Spec.Containers) == 0:
		return ""
	}
	return pod.Spec.Containers[0].Name
}
