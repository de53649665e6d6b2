package exercise

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// historyLimit is the number of completed exercises to keep.
const historyLimit = 20

// updateAttempts is the number of attempts to update an exercise that other clients are changing at the same time.
const updateAttempts = 8

func (l *Lab) secrets() typedcorev1.SecretInterface {
	return l.Client.CoreV1().Secrets(l.LedgerNamespace)
}

// create stores a new exercise with its scenario. It fails if the exercise already exists, because a run has only one
// exercise.
func (l *Lab) create(ctx context.Context, e *Exercise, r *scenario.Resolved) error {
	secret, err := encode(e, nil)
	if err != nil {
		return err
	}
	if secret.Data[keyScenario], err = encodeScenario(r); err != nil {
		return err
	}
	stored, err := l.secrets().Create(ctx, secret, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("store exercise %s: %w", e.ID, err)
	}
	e.secret = versionOf(stored)
	e.seals = map[string]string{sealExercise: e.seal(), sealScenario: sealOf(secret.Data[keyScenario])}
	return nil
}

// read reads an exercise.
func (l *Lab) read(ctx context.Context, id string) (*Exercise, *corev1.Secret, error) {
	secret, err := l.secrets().Get(ctx, id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, &NotFoundError{
			ID: id, Namespace: l.LedgerNamespace, list: l.Session.Ledger.Command("scenario", "status"),
		}
	case err != nil:
		return nil, nil, fmt.Errorf("read exercise %s: %w", id, err)
	}
	e, err := decode(secret)
	return e, secret, err
}

// load reads an exercise and its scenario.
func (l *Lab) load(ctx context.Context, id string) (*Exercise, *scenario.Resolved, error) {
	e, secret, err := l.read(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	r, err := decodeScenario(secret)
	return e, r, err
}

// update changes an exercise and returns it as stored. If another trainer changed it in the meantime, update
// calls change again with the newer version; change must check the phase itself.
func (l *Lab) update(ctx context.Context, id string, change func(*Exercise) error) (*Exercise, error) {
	for range updateAttempts {
		e, secret, err := l.read(ctx, id)
		if err != nil {
			return nil, err
		}
		if err := change(e); err != nil {
			return nil, err
		}
		next, err := encode(e, secret)
		if err != nil {
			return nil, err
		}
		stored, err := l.secrets().Update(ctx, next, metav1.UpdateOptions{}) // the resourceVersion is the precondition
		switch {
		case err == nil:
			e.secret = versionOf(stored)
			return e, nil
		case apierrors.IsNotFound(err):
			return nil, &NotFoundError{
				ID: id, Namespace: l.LedgerNamespace, list: l.Session.Ledger.Command("scenario", "status"),
			}
		case !apierrors.IsConflict(err):
			return nil, fmt.Errorf("store exercise %s: %w", id, err)
		}
	}
	return nil, fmt.Errorf("store exercise %s: too many conflicting changes; try again", id)
}

// List returns all exercises, including completed ones, newest first. It skips Secrets that cannot be read and reports
// them to Progress.
func (l *Lab) List(ctx context.Context) ([]Exercise, error) {
	secrets, err := l.secrets().List(ctx, metav1.ListOptions{LabelSelector: labelKind + "=" + kindExercise})
	if err != nil {
		return nil, fmt.Errorf("list exercises in namespace %s: %w", l.LedgerNamespace, err)
	}
	var all []Exercise
	for i := range secrets.Items {
		e, err := decode(&secrets.Items[i])
		if err != nil {
			l.say("%v", err)
			continue
		}
		all = append(all, *e)
	}
	sorting.Func(all, func(a, b Exercise) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all, nil
}

// Get returns an exercise. If the ID is empty, it returns the only running one. The error is a *NotFoundError
// or an *AmbiguousError.
func (l *Lab) Get(ctx context.Context, id string) (*Exercise, error) {
	if id != "" {
		e, _, err := l.read(ctx, id)
		return e, err
	}
	all, err := l.List(ctx)
	if err != nil {
		return nil, err
	}
	running := slices.DeleteFunc(all, func(e Exercise) bool { return !e.Running() })
	switch len(running) {
	case 0:
		return nil, &NotFoundError{Namespace: l.LedgerNamespace, list: l.Session.Ledger.Command("scenario", "status")}
	case 1:
		return &running[0], nil
	}
	return nil, &AmbiguousError{Running: running}
}

// pick returns id, or the ID of the only running exercise if id is empty.
func (l *Lab) pick(ctx context.Context, id string) (string, error) {
	if id != "" {
		return id, nil
	}
	e, err := l.Get(ctx, "")
	if err != nil {
		return "", err
	}
	return e.ID, nil
}

// Names of the snapshots of an exercise: before any change, and at handover.
const (
	snapBefore = "before"
	snapBegin  = "begin"
)

// keep stores a snapshot of an exercise in as many Secrets as needed, and returns their number.
func (l *Lab) keep(ctx context.Context, e *Exercise, name string, snapshot *baseline.Baseline) (int, error) {
	parts, err := snapshot.Encode()
	if err != nil {
		return 0, fmt.Errorf("store the snapshot of the cluster: %w", err)
	}
	for i, part := range parts {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: chunk(e.ID, name, i), Labels: labelsOf(e.ID, kindSnapshot)},
			Immutable:  new(true), Data: map[string][]byte{keyChunk: part},
		}
		if _, err := l.secrets().Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return 0, fmt.Errorf("store the snapshot of the cluster, part %d of %d: %w", i+1, len(parts), err)
		}
	}
	e.seals[name] = sealOf(parts...)
	return len(parts), nil
}

