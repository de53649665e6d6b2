//go:build e2e && scenario

package cluster

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A policy that denies all egress makes connections time out, on one node and between nodes, and its end lets them
// through again; a pull works from the registry, and is refused without the password. Scenarios rest on both.
func TestAddons(t *testing.T) {
	c := Require(t)
	c.Addons(t)
	ctx := context.Background()
	namespace := c.Namespace(t)
	run := func(name, node, image, script string, pull corev1.PullPolicy) {
		t.Helper()
		grace, token := int64(0), false
		_, err := c.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": strings.TrimRight(name, "ab")}},
			Spec: corev1.PodSpec{
				NodeName: node, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &token,
				Containers: []corev1.Container{
					{Name: "main", Image: image, ImagePullPolicy: pull, Command: []string{"sh", "-c", script}},
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	pod := func(name string) *corev1.Pod {
		p, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	here, there := c.Nodes()[0].Name, c.Nodes()[1].Name
	run("server", there, "busybox:1.35",
		"mkdir /tmp/w && echo hello >/tmp/w/index.html && exec httpd -f -p 8080 -h /tmp/w", corev1.PullNever)
	run("pulled", here, "localhost:5000/tools/busybox:1.35", "sleep 3600", corev1.PullAlways)
	run("refused", here, "localhost:5000/private/busybox:1.35", "sleep 3600", corev1.PullAlways)
	var server string
	Eventually(t, patience, "the server and the pod with the pulled image run", func() (bool, string) {
		s, p := pod("server"), pod("pulled")
		server = s.Status.PodIP
		return s.Status.Phase == corev1.PodRunning &&
			p.Status.Phase == corev1.PodRunning, string(s.Status.Phase) + " " + string(p.Status.Phase)
	})
	Eventually(t, patience, "the pull without a password is refused", func() (bool, string) {
		said := ""
		if s := pod("refused").Status.ContainerStatuses; len(s) > 0 && s[0].State.Waiting != nil {
			said = s[0].State.Waiting.Message
		}
		return strings.Contains(said, "authorization failed: no basic auth credentials"), said
	})
	policy, err := c.Client.NetworkingV1().NetworkPolicies(namespace).Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "deny"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}},
			PolicyTypes: []networkingv1.PolicyType{"Egress"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ask := "until get http://" + server + ":8080/; do sleep 1; done; sleep 3600"
	run("clienta", here, "busybox:1.35", ask, corev1.PullNever)
	run("clientb", there, "busybox:1.35", ask, corev1.PullNever)
	logs := func(name string) string {
		text, _ := c.Client.CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
		return string(text)
	}
	for _, name := range []string{"clienta", "clientb"} {
		Eventually(t, patience, name+" gets no answer", func() (bool, string) {
			text := logs(name)
			return strings.Contains(text, "deadline exceeded") && !strings.Contains(text, "hello"), text
		})
	}
	if err := c.Client.NetworkingV1().NetworkPolicies(namespace).Delete(
		ctx, policy.Name, metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"clienta", "clientb"} {
		Eventually(t, patience, name+" gets its answer",
			func() (bool, string) { text := logs(name); return strings.Contains(text, "hello"), text })
	}
}
