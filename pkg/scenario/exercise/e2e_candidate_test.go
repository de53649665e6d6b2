//go:build e2e && scenario

package exercise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// What the candidate does where the exercise made nothing is put back: in a namespace that was there before, and on a
// node.
func TestE2ECandidateLeavesThings(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lab := s.lab("laptop")
	nodes, err := lab.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := nodes.Items[len(nodes.Items)-1].Name
	old := fmt.Sprintf("ex-old-%x", time.Now().UnixNano()%(1<<32))
	maps := lab.Client.CoreV1().ConfigMaps(old)
	if _, err := lab.Client.CoreV1().Namespaces().Create(
		t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: old}}, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lab.Client.CoreV1().Namespaces().Delete(context.Background(), old, metav1.DeleteOptions{}) })
	for _, name := range []string{"kept", "changed", "deleted"} {
		one := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "a"}},
			Data:       map[string]string{"a": "1", "b": "2"},
		}
		if _, err := maps.Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password"}, StringData: map[string]string{"a": "1"}}
	if _, err := lab.Client.CoreV1().Secrets(old).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	parsed := s.parsed(append(own(t), `access: {namespaces: ["${p.ns}"]}`,
		fmt.Sprintf(`access: {namespaces: ["${p.ns}", %s], rules: [{apiGroups: [""], resources: [nodes], verbs: [patch], resourceNames: [%s]},
      {apiGroups: [scheduling.k8s.io], resources: [priorityclasses], verbs: [create]}]}`, old, node))...)
	e, err := lab.Start(t.Context(), s.resolved(lab, parsed, 1), StartOptions{Consent: true})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(e.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	candidate := kubernetes.NewForConfigOrDie(config)
	theirs := candidate.CoreV1().ConfigMaps(old)
	label := "example.com/" + old
	_, errLabel := candidate.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:"x"}}}`, label), metav1.PatchOptions{})
	_, errChange := theirs.Patch(t.Context(), "changed", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"team":"b"}},"data":{"a":null,"b":"3","c":"4"}}`), metav1.PatchOptions{})
	errDelete := theirs.Delete(t.Context(), "deleted", metav1.DeleteOptions{})
	_, errCreate := theirs.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "created"}},
		metav1.CreateOptions{})
	errSecret := candidate.CoreV1().Secrets(old).Delete(t.Context(), "password", metav1.DeleteOptions{})
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: old}}
	_, errClass := candidate.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{})
	t.Cleanup(func() {
		_ = lab.Client.SchedulingV1().PriorityClasses().Delete(context.Background(), old, metav1.DeleteOptions{})
	})
	if err := errors.Join(errLabel, errChange, errDelete, errCreate, errSecret, errClass); err != nil {
		t.Fatal(err)
	}
	report, err := lab.Grade(t.Context(), "")
	if err != nil || len(report.Collateral) != 6 || report.Passed {
		t.Errorf("%+v, %v", report, err)
	}
	told, err := lab.Leftovers(t.Context(), "")
	if err != nil || len(told) != 1 { // the node: what is in a namespace that stood before may be others'
		t.Errorf("%+v, %v", told, err)
	}
	ending, err := lab.End(t.Context(), "", EndOptions{Restore: true})
	if err != nil || len(ending.Restored) != 1 || len(ending.Left) != 5 {
		t.Fatalf("%+v, %v", ending, err)
	}
	for _, left := range ending.Left { // which anybody may have made, or changed
		if !strings.Contains(left.Why, "not reverted") ||
			!strings.Contains(left.ByHand, left.Difference.Ref.Name) {
			t.Errorf("%+v", left)
		}
	}
	if one, err := maps.Get(t.Context(), "created", metav1.GetOptions{}); err != nil {
		t.Errorf("it may be somebody's: %+v, %v", one, err)
	}
	after, err := lab.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if _, left := after.Labels[label]; err != nil || left {
		t.Errorf("%v, %v", after.Labels, err)
	}
}

// An exercise whose namespace is deleted, which candidates may not do and administrators may, has failed, for that
// reason; and the end goes on as if nothing had been.
func TestE2ENamespaceIsDeleted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lab := s.lab("laptop")
	parsed := s.parsed(own(t)...)
	e, err := lab.Start(t.Context(), s.resolved(lab, parsed, 1), StartOptions{Consent: true})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(e.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Delete(
		t.Context(), e.Namespaces[0], metav1.DeleteOptions{},
	); !apierrors.IsForbidden(err) {
		t.Errorf("the candidate may delete the namespace: %v", err)
	}
	if err := lab.Client.CoreV1().Namespaces().Delete(
		t.Context(), e.Namespaces[0], metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	report, err := lab.Grade(t.Context(), "")
	waited := func(c check.Result) bool { return c.Took > 15*time.Second } // for what cannot come back
	if err != nil || report.Passed || !strings.Contains(report.Reasons[0], "deleted: namespace "+e.Namespaces[0]) ||
		slices.ContainsFunc(report.Fixed, waited) {
		t.Errorf("%+v, %v", report, err)
	}
	if ending, err := lab.End(t.Context(), "", EndOptions{Restore: true}); err != nil || !ending.Clean() {
		t.Errorf("%+v, %v", ending, err)
	}
}

// An end neither hangs on a finalizer of the candidate, nor deletes objects of others that the candidate has put below
// the exercise's namespace: the garbage collector would delete even a node along with it.
func TestE2EEndIsNotSabotaged(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lab := s.lab("laptop")
	name := fmt.Sprintf("ex-class-%x", time.Now().UnixNano()%(1<<32))
	classes := lab.Client.SchedulingV1().PriorityClasses()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = classes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	parsed := s.parsed(append(own(t), `access: {namespaces: ["${p.ns}"]}`, fmt.Sprintf(`access: {namespaces: ["${p.ns}"], rules: [
      {apiGroups: [scheduling.k8s.io], resources: [priorityclasses], verbs: [patch], resourceNames: [%s]}]}`, name))...)
	e, err := lab.Start(t.Context(), s.resolved(lab, parsed, 1), StartOptions{Consent: true})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(e.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	candidate := kubernetes.NewForConfigOrDie(config)
	namespace, err := lab.Client.CoreV1().Namespaces().Get(t.Context(), e.Namespaces[0], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, errOwner := candidate.SchedulingV1().PriorityClasses().Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":%q,"uid":%q}]}}`,
			namespace.Name, namespace.UID), metav1.PatchOptions{})
	_, errHold := candidate.CoreV1().ConfigMaps(namespace.Name).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "hold", Finalizers: []string{"example.com/hold"}},
	}, metav1.CreateOptions{})
	if err := errors.Join(errOwner, errHold); err != nil {
		t.Fatal(err)
	}
	report, err := lab.Grade(t.Context(), "")
	found := fmt.Sprint(report.Collateral)
	if err != nil || !strings.Contains(found, "finalizer example.com/hold") || !strings.Contains(found, name) {
		t.Errorf("%s, %v", found, err)
	}
	if ending, err := lab.End(t.Context(), "", EndOptions{Restore: true}); err != nil || !ending.Clean() {
		t.Errorf("%+v, %v", ending, err)
	}
	if now, err := classes.Get(t.Context(), name, metav1.GetOptions{}); err != nil || len(now.OwnerReferences) > 0 {
		t.Errorf("the class: %+v, %v", now, err)
	}
}