// snapshot reads a snapshot, or returns nil if it no longer exists.
func (l *Lab) snapshot(ctx context.Context, e *Exercise, name string) (*baseline.Baseline, error) {
	n := e.Snapshots[name]
	if n == 0 {
		return nil, nil
	}
	parts := make([][]byte, n)
	for i := range parts {
		secret, err := l.secrets().Get(ctx, chunk(e.ID, name, i), metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the snapshot of the cluster, part %d of %d: %w", i+1, n, err)
		}
		parts[i] = secret.Data[keyChunk]
	}
	e.seals[name] = sealOf(parts...)
	snapshot, err := baseline.Decode(parts)
	if err != nil {
		return nil, fmt.Errorf("read the snapshot of the cluster: %w", err)
	}
	return snapshot, nil
}

func chunk(id, name string, i int) string { return fmt.Sprintf("%s-%s-%d", id, name, i) }

// forget deletes the snapshots of a completed exercise.
func (l *Lab) forget(ctx context.Context, id string) error {
	secrets, err := l.secrets().List(ctx,
		metav1.ListOptions{LabelSelector: labelKind + "=" + kindSnapshot + "," + ledger.LabelRun + "=" + id})
	if err != nil {
		return fmt.Errorf("delete snapshots of exercise %s: %w", id, err)
	}
	for _, secret := range secrets.Items {
		if err := l.secrets().Delete(ctx, secret.Name, metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			return fmt.Errorf("delete snapshots of exercise %s: %w", id, err)
		}
	}
	return nil
}

// prune deletes the oldest completed exercises beyond historyLimit.
func (l *Lab) prune(ctx context.Context) error {
	all, err := l.List(ctx)
	if err != nil {
		return err
	}
	over := slices.DeleteFunc(all, Exercise.Running)
	for i := historyLimit; i < len(over); i++ {
		uid := types.UID(over[i].secret.uid)
		err := l.secrets().Delete(ctx, over[i].ID,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete exercise %s: %w", over[i].ID, err)
		}
	}
	return nil
}

// cleanupTimeout limits the time for updating records after the trainer pressed Ctrl-C.
const cleanupTimeout = 30 * time.Second

// outlive returns a copy of ctx that is not canceled when ctx is canceled, for cleanup after the trainer interrupted
// the command.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
}
