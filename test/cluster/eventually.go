package cluster

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// busy is how many times as long a machine may take on which much else is going on.
const busy = 4

// SlownessEnv says how many times as long as usual this machine takes. test/suite measures it.
const SlownessEnv = "GPU_FAULT_TEST_SLOWNESS"

// Slowness returns how many times as long as usual this machine takes: 1 to 8.
func Slowness() float64 {
	slow, err := strconv.ParseFloat(os.Getenv(SlownessEnv), 64)
	if err != nil {
		return 1
	}
	return min(max(1, slow), 8)
}

// TTL returns a time to live in whole seconds, which on a slow machine is longer: it must not be over before the test
// has looked at the fault.
func TTL(usual time.Duration) time.Duration {
	return time.Duration(float64(usual) * Slowness()).Round(time.Second)
}

// Eventually waits until done, and fails the test with what was waited for and the state last seen when that takes much
// longer than it may on a quiet machine. A test that promises a time measures it.
func Eventually(t testing.TB, quiet time.Duration, what string, poll func() (done bool, state string)) {
	t.Helper()
	timeout := time.Duration(max(busy, 2*Slowness()) * float64(quiet))
	for deadline, pause := time.Now().Add(timeout), 20*time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		start := time.Now()
		done, state := poll()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not so after %s: %s; last seen: %s", timeout, what, state)
		}
		// On a slow machine, polling must not take the time of what it waits for.
		time.Sleep(max(pause, min(3*time.Since(start), 3*time.Second)))
	}
}

// Namespace makes a namespace for this test, in which pods can start, and deletes it when the test ends.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(t.Name())), "-")
	name = strings.TrimRight(name[:min(len(name), 50)], "-")
	ns, err := c.Client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("make a namespace: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Client.CoreV1().Namespaces().Delete(
			context.Background(), ns.Name, metav1.DeleteOptions{},
		); err != nil {
			t.Errorf("delete namespace %s: %v", ns.Name, err)
		}
		// Pods that ignore SIGTERM would hold their GPUs for 30 seconds, which the next test needs.
		grace := metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}
		if err := c.Client.CoreV1().Pods(ns.Name).DeleteCollection(
			context.Background(), grace, metav1.ListOptions{},
		); err != nil {
			t.Errorf("delete the pods of namespace %s: %v", ns.Name, err)
		}
	})
	// Both come a moment after the namespace. Without the account pods are refused; without the ConfigMap they wait to
	// start.
	Eventually(t, patience, "service account and CA certificate of namespace "+ns.Name, func() (bool, string) {
		if _, err := c.Client.CoreV1().ServiceAccounts(ns.Name).Get(
			t.Context(), "default", metav1.GetOptions{},
		); err != nil {
			return false, err.Error()
		}
		if _, err := c.Client.CoreV1().ConfigMaps(ns.Name).Get(
			t.Context(), "kube-root-ca.crt", metav1.GetOptions{},
		); err != nil {
			return false, err.Error()
		}
		return true, ""
	})
	return ns.Name
}
