package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// DefaultNamespace is the default namespace for records, locks, and debug pods.
const DefaultNamespace = "gpu-fault"

// Store stores records and locks in one namespace of a cluster.
type Store struct {
	Client    kubernetes.Interface
	Namespace string
	// Clock returns the current time. nil means time.Now.
	Clock func() time.Time
	// Random is the source of randomness for run IDs. nil means crypto/rand.
	Random io.Reader

	marked atomic.Bool // whether the namespace is known to be marked as a ledger
}

// New returns a store that uses the system clock.
func New(client kubernetes.Interface, namespace string) *Store {
	return &Store{Client: client, Namespace: namespace}
}

// withdrawTimeout is short because the API server has just failed and the user is waiting.
const withdrawTimeout = 5 * time.Second

// ErrClosed means that a run is closed and was not changed.
var ErrClosed = errors.New("the run is closed")

// NotFoundError means that the run does not exist in the ledger.
type NotFoundError struct{ ID, Namespace string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("run %s not found in the ledger (namespace %s); see: %s", e.ID, e.Namespace,
		command(e.Namespace, "list", "--all"))
}

// Command returns a command line of this tool with the flags for this ledger, for use in messages.
func (s *Store) Command(words ...string) string { return command(s.Namespace, words...) }

func command(namespace string, words ...string) string {
	text := "kubectl gpu-fault " + strings.Join(words, " ")
	if namespace != DefaultNamespace {
		text += " --ledger-namespace " + namespace
	}
	return text
}

// NewID returns an ID for a new run.
func (s *Store) NewID(fault string) (string, error) {
	random := s.Random
	if random == nil {
		random = rand.Reader
	}
	return NewID(fault, random)
}

// idAttempts is the number of IDs that Create tries. Two consecutive collisions do not happen by chance.
const idAttempts = 3

// Create writes a new record and returns a Writer for it. It generates an ID if the run has none. After an error, it
// tries to delete the record. apierrors.IsNotFound reports whether the error means that the namespace does not exist;
// see EnsureNamespace.
func (s *Store) Create(ctx context.Context, run Run) (*Writer, error) {
	if run.Created.IsZero() {
		run.Created = s.Now()
	}
	given := run.ID != ""
	for attempt := 1; ; attempt++ {
		if !given {
			id, err := s.NewID(run.Fault)
			if err != nil {
				return nil, err
			}
			run.ID = id
		}
		cm, err := encode(run, nil, MaxStored-max(roomToEnd, resultSize*len(run.Steps)))
		if err != nil {
			return nil, err
		}
		sent := cm
		cm, err = s.configMaps().Create(ctx, sent, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) && !given && attempt < idAttempts {
			continue
		}
		if err != nil {
			s.withdraw(ctx, sent)
			return nil, fmt.Errorf("write the record of run %s: %w", run.ID, err)
		}
		return s.writer(cm)
	}
}

// withdraw deletes a record after Create failed, in case only the response was lost. It is best effort: a record of a
// run that never started does no harm.
func (s *Store) withdraw(ctx context.Context, sent *corev1.ConfigMap) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	cm, err := s.configMaps().Get(ctx, sent.Name, metav1.GetOptions{})
	// A different checksum means that this is an older record with the same name.
	if err == nil && cm.Annotations[AnnotationSum] == sent.Annotations[AnnotationSum] {
		_ = s.configMaps().Delete(ctx, cm.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &cm.UID}})
	}
}

// Get returns a run. The error is a *NotFoundError if the run does not exist, and an *UnmarkedError if the namespace is
// not marked as a ledger. It wraps ErrNewer if the record was written by a newer version of this tool.
func (s *Store) Get(ctx context.Context, id string) (Run, error) {
	cm, err := s.read(ctx, id)
	if err != nil {
		return Run{}, err
	}
	return decode(cm)
}

// Open reads a run and returns a Writer for it.
func (s *Store) Open(ctx context.Context, id string) (*Writer, error) {
	cm, err := s.read(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.writer(cm)
}

// Update changes a run and returns the stored result. If another client changes the run at the same time, Update calls
// change again with the newer record, so change must set only the fields that it changes. The error is ErrClosed if the
// run is closed.
func (s *Store) Update(ctx context.Context, id string, change func(*Run) error) (Run, error) {
	w, err := s.Open(ctx, id)
	if err != nil {
		return Run{}, err
	}
	if err := w.Save(ctx, change); err != nil {
		return Run{}, err
	}
	return w.Run(), nil
}

// Close closes a run with the given phase and message. It does nothing if the run is already closed.
func (s *Store) Close(ctx context.Context, id string, phase Phase, message string) error {
	_, err := s.Update(ctx, id, func(run *Run) error {
		run.Phase, run.Message, run.Closed = phase, message, s.Now()
		return nil
	})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

func (s *Store) read(ctx context.Context, id string) (*corev1.ConfigMap, error) {
	if err := s.CheckNamespace(ctx); err != nil {
		return nil, err
	}
	cm, err := s.configMaps().Get(ctx, id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, &NotFoundError{ID: id, Namespace: s.Namespace}
	case err != nil:
		return nil, fmt.Errorf("read the record of run %s: %w", id, err)
	}
	return cm, nil
}

func (s *Store) configMaps() typedcorev1.ConfigMapInterface {
	return s.Client.CoreV1().ConfigMaps(s.Namespace)
}

// Now returns the wall clock time for records. It strips the monotonic clock reading, because the monotonic clock
// pauses while a computer sleeps, and deadlines must not.
func (s *Store) Now() time.Time {
	clock := s.Clock
	if clock == nil {
		clock = time.Now
	}
	return clock().UTC().Truncate(time.Millisecond)
}
