package debugpod

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// farewell is the grace period for the helper's last response after a request to stop.
const farewell = 3 * time.Second

// ErrOutputLost means that the helper's last response was lost, so the result of the request is unknown.
var ErrOutputLost = errors.New("the helper's last response was not received")

// errPodGone means that the debug pod no longer exists or is no longer running.
var errPodGone = errors.New("the debug pod no longer exists")

// Do sends one request to the helper. It calls the function each, which may be nil, for every response as it arrives,
// and returns the last response. The error is nil only if the helper reported that the request is done. The error wraps
// a *api.Error if the helper rejected the request or failed, and ErrOutputLost if the result is unknown.
//
// If ctx ends, Do stops the helper, and still passes on its remaining responses. The first call uploads the helper to
// the pod.
func (s *Session) Do(ctx context.Context, req api.Request, each func(api.Answer)) (api.Answer, error) {
	s.doing.Lock()
	defer s.doing.Unlock()
	return s.do(ctx, req, each)
}

func (s *Session) do(ctx context.Context, req api.Request, each func(api.Answer)) (api.Answer, error) {
	if ctx.Err() != nil {
		return api.Answer{}, context.Cause(ctx)
	}
	command, input, err := s.prepare(req)
	if err != nil {
		return api.Answer{}, err
	}
	out, said := &answers{each: each}, &tail{}
	held := holdInput(input)
	ended := s.exec(ctx, command, held, out, said)
	final, broken := out.close()
	// A single response proves that the helper was uploaded completely, even if the last response is lost.
	s.uploaded = s.uploaded || out.heard()
	switch {
	case broken != nil:
		return api.Answer{}, fmt.Errorf("%w: %w", ErrOutputLost, broken)
	case final == nil && ctx.Err() != nil:
		return api.Answer{}, fmt.Errorf("%w because the operation was stopped: %w", ErrOutputLost, context.Cause(ctx))
	case final == nil:
		return api.Answer{}, s.explainSilence(ctx, ended, said.String())
	}
	// The same applies to the last response, except for the errors that the upload shell reports.
	s.uploaded = final.Error == nil || final.Error.Code != api.CodeTruncated && final.Error.Code != api.CodeNoPlace
	if final.Error != nil && ctx.Err() != nil {
		return *final, fmt.Errorf("%w: %w", context.Cause(ctx), final.Error)
	}
	if final.Error != nil {
		return *final, final.Error
	}
	return *final, nil
}

// prepare returns the command that passes the request to the helper, and the standard input of the command.
func (s *Session) prepare(req api.Request) (command []string, input io.Reader, err error) {
	req.Protocol, req.Run = api.Protocol, s.pod.Labels[LabelRun]
	if s.inside || s.uploaded {
		command = runCommand(directories)
		if s.inside {
			command = []string{api.Program, "stdin"}
		}
		if s.inside && !s.any {
			command = append(command, hex.EncodeToString(s.sum().Sum(nil)))
		}
		raw, err := req.Encode()
		return command, bytes.NewReader(raw), err
	}
	tail, err := api.Attachment(s.sum(), len(s.helper), req)
	return uploadCommand(directories, len(s.helper)+len(tail)),
		io.MultiReader(bytes.NewReader(s.helper), bytes.NewReader(tail)), err
}

// exec runs the command. If ctx ends, exec first closes the command's input, so that the helper stops and reports its
// progress. After a grace period, exec closes the connection. If the output contains anything other than responses,
// exec closes the connection immediately.
func (s *Session) exec(ctx context.Context, command []string, held *heldInput, out *answers, said *tail) error {
	execing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	out.stop = cancel
	defer held.release()
	stop := context.AfterFunc(ctx, func() {
		held.release()
		_ = pause(execing, farewell)
		cancel()
	})
	defer stop()
	return s.runner.Execer.Exec(execing, s.pod, containerName, command, Streams{In: held, Out: out, Err: said})
}

// explainSilence returns an error that describes why the last response is missing.
func (s *Session) explainSilence(ctx context.Context, ended error, stderr string) error {
	if stderr != "" {
		stderr = ": " + stderr
	}
	var exit interface{ ExitStatus() int }
	switch {
	case ended == nil:
		return fmt.Errorf("%w%s", ErrOutputLost, stderr)
	case apierrors.IsForbidden(ended), strings.Contains(ended.Error(), "cannot create resource \"pods/exec\""):
		return fmt.Errorf("you need permission to create pods/exec in namespace %s: %w", s.pod.Namespace, ended)
	case errors.As(ended, &exit) && (exit.ExitStatus() == 126 || exit.ExitStatus() == 2):
		return fmt.Errorf("%w: the helper could not be started (exit code %d), or is not for this node's architecture%s",
			ErrOutputLost, exit.ExitStatus(), stderr)
	}
	if gone := s.whyGone(ctx); gone != nil {
		return fmt.Errorf("%w: %w: %w: %w%s", ErrOutputLost, errPodGone, gone, ended, stderr)
	}
	return fmt.Errorf("%w: %w%s", ErrOutputLost, ended, stderr)
}

// whyGone returns the reason why the pod is no longer running, or nil if it is running or its state is unknown.
func (s *Session) whyGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
	defer cancel()
	pod, err := s.runner.Client.CoreV1().Pods(s.pod.Namespace).Get(ctx, s.pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.UID != s.pod.UID {
		return errors.New("the debug pod was deleted")
	}
	if err != nil {
		return nil
	}
	if v := judge(pod); v.failure != nil {
		return v.failure
	}
	return nil
}
