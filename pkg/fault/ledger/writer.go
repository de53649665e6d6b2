package ledger

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
)

// writeTimeout limits one write to the ledger, including retries after conflicts. The write continues even if the
// caller's context is canceled, so that the caller learns whether it succeeded.
const writeTimeout = 15 * time.Second

// Writer changes one run. Its methods are safe for concurrent use. Changes that are saved during an update are combined
// in the next one, so that a run on many nodes needs few requests.
type Writer struct {
	store *Store

	mu      sync.Mutex
	stored  stored // last state confirmed by the API server
	queue   []*save
	writing bool
}

type stored struct {
	cm  *corev1.ConfigMap
	run Run
}

type save struct {
	ctx    context.Context //nolint:containedctx // a queued request carries its context
	change func(*Run) error
	done   chan error
}

func (s *Store) writer(cm *corev1.ConfigMap) (*Writer, error) {
	run, err := decode(cm)
	if err != nil {
		return nil, err
	}
	return &Writer{store: s, stored: stored{cm, run}}, nil
}

// Run returns the run as last stored.
func (w *Writer) Run() Run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stored.run.Clone()
}

// Save changes the run and returns after the ledger has stored it. After an error, it is unknown whether the change was
// stored. Save may call change several times, each time with a newer record. If change fails, only this call of Save
// fails. The error is ErrClosed if the run is closed, possibly by another client.
func (w *Writer) Save(ctx context.Context, change func(*Run) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write the record of run %s: %w", w.id(), context.Cause(ctx))
	}
	s := &save{ctx: ctx, change: change, done: make(chan error, 1)}
	w.mu.Lock()
	w.queue = append(w.queue, s)
	if !w.writing {
		w.writing = true
		go w.write()
	}
	w.mu.Unlock()

	select {
	case err := <-s.done:
		return err
	case <-ctx.Done():
	}
	if w.withdraw(s) {
		return fmt.Errorf("write the record of run %s: %w", w.id(), context.Cause(ctx))
	}
	return <-s.done // a write is in progress and limited by writeTimeout
}

// withdraw removes a save from the queue. It returns false if the save is no longer in the queue.
func (w *Writer) withdraw(s *save) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.queue, s)
	if i < 0 {
		return false
	}
	w.queue = slices.Delete(w.queue, i, i+1)
	return true
}

// write processes the queue until it is empty.
func (w *Writer) write() {
	for {
		w.mu.Lock()
		batch := w.queue
		w.queue = nil
		if len(batch) == 0 {
			w.writing = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()

		ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].ctx), writeTimeout)
		w.commit(ctx, batch)
		cancel()
	}
}

// commit stores the changes of a batch with one update, and sends each save its result.
func (w *Writer) commit(ctx context.Context, batch []*save) {
	// With many concurrent writers, the four attempts of client-go's DefaultBackoff are not sufficient.
	backoff := wait.Backoff{Steps: 12, Duration: 5 * time.Millisecond, Factor: 1.7, Jitter: 0.5, Cap: time.Second}
	var refused map[*save]error
	reread := false
	err := retry.RetryOnConflict(backoff, func() error {
		current, err := w.current(ctx, reread)
		if err != nil {
			return err
		}
		reread = true
		var next Run
		next, refused = apply(current.run, batch)
		if len(refused) == len(batch) {
			return nil
		}
		cm, err := encode(next, current.cm, limitOf(next))
		if err != nil {
			return err
		}
		cm, err = w.store.configMaps().Update(ctx, cm, metav1.UpdateOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return &NotFoundError{ID: next.ID, Namespace: w.store.Namespace}
		case apierrors.IsConflict(err):
			return err
		case err != nil:
			return fmt.Errorf("write the record of run %s: %w", next.ID, err)
		}
		w.mu.Lock()
		w.stored = stored{cm, next}
		w.mu.Unlock()
		return nil
	})
	if apierrors.IsConflict(err) {
		err = fmt.Errorf("write the record of run %s: too many concurrent changes: %w", w.id(), err)
	}
	var tooLarge *TooLargeError
	if errors.As(err, &tooLarge) && len(batch) > 1 {
		for _, one := range batch { // one of the changes makes the record too large; store the others
			w.commit(ctx, []*save{one})
		}
		return
	}
	for _, s := range batch {
		if reason, ok := refused[s]; ok {
			s.done <- reason
		} else {
			s.done <- err
		}
	}
}

// current returns the record to change: the cached one, or the stored one after a conflict.
func (w *Writer) current(ctx context.Context, reread bool) (stored, error) {
	if !reread {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.stored, nil
	}
	cm, err := w.store.read(ctx, w.id())
	if err != nil {
		return stored{}, err
	}
	run, err := decode(cm)
	if err != nil {
		return stored{}, err
	}
	now := stored{cm, run}
	w.mu.Lock()
	w.stored = now
	w.mu.Unlock()
	return now, nil
}

// apply returns the run with all successful changes, and the errors of the failed ones.
func apply(run Run, batch []*save) (Run, map[*save]error) {
	refused := map[*save]error{}
	for {
		next := run.Clone()
		failed := false
		for _, s := range batch {
			if refused[s] != nil {
				continue
			}
			if err := applyOne(run, &next, s.change); err != nil {
				refused[s] = fmt.Errorf("write the record of run %s: %w", run.ID, err)
				failed = true
				break
			}
		}
		if !failed {
			return next, refused
		}
	}
}

// applyOne applies one change. It recovers from panics, because other saves wait for this goroutine.
func applyOne(run Run, next *Run, change func(*Run) error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
		}
	}()
	if run.IsClosed() {
		return ErrClosed
	}
	return change(next)
}

func (w *Writer) id() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stored.run.ID
}
