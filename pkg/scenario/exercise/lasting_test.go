package exercise

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// lookers are Faults that only know strangers.
type lookers struct {
	Faults
	found map[string]api.PodUse
	err   error
	asked []string
	then  func() // what happens in the cluster meanwhile
}

func (l *lookers) Strangers(
	_ context.Context, node string, uids []string, _ bool,
) (map[string]api.PodUse, error) {
	l.asked = append(l.asked, node+": "+strings.Join(slices.Sorted(slices.Values(uids)), " "))
	if l.then != nil {
		l.then()
	}
	return l.found, l.err
}

// A workload that only a process of kubectl exec makes look repaired does not pass. What cannot be read is reported,
// and is not the candidate's fault.
func TestStrangersFailAGrade(t *testing.T) {
	t.Parallel()
	pod := func(namespace, name string, owners ...metav1.OwnerReference) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, UID: types.UID(name), OwnerReferences: owners,
			},
			Spec:   corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
	}
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", Controller: new(true)}
	client := fake.NewSimpleClientset(pod("team", "a", owner), pod("team", "b", owner), pod("team", "shell"),
		pod("other", "c", owner))
	grade := func(l *lookers, fixed bool, how scenario.Grade) *grading {
		t.Helper()
		g := &grading{
			lab: &Lab{Client: client, Faults: l}, e: &Exercise{Namespaces: []string{"team"}},
			r: &scenario.Resolved{Scenario: scenario.Scenario{Sealed: scenario.Sealed{Grade: how}}},
		}
		g.report.Fixed = []check.Result{{OK: fixed}}
		if err := g.lasting(t.Context()); err != nil {
			t.Fatal(err)
		}
		return g
	}
	shell := &lookers{found: map[string]api.PodUse{
		"a": {Strangers: []string{`process "sh" was not started by the container's program`}}, "b": {Unseen: "a sandbox"},
	}}
	g := grade(shell, true, scenario.Grade{})
	if why := g.report.collateralGate().Why; len(g.report.Collateral) != 1 ||
		!strings.Contains(why, `Pod team/a: process "sh" was not started`) || !strings.Contains(why, "grade again") {
		t.Errorf("%q %v", why, g.report.Collateral)
	}
	if got := strings.Join(g.report.NotCompared, ""); got != "processes in pod team/b: a sandbox" {
		t.Errorf("not compared: %q", got)
	}
	if strings.Join(shell.asked, ";") != "n1: a b" {
		t.Errorf("asked for %q", shell.asked)
	}
	over := *shell
	over.then = func() {
		ended := pod("team", "b", owner)
		ended.Status.Phase = corev1.PodSucceeded
		if _, err := client.CoreV1().Pods("team").UpdateStatus(t.Context(), ended, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
	if g := grade(&over, true, scenario.Grade{}); len(g.report.NotCompared) > 0 {
		t.Errorf("a pod that has terminated meanwhile is not compared: %q", g.report.NotCompared)
	}
	broken := &lookers{err: errors.New("privileged pods are forbidden")}
	if g := grade(broken, true, scenario.Grade{}); !g.clean() ||
		!strings.Contains(strings.Join(g.report.NotCompared, ""), "node n1") {
		t.Errorf("%v %q", g.report.Collateral, g.report.NotCompared)
	}
	unasked := &lookers{}
	grade(unasked, false, scenario.Grade{})
	if unasked.asked != nil {
		t.Errorf("asked for %q, although the grade is known", unasked.asked)
	}
}
