//go:build e2e && scenario

package exercise

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// team returns a namespace of others, with a Deployment that has a GPU, another one, and a Secret.
func (s *site) team() (namespace string) {
	s.Helper()
	client := s.lab("team").Client
	namespace = fmt.Sprintf("ex-team-%x", time.Now().UnixNano()%(1<<32))
	make := func(err error) {
		s.Helper()
		if err != nil {
			s.Fatal(err)
		}
	}
	_, err := client.CoreV1().Namespaces().Create(s.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	make(err)
	s.Cleanup(func() {
		make(client.CoreV1().Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{}))
	})
	_, err = client.CoreV1().Secrets(namespace).Create(s.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
	make(err)
	for name, gpus := range map[string]int64{"server": 1, "other": 0} {
		container := corev1.Container{Name: "main", Image: "docker.io/library/busybox:1.35",
			ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", "100000"},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": quantity.MustParse("64Mi")}}}
		if gpus > 0 {
			container.Resources.Limits[scenario.GPUResource] = *quantity.NewQuantity(gpus, quantity.DecimalSI)
		}
		labels := map[string]string{"app": name}
		_, err = client.AppsV1().Deployments(namespace).Create(s.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{
						TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{container},
					},
				}},
		}, metav1.CreateOptions{})
		make(err)
	}
	return namespace
}

// works waits until the Deployment of others is rolled out, and returns its spec.
func (s *site) works(namespace string) appsv1.DeploymentSpec {
	s.Helper()
	client := s.lab("team").Client
	var d *appsv1.Deployment
	err := wait.PollUntilContextTimeout(s.Context(), 200*time.Millisecond, 4*time.Minute, true,
		func(ctx context.Context) (bool, error) {
			_, err := scenario.FindWorkload(ctx, client, namespace, "deployment/server")
			if err != nil {
				return false, nil // it is on its way
			}
			d, err = client.AppsV1().Deployments(namespace).Get(ctx, "server", metav1.GetOptions{})
			return err == nil && d.Status.Replicas == 1, err
		})
	if err != nil {
		s.Fatalf("the team's Deployment does not work: %v", err)
	}
	return d.Spec
}

// On a Deployment of others every variant breaks, its solutions pass and its wrong fixes fail, and afterwards its spec
// is what it was, to the field.
func TestE2EOwnWorkload(t *testing.T) {
	s := newSite(t)
	parsed, err := scenario.Find("gpu-resources")
	if err != nil {
		t.Fatal(err)
	}
	lab := s.lab("laptop")
	lab.Workload, lab.WorkloadNamespace = "deployment/server", s.team()
	before := s.works(lab.WorkloadNamespace)
	played := map[any]bool{}
	for seed := int64(1); len(played) < 3; seed++ {
		r, err := lab.Resolve(t.Context(), parsed, seed, nil)
		if err != nil {
			t.Fatal(err)
		}
		kind := r.Drawn["kind"]
		if played[kind] {
			continue
		}
		played[kind] = true
		trials, err := lab.trials(t.Context(), parsed, seed)
		if err != nil {
			t.Fatal(err)
		}
		for _, trial := range trials {
			row := trial.run(t.Context())
			t.Logf("%s, %s: wanted %s, got %s, broken %s, grade %s: %s", kind, row.Attempt, row.Wanted, row.Got,
				row.Broken.Round(100*time.Millisecond), row.Grade.Round(100*time.Millisecond), row.Why)
			if !row.OK {
				t.Errorf("%s, %s: wanted %s, got %s: %s", kind, row.Attempt, row.Wanted, row.Got, row.Why)
			}
			if diff := cmp.Diff(before, s.works(lab.WorkloadNamespace)); diff != "" {
				t.Errorf("%s, %s: %s", kind, row.Attempt, diff)
			}
		}
	}
}

// The candidate changes that Deployment, and nothing else of the namespace: no Secret, no pod, no other Deployment.
// What others change meanwhile stays when it ends.
func TestE2EOwnWorkloadIsAllThereIs(t *testing.T) {
	s := newSite(t)
	parsed, err := scenario.Find("gpu-resources")
	if err != nil {
		t.Fatal(err)
	}
	lab := s.lab("laptop")
	namespace := s.team()
	lab.Workload, lab.WorkloadNamespace = "deploy/server", namespace
	before := s.works(namespace)
	r, err := lab.Resolve(t.Context(), parsed, 1, map[string]string{"kind": "name"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := lab.Start(t.Context(), r, StartOptions{Consent: true})
	if err != nil {
		t.Fatal(err)
	}
	if card := lab.Card(e); card.Namespace != namespace || len(e.Namespaces) > 0 {
		t.Errorf("%+v %v", card, e.Namespaces)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(e.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	candidate, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := candidate.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Error(err)
	}
	deployments, label := candidate.AppsV1().Deployments(namespace),
		[]byte(`{"metadata":{"annotations":{"seen":"yes"}}}`)
	_, secrets := candidate.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{})
	_, other := deployments.Patch(t.Context(), "other", types.MergePatchType, label, metav1.PatchOptions{})
	_, more := deployments.Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "more"}},
		metav1.CreateOptions{})
	for what, err := range map[string]error{
		"secrets": secrets, "another Deployment": other, "a new one": more,
		"its deletion": deployments.Delete(t.Context(), "server", metav1.DeleteOptions{}),
		"a pod": candidate.CoreV1().Pods(namespace).Delete(t.Context(), pods.Items[0].Name,
			metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := deployments.Patch(
		t.Context(), "server", types.MergePatchType, label, metav1.PatchOptions{},
	); err != nil {
		t.Error(err)
	}
	again, err := lab.Resolve(t.Context(), parsed, 2, nil)
	if again != nil || err == nil {
		t.Error("a Deployment that is broken already is broken again")
	}
	theirs := []byte(`{"spec":{"minReadySeconds":1}}`) // by the team itself
	if _, err := lab.Client.AppsV1().Deployments(namespace).Patch(
		t.Context(), "server", types.MergePatchType, theirs, metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	if _, err := s.lab("desktop").End(t.Context(), "", EndOptions{}); err != nil &&
		!errors.As(err, new(*NotFoundError)) {
		t.Error(err)
	}
	before.MinReadySeconds = 1
	if diff := cmp.Diff(before, s.works(namespace)); diff != "" {
		t.Error(diff)
	}
}
