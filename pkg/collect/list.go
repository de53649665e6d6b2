package collect

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lister lists one page.
type lister[T any] func(context.Context, metav1.ListOptions) (items []T, next string, err error)

// paged makes a lister of a client's List.
func paged[T any, L metav1.ListInterface](
	list func(context.Context, metav1.ListOptions) (L, error), items func(L) []T,
) lister[T] {
	return func(ctx context.Context, options metav1.ListOptions) ([]T, string, error) {
		page, err := list(ctx, options)
		if err != nil {
			return nil, "", err
		}
		return items(page), page.GetContinue(), nil
	}
}

// listed lists all and keeps what keep wants; keep may change the object. An error becomes an entry in Missing.
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

// restarts is how often a list whose place was lost is begun anew, before it is asked for in one piece.
const restarts = 2

// all goes through the pages. The place in a long list is lost when the API server has forgotten its state (410 Gone):
// then it offers to go on with the present state, or the list is begun anew.
func all[T any](ctx context.Context, options metav1.ListOptions, list lister[T], keep func(*T) bool) ([]T, error) {
	var kept []T
	for begun := 0; ; {
		items, next, err := onePage(ctx, options, list)
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
		for i := range items {
			if keep(&items[i]) {
				kept = append(kept, items[i])
			}
		}
		if next == "" {
			return kept, nil
		}
		options.Continue = next
	}
}

func onePage[T any](ctx context.Context, options metav1.ListOptions, list lister[T]) ([]T, string, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	return list(ctx, options)
}

// freshToken returns the place at which the API server offers to go on; empty when it offers none, or the one that it
// has just refused.
func freshToken(err error, refused string) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Continue == refused {
		return ""
	}
	return status.Status().Continue
}

// reason says for people why evidence could not be had.
func reason(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("forbidden: %v", err)
	case apierrors.IsTooManyRequests(err):
		return fmt.Sprintf("the API server has too much to do, try again later: %v", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return fmt.Sprintf("no answer in time, try again later: %v", err)
	}
	return err.Error()
}
