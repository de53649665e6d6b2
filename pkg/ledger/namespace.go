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

// serviceAccountTimeout is how long a new namespace may take to get its default service account; usually it takes 10 ms.
const serviceAccountTimeout = 15 * time.Second

// NamespaceObject is the namespace as EnsureNamespace creates it. The debug pods in it are privileged, which it says to Pod
// Security and to whoever reads it.
func NamespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			LabelManagedBy:                       ManagedBy,
			"pod-security.kubernetes.io/enforce": "privileged",
		}},
	}
}

// EnsureNamespace creates the namespace if it does not exist, and returns whether it did. An existing one is left as it is. A new one
// is ready for pods when it returns.
func (s *Store) EnsureNamespace(ctx context.Context) (created bool, err error) {
	namespaces := s.Client.CoreV1().Namespaces()
	switch _, err := namespaces.Get(ctx, s.Namespace, metav1.GetOptions{}); {
	case err == nil:
		return false, nil
	case !apierrors.IsNotFound(err):
		return false, fmt.Errorf("look for namespace %s: %w", s.Namespace, err)
	}
	switch _, err := namespaces.Create(ctx, NamespaceObject(s.Namespace), metav1.CreateOptions{}); {
	case err == nil:
		created = true
	case !apierrors.IsAlreadyExists(err): // then another client was faster
		return false, fmt.Errorf("create namespace %s: %w", s.Namespace, err)
	}
	return created, s.waitForServiceAccount(ctx)
}

// waitForServiceAccount waits for the account that every pod needs; without it pods of a new namespace are refused.
func (s *Store) waitForServiceAccount(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, serviceAccountTimeout, true, func(ctx context.Context) (bool, error) {
		_, last = s.Client.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, "default", metav1.GetOptions{})
		// Not every user may read service accounts. Then the first pod has to find out.
		return last == nil || apierrors.IsForbidden(last), nil
	})
	if err != nil {
		return fmt.Errorf("wait for the default service account of namespace %s: %w", s.Namespace, last)
	}
	return nil
}
