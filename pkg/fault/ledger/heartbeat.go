package ledger

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HeartbeatEvery is the interval at which the client of a run in progress renews one of its locks.
const HeartbeatEvery = 2 * time.Second

// silence is the number of missed heartbeats after which a client is considered dead. If the client is in fact still
// running, it does no harm: after another client has taken over the run, the first client cannot record a change, and
// therefore cannot make one.
const silence = 4

// Heartbeat renews a lock to show that the run's client is running. It returns the updated lock.
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

// Lives reports whether the client of a run is running, which means that it renews a lock or writes the record. It
// returns as soon as the client does either, or after several missed heartbeats. It does not compare clocks, because
// those of two machines may differ.
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

// pulse returns the versions of the objects that a running client of the run updates.
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
