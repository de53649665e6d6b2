package debugpod

import (
	"context"
	"fmt"
	"hash"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// closeTimeout is the timeout of Close.
	closeTimeout = 15 * time.Second
	// uncertainFor is the time for which Close looks for a pod whose creation was not confirmed, because the API server
	// may still be processing the request.
	uncertainFor = 2 * time.Second
)

// Session is a running debug pod. Its methods are safe for concurrent use; Do processes one request at a time.
type Session struct {
	runner *Runner
	pod    *corev1.Pod
	node   string
	helper []byte
	// sum returns the state of the hash after hashing the helper.
	sum func() hash.Cloner
	// inside means that the image contains the helper, so it does not have to be uploaded. any means that the helper of
	// any build is accepted.
	inside, any bool
	// uncertain means that the creation of the pod was not confirmed.
	uncertain bool

	doing    sync.Mutex
	uploaded bool

	closing sync.Mutex
	closed  bool
}

// Pod returns the debug pod as it was when it started running.
func (s *Session) Pod() *corev1.Pod { return s.pod }

// Close deletes the pod. It works after ctx has ended, and may be called repeatedly. It does not wait for the pod to
// terminate, which takes a second or two. Its error contains the command that deletes the pod manually.
func (s *Session) Close(ctx context.Context) error {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := s.delete(ctx); err != nil {
		return fmt.Errorf("the debug pod on node %s was not deleted: %w; to delete it, run: kubectl delete pod %s -n %s", s.node, err,
			s.pod.Name, s.pod.Namespace)
	}
	s.closed = true
	return nil
}

func (s *Session) delete(ctx context.Context) error {
	options := metav1.DeleteOptions{}
	if s.pod.UID != "" { // do not delete another pod with the same name
		options.Preconditions = &metav1.Preconditions{UID: &s.pod.UID}
	}
	for until := time.Now().Add(uncertainFor); ; {
		err := s.runner.Client.CoreV1().Pods(s.pod.Namespace).Delete(ctx, s.pod.Name, options)
		switch {
		case err == nil, apierrors.IsConflict(err): // the UID differs, so the pod was already deleted
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

// isFinal reports whether retrying the request is pointless.
func isFinal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}
