package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// Lock is a target that a run has locked with a Lease in the ledger namespace.
type Lock struct {
	Target Target
	Holder string // ID of the run
	Since  time.Time

	name            string
	uid             types.UID
	resourceVersion string
	expires         time.Time
}

// LockedError means that another run holds the lock of a target.
type LockedError struct {
	Target Target
	Holder string // ID of the run
	Since  time.Time
	// Run is the holder's record, or nil if it could not be read.
	Run *Run
	Now time.Time

	// Err is the reason why the holder's record could not be read, or nil.
	Err error

	namespace string // ledger namespace
	lease     string
}

// Unwrap returns Err.
func (e *LockedError) Unwrap() error { return e.Err }

func (e *LockedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s is locked by run %s, whose record cannot be read: %v; if none of the run's changes is "+
			"in place, unlock with: kubectl delete lease %s -n %s",
			e.Target, e.Holder, e.Err, e.lease, e.namespace)
	}
	text := fmt.Sprintf("%s is locked by run %s", e.Target, e.Holder)
	if e.Run != nil {
		text += fmt.Sprintf(" (%s)", e.Run.Summary)
		if e.Run.By != "" {
			text += " of " + e.Run.By
		}
		if e.Run.From != "" {
			text += " on host " + e.Run.From
		}
	}
	if !e.Since.IsZero() {
		text += fmt.Sprintf(" since %s (%s ago)", e.Since.Format(time.RFC3339),
			max(0, e.Now.Sub(e.Since)).Round(time.Second))
	}
	if e.Run != nil && e.Run.InItsWay(e.Now) {
		return text + fmt.Sprintf("; the run may be in progress until %s; wait for it to finish, or revert it "+
			"afterwards with: %s",
			e.Run.Deadline.Format(time.RFC3339), command(e.namespace, "revert", e.Holder))
	}
	if e.Run != nil && e.Run.Expired(e.Now) {
		text += fmt.Sprintf("; the run expired at %s, but has not been confirmed as reverted",
			e.Run.Until.Format(time.RFC3339))
	}
	return text + "; revert it with: " + command(e.namespace, "revert", e.Holder)
}

// parallelLocks is the maximum number of concurrent lock requests.
const parallelLocks = 20

// lockAttempts is the number of attempts to take a lock whose holder changes during the attempt.
const lockAttempts = 5

