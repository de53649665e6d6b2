package debugpod

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// closeTimeout is how long Close may take.
	closeTimeout = 15 * time.Second
	// uncertainFor is how long a pod whose creation got lost is looked for: the request may still be on its way.
	uncertainFor = 2 * time.Second
)

// Session is a debug pod that runs. Its methods may be called from several goroutines; Do works on one request at a
// time.
type Session struct {
	runner *Runner
	pod    *corev1.Pod
	node   string
	helper []byte
	// inside: the image has the helper, so that it need not be brought.
	inside, any bool // any: whichever helper it is
	// uncertain: nobody knows whether the pod was made.
	uncertain bool

	doing    sync.Mutex
	uploaded bool

	closing sync.Mutex
	closed  bool
}

// Pod returns the debug pod as it was when it began to run.
func (s *Session) Pod() *corev1.Pod { return s.pod }

// Close deletes the pod. It does so also when ctx has ended, and may be called again. The pod is then gone within a
// second or two; Close does not wait for that. Its error has the command that deletes the pod by hand.
func (s *Session) Close(ctx context.Context) error {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := s.delete(ctx); err != nil {
		return fmt.Errorf("debug pod left on node %s: %w; delete it with: kubectl delete pod %s -n %s", s.node, err,
			s.pod.Name, s.pod.Namespace)
	}
	s.closed = true
	return nil
}

func (s *Session) delete(ctx context.Context) error {
	options := metav1.DeleteOptions{}
	if s.pod.UID != "" { // never somebody else's pod that has taken the name
		options.Preconditions = &metav1.Preconditions{UID: &s.pod.UID}
	}
	for until := time.Now().Add(uncertainFor); ; {
		err := s.runner.Client.CoreV1().Pods(s.pod.Namespace).Delete(ctx, s.pod.Name, options)
		switch {
		case err == nil, apierrors.IsConflict(err): // a conflict: the UID is another's, so ours is gone
			return nil
		case apierrors.IsNotFound(err):
			if !s.uncertain || time.Now().After(until) {
				return nil
			}
		case isFinal(err):
			return err
		}
		if stopped := pause(ctx, retryEvery); stopped != nil {
			return err
		}
	}
}

// isFinal reports whether asking again is of no use.
func isFinal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}
