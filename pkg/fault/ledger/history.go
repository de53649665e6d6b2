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
)

// Scope picks runs.
type Scope string

// The scopes of List.
const (
	Active Scope = "active" // not closed
	All    Scope = "all"    // with the history
)

// Listing is what List found.
type Listing struct {
	Runs []Run // the newest first
	// Unreadable are records that this version does not understand, or that somebody damaged.
	Unreadable []Unreadable
	// Unmarked are, for a Store of all namespaces, those with records that are not marked as ledgers. Their records are
	// left out.
	Unmarked []string
}

// Unreadable is a record that could not be read.
type Unreadable struct {
	Name      string // of the ConfigMap
	Namespace string
	Err       error // wraps ErrNewer when a newer version made it, ErrTampered when somebody edited it
}

// pageSize keeps a page of records below what an API server likes to send at once: a record has up to 1 MiB.
const pageSize = 50

// List reads the runs of a scope. A record that cannot be read does not make it fail. The error is an *UnmarkedError
// when the Store's namespace is not marked as a ledger. A Store of all namespaces lists the ledgers among them.
func (s *Store) List(ctx context.Context, scope Scope) (Listing, error) {
	if s.Namespace == metav1.NamespaceAll {
		found, err := s.records(ctx, scope, "in all namespaces")
		if err != nil {
			return Listing{}, err
		}
		return s.onlyLedgers(ctx, found)
	}
	// Both at once: every command lists. The namespace's error counts first, so that the same trouble always reads the
	// same.
	marked := make(chan error, 1)
	go func() { marked <- s.CheckNamespace(ctx) }()
	found, err := s.records(ctx, scope, "in namespace "+s.Namespace)
	if err := cmp.Or(<-marked, err); err != nil {
		return Listing{}, err
	}
	return found, nil
}

// onlyLedgers leaves out the records in namespaces that are not marked as ledgers: anyone who works there may have
// written them.
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

func (s *Store) records(ctx context.Context, scope Scope, where string) (Listing, error) {
	selector := LabelManagedBy + "=" + ManagedBy + "," + LabelFault
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
	slices.SortStableFunc(found.Runs, func(a, b Run) int { return b.Created.Compare(a.Created) })
	return found, nil
}

// HistoryLimit is how many settled runs are kept. With the usual 3 KiB each that is a few hundred KiB in etcd and one
// page or two for `list --all`, and a week of nightly tests over ten nodes can still be looked up.
const HistoryLimit = 100

// Prune deletes the oldest settled runs until keep of them are left, and returns how many it deleted. It looks only at
// a count, a single small request, while there cannot be too many.
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
	var failed []error
	for _, run := range all.Runs {
		// A proven run that cannot be undone was not closed by anybody; before its deadline its client may still be at
		// it.
		if !run.Settled() || !run.IsClosed() && s.Now().Before(run.Deadline.Add(ClockSkew)) {
			continue
		}
		if settled++; settled <= keep {
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
			break // and so are the others
		}
	}
	return deleted, errors.Join(failed...)
}

// fewerThan reports whether the namespace has at most n ConfigMaps, by the API server's own count of what it left out
// of a page.
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
		return false, nil // not counted: look
	}
	return count <= int64(n), nil
}