// Lock locks all targets for the run, or none. It does not wait: the error is a *LockedError if another run holds a
// lock. Lock takes over the lock of a run that is closed or does not exist, or that is past its deadline and has
// nothing to undo on the target. A target with a change in place stays locked, so that changes never overlap.
func (s *Store) Lock(ctx context.Context, run Run, targets []Target) ([]Lock, error) {
	// All clients lock in the same order, so that if two runs want the same targets, one of them gets all of them.
	targets = slices.CompactFunc(slices.SortedFunc(slices.Values(targets), func(a, b Target) int {
		return cmp.Compare(lockName(a), lockName(b))
	}), Target.Same)
	locks, err := s.lockAll(ctx, run, targets)
	if err == nil {
		return locks, nil
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return nil, errors.Join(err, s.Unlock(cleanup, locks))
}

// fewLocks is the maximum number of locks to take one after another. If there are more, all except the first are taken
// in parallel. Because the first lock is always taken alone, two runs that want the same fleet cannot each get half of
// it.
const fewLocks = 10

// lockAll locks the targets, and stops at the first error. It returns the locks that the run holds, even after an
// error.
func (s *Store) lockAll(ctx context.Context, run Run, targets []Target) ([]Lock, error) {
	locks := make([]*Lock, len(targets))
	var group errgroup.Group
	group.SetLimit(1)
	if len(targets) > fewLocks {
		group.SetLimit(parallelLocks)
	}
	var failed atomic.Bool
	one := func(i int) error {
		if failed.Load() {
			return nil
		}
		lock, err := s.lock(ctx, run, targets[i])
		if err != nil {
			failed.Store(true)
		}
		if err != nil && !errors.As(err, new(*LockedError)) {
			// The request may have succeeded.
			cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
			defer cancel()
			if lost, _ := s.held(cleanup, targets[i]); lost != nil && lost.Holder == run.ID {
				lock = lost
			}
		}
		locks[i] = lock
		return err
	}
	var err error
	if len(targets) > 0 {
		err = one(0)
	}
	for i := 1; i < len(targets); i++ {
		group.Go(func() error { return one(i) })
	}
	err = cmp.Or(err, group.Wait())
	var held []Lock
	for _, lock := range locks {
		if lock != nil {
			held = append(held, *lock)
		}
	}
	return held, err
}

func (s *Store) lock(ctx context.Context, run Run, target Target) (*Lock, error) {
	for range lockAttempts {
		created, err := s.leases().Create(ctx, s.lease(run, target, nil), metav1.CreateOptions{})
		if err == nil {
			return lockOf(created), nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("lock %s: %w", target, err)
		}
		lease, err := s.leases().Get(ctx, lockName(target), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue // released in the meantime
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", target, err)
		}
		held := lockOf(lease)
		held.Target = target // do not use the annotation, which is for users and may have been edited
		if held.Holder == run.ID {
			return held, nil
		}
		if err := s.mayTakeOver(*held, s.holder(ctx, held.Holder)); err != nil {
			return nil, err
		}
		// The resourceVersion in the Lease is the precondition.
		taken, err := s.leases().Update(ctx, s.lease(run, target, lease), metav1.UpdateOptions{})
		if err == nil {
			return lockOf(taken), nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("take over the lock of %s: %w", target, err)
		}
	}
	return nil, fmt.Errorf("the holder of lock %s changed %d times in the meantime: try again", target, lockAttempts)
}

// holder is the run that holds a lock, or the reason why the run's record could not be read.
type holder struct {
	run Run
	err error
}

func (s *Store) holder(ctx context.Context, id string) holder {
	run, err := s.Get(ctx, id)
	return holder{run, err}
}

// mayTakeOver returns nil if the holder no longer needs the lock, and otherwise an error that describes the holder.
func (s *Store) mayTakeOver(lock Lock, by holder) error {
	locked := &LockedError{
		Target: lock.Target, Holder: lock.Holder, Since: lock.Since, Now: s.Now(), namespace: s.Namespace,
		lease: lock.name,
	}
	run, err := by.run, by.err
	switch {
	case lock.Holder == "" || errors.As(err, new(*NotFoundError)):
		return nil
	case errors.As(err, new(*unreadableError)):
		locked.Err = err
		return locked
	case err != nil:
		return fmt.Errorf("get the holder of the lock of %s: %w", lock.Target, err)
	}
	locked.Run = &run
	if run.IsClosed() {
		return nil
	}
	for _, step := range run.Pending() {
		if step.Target.Same(lock.Target) {
			return locked
		}
	}
	if s.Now().After(lock.expires.Add(ClockSkew)) {
		return nil
	}
	return locked
}

// Unlock releases locks. It skips a lock that another run has taken over.
func (s *Store) Unlock(ctx context.Context, locks []Lock) error {
	failed := make([]error, len(locks))
	var group errgroup.Group
	group.SetLimit(parallelLocks)
	for i, lock := range locks {
		group.Go(func() error { failed[i] = s.unlock(ctx, lock); return nil })
	}
	_ = group.Wait() // errors are in failed, by lock
	return errors.Join(failed...)
}

func (s *Store) unlock(ctx context.Context, lock Lock) error {
	for {
		err := s.leases().Delete(ctx, lock.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: &lock.uid, ResourceVersion: &lock.resourceVersion,
		}})
		if apierrors.IsConflict(err) { // the Lease was changed: check whether the run still holds it
			now, getErr := s.held(ctx, lock.Target)
			if getErr == nil && now != nil && now.Holder == lock.Holder {
				lock = *now
				continue
			}
			err = getErr
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("release the lock of %s: %w", lock.Target, err)
		}
		return nil
	}
}

// LocksOf returns the locks that a run holds.
func (s *Store) LocksOf(ctx context.Context, id string) ([]Lock, error) {
	return s.list(ctx, LabelRun+"="+id, func(lock Lock) bool { return lock.Holder == id })
}

