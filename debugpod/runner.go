package debugpod

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

const (
	defaultStartTimeout = time.Minute
	// settle is the time for which Start retries while a new namespace is still being set up or a pod is still being
	// deleted.
	settle = 10 * time.Second
	// retryEvery is the interval between attempts to send a request.
	retryEvery = 200 * time.Millisecond
)

// Execer runs a command in a container. NewExecer returns an Execer for real clusters.
type Execer interface {
	// Exec returns when the command has exited and all its output has been written to the streams. If the exit code is
	// not 0, the error has the method ExitStatus.
	Exec(ctx context.Context, pod *corev1.Pod, container string, command []string, streams Streams) error
}

// Runner starts debug pods.
type Runner struct {
	Client kubernetes.Interface
	Execer Execer
	// Helper returns the node helper for an architecture, such as helper.For.
	Helper func(arch string) ([]byte, error)
	// Sum returns the state of the hash after hashing the helper, such as helper.Sum. If Sum is nil, each pod computes
	// this state.
	Sum func(arch string) (hash.Cloner, error)
	// StartTimeout is the maximum time to wait for a pod to be running. The default is one minute.
	StartTimeout time.Duration
	// Progress, if set, is called with short progress messages. The calls for one pod are not concurrent.
	Progress func(text string)
}

// NewRunner returns a Runner for a cluster. The clientset and the configuration must be for the same cluster.
func NewRunner(client kubernetes.Interface, config *rest.Config, helper func(arch string) ([]byte, error)) *Runner {
	return &Runner{Client: client, Execer: NewExecer(config), Helper: helper}
}

// Start creates the pod and returns when it is running. If this fails or ctx ends, Start deletes the pod; the error
// includes any failure to delete it. A *StartError describes why the pod is not running.
func (r *Runner) Start(ctx context.Context, spec Spec) (*Session, error) {
	program, err := r.Helper(spec.Arch) // get the program before anything is created
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	pod := Pod(spec)
	session := &Session{
		runner: r, pod: pod, node: spec.Node, helper: program, inside: spec.HasHelper, any: spec.AnyHelper,
		sum: sync.OnceValue(func() hash.Cloner { return r.sum(spec.Arch, program) }),
	}
	if !session.inside {
		go session.sum() // compute the hash while the pod is starting
	}
	timeout := r.StartTimeout
	if timeout <= 0 {
		timeout = defaultStartTimeout
	}
	// The cause distinguishes this timeout from the end of the caller's context.
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errStartTimeout)
	defer cancel()
	fail := func(err error) (*Session, error) {
		err = fmt.Errorf("start the debug pod: %w", err)
		return nil, errors.Join(err, session.Close(ctx))
	}

	created, err := r.create(limited, pod, metav1.CreateOptions{})
	if err != nil {
		if isRefusal(err) {
			return nil, fmt.Errorf("start the debug pod: %w", err)
		}
		// The pod may have been created, because the response may have been lost.
		session.uncertain = true
		return fail(err)
	}
	session.pod = created
	r.progress("debug pod %s/%s created", created.Namespace, created.Name)
	running, err := r.untilRunning(limited, created)
	if err != nil {
		return fail(err)
	}
	session.pod = running
	r.progress("debug pod running")
	return session, nil
}

func (r *Runner) sum(arch string, program []byte) hash.Cloner {
	if r.Sum != nil {
		if sum, err := r.Sum(arch); err == nil {
			return sum
		}
	}
	return api.Sum(program)
}

// DryRun checks whether the API server would accept the pod, given permissions, Pod Security, quotas and policies. It
// returns the same errors as Start.
func (r *Runner) DryRun(ctx context.Context, spec Spec) error {
	if _, err := r.Helper(spec.Arch); err != nil {
		return err
	}
	if _, err := r.create(ctx, Pod(spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return fmt.Errorf("the debug pod would not be admitted: %w", err)
	}
	return nil
}

// create creates the pod. It retries temporary errors for a limited time.
func (r *Runner) create(ctx context.Context, pod *corev1.Pod, options metav1.CreateOptions) (*corev1.Pod, error) {
	pods := r.Client.CoreV1().Pods(pod.Namespace)
	told := false
	for giveUp := time.Now().Add(settle); ; {
		created, err := pods.Create(ctx, pod, options)
		switch {
		case err == nil:
			return created, nil
		case apierrors.IsAlreadyExists(err):
			existing, ours := r.existing(ctx, pod)
			if ours && len(options.DryRun) == 0 {
				return existing, nil
			}
			if ours {
				return pod, nil
			}
			if existing != nil && existing.DeletionTimestamp != nil &&
				existing.Labels[LabelRun] == pod.Labels[LabelRun] {
				// This is the previous pod of the run. Its kubelet may need all the time that ctx allows, for example
				// after an outage of the API server.
				if giveUp.Before(time.Now()) && !told {
					told = true
					r.progress("waiting for the node to terminate the previous debug pod")
				}
				if stopped := pause(ctx, retryEvery); stopped != nil {
					return nil, &StartError{Reason: ReasonNameTaken, Err: stopped,
						Message: fmt.Sprintf("the node's kubelet has not terminated the previous debug pod %s/%s yet",
							pod.Namespace, pod.Name), Hint: "try again later"}
				}
				continue
			}
			if existing != nil && existing.DeletionTimestamp == nil {
				return nil, &StartError{
					Reason:  ReasonNameTaken,
					Message: fmt.Sprintf("pod %s/%s already exists, but does not belong to this run", pod.Namespace, pod.Name), Err: err,
				}
			}
		case !isServiceAccountMissing(err):
			return nil, explainCreate(err, pod)
		}
		if time.Now().After(giveUp) {
			return nil, explainCreate(err, pod)
		}
		if stopped := pause(ctx, retryEvery); stopped != nil {
			return nil, fmt.Errorf("%w; last: %w", stopped, explainCreate(err, pod))
		}
	}
}

// existing returns the pod with the same name. ours reports whether it belongs to this run: client-go repeats a request
// after a connection failure, so the pod may have been created by client-go's first attempt.
func (r *Runner) existing(ctx context.Context, pod *corev1.Pod) (existing *corev1.Pod, ours bool) {
	existing, err := r.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, false
	}
	ours = existing.DeletionTimestamp == nil && existing.Labels[LabelRun] == pod.Labels[LabelRun] &&
		existing.Labels[LabelManagedBy] == Name && existing.Spec.NodeName == pod.Spec.NodeName
	return existing, ours
}

// isRefusal reports whether the API server itself rejected the request, so that the pod certainly does not exist.
func isRefusal(err error) bool {
	var start *StartError
	return errors.As(err, &start) || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) ||
		apierrors.IsMethodNotSupported(err)
}

func (r *Runner) progress(format string, args ...any) {
	if r.Progress != nil {
		r.Progress(fmt.Sprintf(format, args...))
	}
}

// pause waits for d. It returns an error if ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
