package collect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lister lists one page.
type lister[T any] func(context.Context, metav1.ListOptions) (page[T], error)

// page is one page of a list. next is the token for the next page, or empty on the last page. left is the number of
// remaining objects, or 0 if the API server does not report it.
type page[T any] struct {
	items []T
	next  string
	left  int64
}

// paged converts a client's List to a lister.
func paged[T any, L metav1.ListInterface](
	list func(context.Context, metav1.ListOptions) (L, error), items func(L) []T,
) lister[T] {
	return func(ctx context.Context, options metav1.ListOptions) (page[T], error) {
		all, err := list(ctx, options)
		if err != nil {
			return page[T]{}, err
		}
		p := page[T]{items: items(all), next: all.GetContinue()}
		if left := all.GetRemainingItemCount(); left != nil {
			p.left = *left
		}
		return p, nil
	}
}

// listed lists all objects and keeps those for which keep returns true; keep may change the object. It records
// an error in Missing.
func listed[T any](ctx context.Context, c *collector, what string, list lister[T], keep func(*T) bool) []T {
	kept, err := all(ctx, metav1.ListOptions{Limit: pageSize}, list, keep)
	if err != nil && ctx.Err() == nil {
		c.mu.Lock()
		c.refused[what] = err
		c.mu.Unlock()
		c.missing(what, reason(err))
	}
	return kept
}

// restarts is the number of times that an expired list is restarted before it is requested in one piece.
const restarts = 2

// all lists all pages. If the continue token has expired (410 Gone), it continues with the API server's new token, or
// restarts the list.
func all[T any](ctx context.Context, options metav1.ListOptions, list lister[T], keep func(*T) bool) ([]T, error) {
	var kept []T
	for begun := 0; ; {
		page, err := onePage(ctx, options, list)
		switch {
		case err == nil:
		case options.Continue != "" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)):
			if options.Continue = freshToken(err, options.Continue); options.Continue == "" {
				kept = nil
				if begun++; begun > restarts {
					options.Limit = 0
				}
			}
			continue
		default:
			return nil, err
		}
		first := kept == nil
		for i := range page.items {
			if keep(&page.items[i]) {
				kept = append(kept, page.items[i])
			}
		}
		if first {
			kept = slices.Grow(kept, room(page, len(kept)))
		}
		if page.next == "" {
			return kept, nil
		}
		options.Continue = page.next
	}
}

// roomLimit is the maximum number of objects for which memory is allocated in advance, in case the count is wrong.
const roomLimit = 100_000

// room returns the estimated number of objects to keep from later pages, based on the share kept from the first page.
// Growing a list of 50,000 pods step by step would copy them five times.
func room[T any](first page[T], kept int) int {
	if len(first.items) == 0 {
		return 0
	}
	return int(max(0, min(first.left, roomLimit))) * kept / len(first.items)
}

func onePage[T any](ctx context.Context, options metav1.ListOptions, list lister[T]) (page[T], error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	return list(ctx, options)
}

// freshToken returns the continue token that the API server offers, or "" if it offers none or offers the one that it
// has just rejected.
func freshToken(err error, refused string) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Continue == refused {
		return ""
	}
	return status.Status().Continue
}

// reason returns the reason why evidence could not be collected.
func reason(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("forbidden: %v", err)
	case apierrors.IsTooManyRequests(err):
		return fmt.Sprintf("the API server is overloaded; try again later: %v", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return fmt.Sprintf("timed out; try again later: %v", err)
	}
	return err.Error()
}
