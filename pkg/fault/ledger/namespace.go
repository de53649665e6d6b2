package ledger

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// serviceAccountTimeout is the time to wait for the default service account in a new namespace. The account is usually
// created within 10 ms.
const serviceAccountTimeout = 15 * time.Second

// NamespaceObject returns the namespace that EnsureNamespace creates. Its labels allow privileged pods under Pod
// Security, because the debug pods are privileged.
func NamespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			LabelManagedBy:                       ManagedBy,
			LabelLedger:                          "true",
			"pod-security.kubernetes.io/enforce": "privileged",
		}},
	}
}

// UnmarkedError reports that a namespace is not marked as a ledger.
type UnmarkedError struct{ Namespace string }

func (e *UnmarkedError) Error() string {
	return fmt.Sprintf("namespace %q is not marked as a ledger (label %s=true), so its records are ignored: anyone with permissions in the namespace may "+
		"have written them", e.Namespace, LabelLedger)
}

// CheckNamespace returns an *UnmarkedError unless the namespace is marked as a ledger. It returns nil if the namespace
// does not exist, because then it has no records.
func (s *Store) CheckNamespace(ctx context.Context) error {
	if s.marked.Load() {
		return nil
	}
	namespace, err := s.Client.CoreV1().Namespaces().Get(ctx, s.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("check whether namespace %s is marked as a ledger: %w", s.Namespace, err)
	case !IsLedger(namespace):
		return &UnmarkedError{s.Namespace}
	}
	s.marked.Store(true)
	return nil
}

// IsLedger reports whether a namespace is marked as a ledger.
func IsLedger(namespace metav1.Object) bool { return namespace.GetLabels()[LabelLedger] == "true" }

// EnsureNamespace creates the namespace if it does not exist, and reports whether it created the namespace. The error
// is an *UnmarkedError if the namespace already exists and is not marked as a ledger. When EnsureNamespace returns, a
// new namespace is ready for pods.
func (s *Store) EnsureNamespace(ctx context.Context) (created bool, err error) {
	namespaces := s.Client.CoreV1().Namespaces()
	switch existing, err := namespaces.Get(ctx, s.Namespace, metav1.GetOptions{}); {
	case err == nil && !IsLedger(existing):
		return false, &UnmarkedError{s.Namespace}
	case err == nil:
		return false, nil
	case !apierrors.IsNotFound(err):
		return false, fmt.Errorf("get namespace %s: %w", s.Namespace, err)
	}
	switch _, err := namespaces.Create(ctx, NamespaceObject(s.Namespace), metav1.CreateOptions{}); {
	case err == nil:
		created = true
	case !apierrors.IsAlreadyExists(err): // otherwise, another client created the namespace first
		return false, fmt.Errorf("create namespace %s: %w", s.Namespace, err)
	}
	return created, s.waitForServiceAccount(ctx)
}

// waitForServiceAccount waits for the default service account. The API server rejects pods until the account exists.
func (s *Store) waitForServiceAccount(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, serviceAccountTimeout, true,
		func(ctx context.Context) (bool, error) {
			_, last = s.Client.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, "default", metav1.GetOptions{})
			// Some users may not read service accounts. In that case, creating the first pod shows whether the account
			// exists.
			return last == nil || apierrors.IsForbidden(last), nil
		})
	if err != nil {
		return fmt.Errorf("wait for the default service account in namespace %s: %w", s.Namespace, last)
	}
	return nil
}
