package ledger

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HeartbeatEvery is how often the client of a run that is in its way renews one of its locks.
const HeartbeatEvery = 2 * time.Second

// silence is how many heartbeats a client may miss before it counts as dead. One that lives after all does no harm:
// once its run was taken over it cannot record, and so not make, another change.
const silence = 4

// Heartbeat renews a lock, and so tells that the run's client lives. It returns the lock as it is now.
func (s *Store) Heartbeat(ctx context.Context, lock Lock) (Lock, error) {
	lease, err := s.leases().Get(ctx, lock.name, metav1.GetOptions{})
	if err != nil {
		return lock, fmt.Errorf("renew the lock of %s: %w", lock.Target, err)
	}
	if now := lockOf(lease); now.Holder != lock.Holder {
		return lock, fmt.Errorf("renew the lock of %s: run %s holds it now", lock.Target, now.Holder)
	}
	now := metav1.NewMicroTime(s.Now())
	lease.Spec.RenewTime = &now
	if lease, err = s.leases().Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return lock, fmt.Errorf("renew the lock of %s: %w", lock.Target, err)
	}
	return *lockOf(lease), nil
}

// Lives watches whether the client of a run does anything: renews a lock, or writes the record. It returns at once when
// it does, and after some missed heartbeats when it does not. No clocks are compared, as those of two machines may
// differ.
func (s *Store) Lives(ctx context.Context, id string, every time.Duration) (bool, error) {
	first, err := s.pulse(ctx, id)
	if err != nil {
		return false, err
	}
	for range 2 * silence {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(every / 2):
		}
		now, err := s.pulse(ctx, id)
		if err != nil {
			return false, err
		}
		if !maps.Equal(first, now) {
			return true, nil
		}
	}
	return false, nil
}

// pulse returns what changes when a run's client lives.
func (s *Store) pulse(ctx context.Context, id string) (map[string]string, error) {
	record, err := s.read(ctx, id)
	if err != nil {
		return nil, err
	}
	versions := map[string]string{"record": record.ResourceVersion}
	locks, err := s.LocksOf(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, lock := range locks {
		versions[lock.name] = lock.resourceVersion
	}
	return versions, nil
}
