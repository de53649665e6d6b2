package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Scope selects runs.
type Scope string

// Scopes of List.
const (
	Active Scope = "active" // runs that are not closed
	All    Scope = "all"    // all runs, including the history
)

// Listing is the result of List.
type Listing struct {
	Runs []Run // newest first
	// Unreadable lists the records that are corrupted, or in a format that this version does not support.
	Unreadable []Unreadable
	// Unmarked lists the namespaces that contain records but are not marked as ledgers. Their records are omitted. It
	// is set only for a Store for all namespaces.
	Unmarked []string
}

// Unreadable describes a record that could not be read.
type Unreadable struct {
	Name      string // name of the ConfigMap
	Namespace string
	Err       error // wraps ErrNewer or ErrTampered if applicable
}

// pageSize limits the size of a list response, because a record can be up to 1 MiB, and eight times as large when
// uncompressed.
const pageSize = 50

// List returns the runs in a scope. It continues if a record cannot be read. The error is an *UnmarkedError if the
// Store's namespace is not marked as a ledger. A Store for all namespaces lists the runs in all marked namespaces.
func (s *Store) List(ctx context.Context, scope Scope) (Listing, error) {
	if s.Namespace == metav1.NamespaceAll {
		found, err := s.records(ctx, scope, "in all namespaces", "")
		if err != nil {
			return Listing{}, err
		}
		return s.onlyLedgers(ctx, found)
	}
	// Send both requests in parallel, because every command lists runs. An error from the namespace check takes
	// precedence, so that the same problem always produces the same message.
	marked := make(chan error, 1)
	go func() { marked <- s.CheckNamespace(ctx) }()
	found, err := s.records(ctx, scope, "in namespace "+s.Namespace, "")
	if err := cmp.Or(<-marked, err); err != nil {
		return Listing{}, err
	}
	return found, nil
}

// onlyLedgers removes the records in namespaces that are not marked as ledgers, because anyone with access to such a
// namespace may have written them.
func (s *Store) onlyLedgers(ctx context.Context, found Listing) (Listing, error) {
	namespaces := map[string]bool{}
	for _, run := range found.Runs {
		namespaces[run.Namespace] = false
	}
	for _, bad := range found.Unreadable {
		namespaces[bad.Namespace] = false
	}
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		err := New(s.Client, namespace).CheckNamespace(ctx)
		if errors.As(err, new(*UnmarkedError)) {
			found.Unmarked = append(found.Unmarked, namespace)
		} else if err != nil {
			return Listing{}, err
		}
		namespaces[namespace] = err == nil
	}
	found.Runs = slices.DeleteFunc(found.Runs, func(run Run) bool { return !namespaces[run.Namespace] })
	found.Unreadable = slices.DeleteFunc(found.Unreadable,
		func(bad Unreadable) bool { return !namespaces[bad.Namespace] })
	return found, nil
}

// records reads the records in a scope. The parameter named where is part of the error message, and the parameter named
// only is an additional label selector, or empty.
func (s *Store) records(ctx context.Context, scope Scope, where, only string) (Listing, error) {
	selector := LabelManagedBy + "=" + ManagedBy + "," + LabelFault
	if only != "" {
		selector += "," + only
	}
	if scope == Active {
		selector += "," + LabelClosed + "!=true"
	}
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return s.configMaps().List(ctx, options)
	})
	pages.PageSize = pageSize
	pages.PageBufferSize = 1
	var found Listing
	err := pages.EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(object runtime.Object) error {
		cm, ok := object.(*corev1.ConfigMap)
		if !ok {
			return fmt.Errorf("the API server listed a %T", object)
		}
		switch run, err := decode(cm); {
		case err != nil:
			found.Unreadable = append(found.Unreadable, Unreadable{cm.Name, cm.Namespace, err})
		case scope == All || !run.IsClosed():
			found.Runs = append(found.Runs, run)
		}
		return nil
	})
	if err != nil {
		return Listing{}, fmt.Errorf("list the runs %s: %w", where, err)
	}
	sorting.StableFunc(found.Runs, func(a, b Run) int { return b.Created.Compare(a.Created) })
	return found, nil
}

// HistoryLimit is the number of settled runs to keep. At about 3 KiB each, they need a few hundred KiB in etcd and one
// or two pages in `list --all`. This covers a week of nightly tests on ten nodes.
const HistoryLimit = 100

// Prune deletes all settled runs except the newest ones, and returns the number of deleted runs. The parameter keep is
// the number of runs to keep. If the namespace cannot contain more runs than that, Prune sends only one small request
// to count the records.
func (s *Store) Prune(ctx context.Context, keep int) (int, error) {
	few, err := s.fewerThan(ctx, keep)
	if err != nil || few {
		return 0, err
	}
	all, err := s.List(ctx, All)
	if err != nil {
		return 0, err
	}
	deleted, settled := 0, 0
	kept := map[string]bool{} // fleets whose runs are kept; all runs of a fleet count as one
	var failed []error
	for _, run := range all.Runs {
		// A run in phase Proven that cannot be undone stays open. Until its deadline, its client may still be running.
		// Until its TTL expires, its Job exists, and users may list, watch and revert the run.
		if !run.Settled() || !run.IsClosed() && s.Now().Before(run.end().Add(ClockSkew)) {
			continue
		}
		if run.Fleet != "" && kept[run.Fleet] {
			continue
		}
		if settled++; settled <= keep {
			kept[run.Fleet] = true
			continue
		}
		err := s.configMaps().Delete(ctx, run.ID, metav1.DeleteOptions{})
		switch {
		case err == nil:
			deleted++
		case !apierrors.IsNotFound(err):
			failed = append(failed, fmt.Errorf("delete the record of run %s: %w", run.ID, err))
		}
		if apierrors.IsForbidden(err) {
			break // the user lacks permission to delete the others as well
		}
	}
	return deleted, errors.Join(failed...)
}

// fewerThan reports whether the namespace has at most n ConfigMaps. It uses the API server's count of the items that
// remain after a page.
func (s *Store) fewerThan(ctx context.Context, n int) (bool, error) {
	page, err := s.configMaps().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return false, fmt.Errorf("count the records in namespace %s: %w", s.Namespace, err)
	}
	count := int64(len(page.Items))
	switch {
	case page.RemainingItemCount != nil:
		count += *page.RemainingItemCount
	case page.Continue != "":
		return false, nil // the API server returned no count
	}
	return count <= int64(n), nil
}
