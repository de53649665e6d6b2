package exercise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// policyTimeout is the maximum time for a policy to take effect; agents of CNI plugins may need a few seconds.
	policyTimeout = 15 * time.Second
	// policyMemory is the time for which a positive result is cached.
	policyMemory = 10 * time.Minute
)

// Output of the probe pod.
const (
	wordThrough = "through"
	wordBlocked = "blocked"
)

// networkPolicies tests whether NetworkPolicies are enforced, which no API reports. A pod connects to the API
// server in a loop; after the first success, a policy denies all its traffic.
func (s *start) networkPolicies(ctx context.Context) error {
	if !s.r.Requires.NetworkPolicy || s.lab.enforced() {
		return nil
	}
	enforced, err := s.lab.probePolicies(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("test whether NetworkPolicies are enforced, which the scenario requires: %w", err)
	case !enforced:
		return &UnenforcedError{s.r.Requires.Otherwise}
	}
	s.lab.remember.Lock()
	defer s.lab.remember.Unlock()
	s.lab.policiesSeen = time.Now()
	return nil
}

func (l *Lab) enforced() bool {
	l.remember.Lock()
	defer l.remember.Unlock()
	return !l.policiesSeen.IsZero() && time.Since(l.policiesSeen) < policyMemory
}

func (l *Lab) probePolicies(ctx context.Context) (enforced bool, err error) {
	service, err := l.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("get the API server's service: %w", err)
	}
	pod := l.bare("policy")
	// A policy left by another preflight or a crash must not affect this pod.
	word := utilrand.String(8)
	label := map[string]string{"probe": word}
	pod.Labels["probe"] = word
	pod.Spec.Containers[0].Command = []string{"sh", "-c", fmt.Sprintf(
		`while true; do if nc -w 1 %s 443 </dev/null >/dev/null 2>&1; then echo %s; else echo %s; fi; sleep 0.3; done`,
		service.Spec.ClusterIP, wordThrough, wordBlocked,
	)}
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-policy-", Namespace: l.LedgerNamespace, Labels: pod.Labels},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: label},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	}
	policies := l.Client.NetworkingV1().NetworkPolicies(l.LedgerNamespace)
	forbidden := ""
	defer func() {
		if forbidden == "" {
			return
		}
		clean, cancel := outlive(ctx)
		defer cancel()
		if left := policies.Delete(clean, forbidden, metav1.DeleteOptions{}); left != nil &&
			!apierrors.IsNotFound(left) {
			err = errors.Join(err,
				fmt.Errorf("delete network policy %q in namespace %q manually: %w", forbidden, l.LedgerNamespace, left))
		}
	}()
	last := ""
	err = l.withPod(ctx, pod, policyTimeout+30*time.Second, func(pod *corev1.Pod) (bool, error) {
		if pod.Status.Phase != corev1.PodRunning {
			return false, nil
		}
		if last = l.lastLine(ctx, pod); last == wordThrough && forbidden == "" {
			created, err := policies.Create(ctx, policy, metav1.CreateOptions{})
			if err != nil {
				return false, fmt.Errorf("create a network policy: %w", err)
			}
			forbidden = created.Name
			return false, l.awaitBlocked(ctx, pod, &enforced)
		}
		return forbidden != "", nil
	})
	if err != nil && last == wordBlocked && forbidden == "" {
		return false, errors.New("a pod cannot reach the API server's Service even without a policy")
	}
	return enforced, err
}

// awaitBlocked waits until the pod's connections are blocked. A timeout is not an error: it means that they are not
// blocked.
func (l *Lab) awaitBlocked(ctx context.Context, pod *corev1.Pod, enforced *bool) error {
	err := wait.PollUntilContextTimeout(ctx, 300*time.Millisecond, policyTimeout, true,
		func(ctx context.Context) (bool, error) {
			*enforced = l.lastLine(ctx, pod) == wordBlocked
			return *enforced, nil
		})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil && !wait.Interrupted(err) {
		return err
	}
	return nil
}

func (l *Lab) lastLine(ctx context.Context, pod *corev1.Pod) string {
	text, err := l.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name,
		&corev1.PodLogOptions{TailLines: new(int64(1))}).DoRaw(ctx)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(text))
}

// withPod creates a pod in the ledger's namespace, polls it until enough returns true, and deletes it, even if ctx is
// done.
func (l *Lab) withPod(
	ctx context.Context, pod *corev1.Pod, timeout time.Duration, enough func(*corev1.Pod) (bool, error),
) (err error) {
	if _, err := l.Session.Ledger.EnsureNamespace(ctx); err != nil {
		return err
	}
	pods := l.Client.CoreV1().Pods(l.LedgerNamespace)
	created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a pod in namespace %s: %w", l.LedgerNamespace, err)
	}
	defer func() {
		clean, cancel := outlive(ctx)
		defer cancel()
		left := pods.Delete(clean, created.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		if left != nil && !apierrors.IsNotFound(left) {
			err = errors.Join(err,
				fmt.Errorf("delete pod %q in namespace %q manually: %w", created.Name, l.LedgerNamespace, left))
		}
	}()
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, timeout, true,
		func(ctx context.Context) (bool, error) {
			now, err := pods.Get(ctx, created.Name, metav1.GetOptions{})
			if err != nil {
				return false, final(err)
			}
			return enough(now)
		})
}

// final returns err if retrying is pointless. It returns nil if a retry may succeed, for example if the API server is
// temporarily unavailable.
func final(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return err
	}
	return nil
}
