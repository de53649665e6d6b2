package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// defaultExecTimeout is the default timeout of a command.
const defaultExecTimeout = 10 * time.Second

// defaultContainer is the annotation that selects a pod's default container, as in kubectl.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// command runs a command in the first ready pod that matches.
func (c *Checker) command(ctx context.Context, e scenario.Exec) (view, error) {
	pods, err := c.pick(ctx, e.Namespace, e.Labels, e.Pod)
	if err != nil {
		return view{}, err
	}
	for i := range pods {
		if !podutils.IsPodReady(&pods[i]) {
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
	return view{}, fmt.Errorf("no pod is ready to run the command: %s is %s", pods[0].Name, podState(&pods[0]))
}

// said is the output of a command.
type said struct {
	stdout, stderr string
	code           int64
}

// String returns the exit code and the last line of the output.
func (s said) String() string {
	words := lastLine(s.stderr, "")
	if words == "" || s.code == 0 {
		words = lastLine(s.stdout, words)
	}
	return strings.TrimSuffix(fmt.Sprintf("exit code %d: %s", s.code, words), ": ")
}

// errNotInTime means that a command timed out.
var errNotInTime = errors.New("the command timed out")

// runIn runs a command in a container. A nonzero exit code is not an error.
func (c *Checker) runIn(
	ctx context.Context, pod *corev1.Pod, name string, command []string, timeout time.Duration,
) (said, error) {
	execer, err := c.exec()
	if err != nil {
		return said{}, err
	}
	if len(command) == 0 {
		return said{}, errors.New("the check does not specify a command")
	}
	if timeout <= 0 {
		timeout = defaultExecTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%w (%s)", errNotInTime, timeout))
	defer cancel()
	out, errs := &headBuffer{most: maxText}, &headBuffer{most: maxText}
	done := make(chan error, 1)
	go func() { // streams may be slow to notice that ctx is done if the node is unreachable
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

// containerOf returns the named container. If no name is given, it returns, like kubectl, the container in the
// annotation, or the first one.
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
