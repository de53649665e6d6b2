package debugpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	defaultStartTimeout = time.Minute
	// settle is how long Start waits for what a new namespace, or a pod that is just being deleted, needs to settle.
	settle = 10 * time.Second
	// retryEvery is the pause between two tries of a request.
	retryEvery = 200 * time.Millisecond
)

// Execer runs a command in a container. NewExecer's is the one for real clusters.
type Execer interface {
	// Exec returns when the command has ended and everything it wrote has been written to the streams. A command that
	// ends with another code than 0 gives an error with the method ExitStatus.
	Exec(ctx context.Context, pod *corev1.Pod, container string, command []string, streams Streams) error
}

// Runner starts debug pods.
type Runner struct {
	Client kubernetes.Interface
	Execer Execer
	// Helper returns the node helper for an architecture: helper.For.
	Helper func(arch string) ([]byte, error)
	// StartTimeout is how long a pod may take to run: a minute when zero.
	StartTimeout time.Duration
	// Progress, if set, hears what is going on with a pod, in a few words. Calls come one at a time for each pod.
	Progress func(text string)
}

// NewRunner returns a Runner for a cluster. The clientset and the configuration are the same cluster's.
func NewRunner(client kubernetes.Interface, config *rest.Config, helper func(arch string) ([]byte, error)) *Runner {
	return &Runner{Client: client, Execer: NewExecer(config), Helper: helper}
}

// Start makes the pod and returns when it runs. When that fails, also because ctx ended, it has deleted the pod again,
// and the error says so if it could not. A *StartError tells why the pod does not run.
func (r *Runner) Start(ctx context.Context, spec Spec) (*Session, error) {
	program, err := r.Helper(spec.Arch) // before anything is created
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	pod := Pod(spec)
	session := &Session{
		runner: r, pod: pod, node: spec.Node, helper: program, inside: spec.HasHelper, any: spec.AnyHelper,
	}
	timeout := r.StartTimeout
	if timeout <= 0 {
		timeout = defaultStartTimeout
	}
	// The cause tells our own limit from the caller's.
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
		// Nobody knows whether it was made: the answer, or only the wait for it, was lost.
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

// DryRun asks the API server whether it would take the pod: permissions, Pod Security, quota, policies. Its errors are
// Start's.
func (r *Runner) DryRun(ctx context.Context, spec Spec) error {
	if _, err := r.Helper(spec.Arch); err != nil {
		return err
	}
	if _, err := r.create(ctx, Pod(spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return fmt.Errorf("the debug pod would not be admitted: %w", err)
	}
	return nil
}

// create posts the pod. It tries again for a while what passes by itself.
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
				// The run's former one: its kubelet may take as long as ctx allows, as after an outage of the API
				// server.
				if giveUp.Before(time.Now()) && !told {
					told = true
					r.progress("waiting until the node has ended the former debug pod")
				}
				if stopped := pause(ctx, retryEvery); stopped != nil {
					return nil, &StartError{Reason: ReasonNameTaken, Err: stopped,
						Message: fmt.Sprintf("the node's kubelet has not ended the former debug pod %s/%s yet",
							pod.Namespace, pod.Name), Hint: "wait, and try again"}
				}
				continue
			}
			if existing != nil && existing.DeletionTimestamp == nil {
				return nil, &StartError{
					Reason:  ReasonNameTaken,
					Message: fmt.Sprintf("pod %s/%s exists, and is not this run's", pod.Namespace, pod.Name), Err: err,
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

// existing looks at the pod that has our name. It is ours when this run made it: client-go sends a request again when
// the connection broke, and so may find what its own first try made.
func (r *Runner) existing(ctx context.Context, pod *corev1.Pod) (existing *corev1.Pod, ours bool) {
	existing, err := r.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, false
	}
	ours = existing.DeletionTimestamp == nil && existing.Labels[LabelRun] == pod.Labels[LabelRun] &&
		existing.Labels[LabelManagedBy] == Name && existing.Spec.NodeName == pod.Spec.NodeName
	return existing, ours
}

// isRefusal reports whether the API server itself said no, so that there is certainly no pod.
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

// pause waits, or returns why ctx ended.
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