// Refusals returns an error for every target in the ledger that cannot be locked now, with the holder of its lock. A
// record alone does not lock a target; otherwise, anyone with permission to write ConfigMaps could block a node. If the
// lock of a run was deleted, for example after its TTL expired, while its change is still in place, the target itself
// rejects another change: a node by its own record, and a workload by its pod template.
func (s *Store) Refusals(ctx context.Context) ([]*LockedError, error) {
	locks, err := s.list(ctx, LabelManagedBy+"="+ManagedBy, func(Lock) bool { return true })
	if err != nil {
		return nil, err
	}
	// Many locks have the same holder, whose record may be large.
	holders := map[string]holder{}
	var refusals []*LockedError
	for _, lock := range locks {
		if _, known := holders[lock.Holder]; !known {
			holders[lock.Holder] = s.holder(ctx, lock.Holder)
		}
		var locked *LockedError
		switch err := s.mayTakeOver(lock, holders[lock.Holder]); {
		case errors.As(err, &locked):
			refusals = append(refusals, locked)
		case err != nil:
			return nil, err
		}
	}
	return refusals, nil
}

func (s *Store) list(ctx context.Context, selector string, keep func(Lock) bool) ([]Lock, error) {
	leases, err := s.leases().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list the locks in namespace %s: %w", s.Namespace, err)
	}
	var locks []Lock
	for i := range leases.Items {
		if lock := lockOf(&leases.Items[i]); keep(*lock) {
			locks = append(locks, *lock)
		}
	}
	return locks, nil
}

// held returns the lock of a target, or nil if the target is not locked.
func (s *Store) held(ctx context.Context, target Target) (*Lock, error) {
	lease, err := s.leases().Get(ctx, lockName(target), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return lockOf(lease), nil
}

func (s *Store) leases() typedcoordinationv1.LeaseInterface {
	return s.Client.CoordinationV1().Leases(s.Namespace)
}

// lease returns the Lease that locks the target for the run. It reuses the Lease of the previous holder, if any.
func (s *Store) lease(run Run, target Target, former *coordinationv1.Lease) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	if former != nil {
		lease = former.DeepCopy()
		transitions := int32(1)
		// Anyone with permission to write Leases may have set a different value.
		if n := lease.Spec.LeaseTransitions; n != nil && *n > 0 && *n < math.MaxInt32 {
			transitions += *n
		}
		lease.Spec.LeaseTransitions = &transitions
	}
	lease.Name = lockName(target)
	lease.Labels = with(lease.Labels, map[string]string{LabelManagedBy: ManagedBy, LabelRun: run.ID})
	lease.Annotations = with(lease.Annotations, map[string]string{AnnotationTarget: path(target)})
	lease.OwnerReferences = nil
	if owner := run.OwnerReference(); owner != nil {
		lease.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	now := metav1.NewMicroTime(s.Now())
	seconds := int32(min(max(1, math.Ceil(run.Deadline.Sub(now.Time).Seconds())), math.MaxInt32))
	lease.Spec.HolderIdentity = &run.ID
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.AcquireTime, lease.Spec.RenewTime = &now, &now
	return lease
}

func lockOf(lease *coordinationv1.Lease) *Lock {
	lock := &Lock{
		Target: targetOf(lease.Annotations[AnnotationTarget]),
		name:   lease.Name, uid: lease.UID, resourceVersion: lease.ResourceVersion,
	}
	if lease.Spec.HolderIdentity != nil {
		lock.Holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.AcquireTime != nil {
		lock.Since = lease.Spec.AcquireTime.UTC()
	}
	if lease.Spec.RenewTime != nil && lease.Spec.LeaseDurationSeconds != nil {
		lock.expires = lease.Spec.RenewTime.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
	}
	return lock
}

// path formats a target as a string, such as node/gpu-1 or Deployment/prod/web. targetOf parses such a string.
func path(t Target) string {
	if t.Namespace == "" {
		return t.Kind + "/" + t.Name
	}
	return t.Kind + "/" + t.Namespace + "/" + t.Name
}

func targetOf(path string) Target {
	switch parts := strings.Split(path, "/"); len(parts) {
	case 2:
		return Target{Kind: parts[0], Name: parts[1]}
	case 3:
		return Target{Kind: parts[0], Namespace: parts[1], Name: parts[2]}
	}
	return Target{Name: path}
}
