//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// Its pods are replaced one after the other, each only when the former is ready: a fault from the first call on would
// stop at the first.
func TestE2ECudaStatefulSet(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	d := c.deployment("train")
	get := c.create(&appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(2)), Selector: d.Spec.Selector, Template: d.Spec.Template, ServiceName: "none",
	}})
	c.healthy("train", 2)
	before := asUserSees(t, get())
	seen := c.watchCrashes("train")
	run := c.inject("pod/train-1", "--xid", "79") // leads up to its StatefulSet
	seen.has(999, 2)
	c.reverted(run, before, get)
	c.healthy("train", 2)
}

func TestE2ECudaDaemonSet(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	d := c.deployment("train")
	get := c.create(&appsv1.DaemonSet{
		ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	})
	c.healthy("train", len(c.cluster.Nodes()))
	before := asUserSees(t, get())
	seen := c.watchCrashes("train")
	run := c.inject("ds/train", "--error", "illegal-address", "--only-on-node", c.worker.Name)
	seen.has(700, 1)
	if crash := seen.all()[0]; crash.node != c.worker.Name {
		t.Errorf("the pod on %s ended", crash.node)
	}
	c.reverted(run, before, get)
	c.healthy("train", len(c.cluster.Nodes()))
}

// The next job has the fault, from its first call on.
func TestE2ECudaCronJob(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	template := c.template("train", "TRAINER_STEPS=5")
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	get := c.create(&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "train"}, Spec: batchv1.CronJobSpec{
		Schedule:    "0 0 1 1 *",
		JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{BackoffLimit: new(int32(0)), Template: template}},
	}})
	before := asUserSees(t, get())
	seen := c.watchCrashes("train")
	run := c.inject("cronjob/train", "--xid", "79")
	c.startJob("train", "now")
	seen.has(100, 1)
	c.reverted(run, before, get)
	c.startJob("train", "later")
	cluster.Eventually(t, patience, "a job of the restored template completes", func() (bool, string) {
		job, err := c.cluster.Client.BatchV1().Jobs(c.namespace).Get(t.Context(), "later", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return job.Status.Succeeded == 1, fmt.Sprintf("%+v", job.Status)
	})
}

// startJob makes a job of a CronJob before its time.
func (c *cuda) startJob(cronJob, name string) {
	c.t.Helper()
	batch := c.cluster.Client.BatchV1()
	of, err := batch.CronJobs(c.namespace).Get(c.t.Context(), cronJob, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: of.Spec.JobTemplate.Spec}
	if _, err := batch.Jobs(c.namespace).Create(c.t.Context(), job, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// A Job's template cannot be changed, so that it is made anew, with consent, and once more by the revert.
func TestE2ECudaJob(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	template := c.template("train")
	template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	get := c.create(&batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "train", Annotations: map[string]string{"owner": "me"}},
		Spec:       batchv1.JobSpec{BackoffLimit: new(int32(20)), Template: template},
	})
	c.healthy("train", 1)
	before := asUserSees(t, get())
	c.refuse([]string{"job/train", "--xid", "79"}, "--recreate")
	seen := c.watchCrashes("train")
	run := c.inject("job/train", "--xid", "79", "--recreate")
	seen.has(999, 1)
	c.reverted(run, before, get)
	c.healthy("train", 1)
}

var trainings = schema.GroupVersionResource{Group: "e2e.gpufault.dev", Version: "v1", Resource: "trainings"}

// A kind that nobody knows: its pod template is found where it lies, also when the user names the Deployment that its
// controller makes.
func TestE2ECudaCustomResource(t *testing.T) {
	t.Parallel()
	c := setupCUDA(t)
	c.defineTraining()
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(new(c.template("train")))
	if err != nil {
		t.Fatal(err)
	}
	get := c.createIn(trainings, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "e2e.gpufault.dev/v1", "kind": "Training", "metadata": map[string]any{"name": "train"},
		"spec": map[string]any{"workers": map[string]any{"replicas": int64(1), "template": template}},
	}})
	stop := c.controlTraining(get)
	t.Cleanup(stop)
	c.healthy("train", 1)
	before := asUserSees(t, get())
	seen := c.watchCrashes("train")
	run := c.inject("deployment/train", "--xid", "79")
	seen.has(999, 1)
	if text := asUserSees(t, get()); !strings.Contains(text, "libgpufault.so") {
		t.Errorf("the custom resource has no shim:\n%s", text)
	}
	c.reverted(run, before, get)
	c.healthy("train", 1)
}

// defineTraining makes the kind, whose content the API server does not look into.
func (c *cuda) defineTraining() {
	c.t.Helper()
	definitions := c.dynamic.Resource(
		schema.GroupVersionResource{
			Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
		},
	)
	_, err := definitions.Create(c.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "trainings.e2e.gpufault.dev"},
		"spec": map[string]any{
			"group": trainings.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "trainings", "singular": "training", "kind": "Training"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "properties": map[string]any{
						"spec": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
					},
				}}}},
		},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = definitions.Delete(context.Background(), "trainings.e2e.gpufault.dev", metav1.DeleteOptions{})
	})
	cluster.Eventually(c.t, patience, "the API server serves trainings", func() (bool, string) {
		_, err := c.dynamic.Resource(trainings).Namespace(c.namespace).List(c.t.Context(), metav1.ListOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

// controlTraining returns the controller of a training: a Deployment is always to have its template. It returns what
// stops it.
func (c *cuda) controlTraining(get func() *unstructured.Unstructured) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	owner := get()
	api, deployments := c.dynamic.Resource(trainings).Namespace(c.namespace),
		c.cluster.Client.AppsV1().Deployments(c.namespace)
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			now, err := api.Get(ctx, owner.GetName(), metav1.GetOptions{})
			if err != nil {
				continue
			}
			content, _, _ := unstructured.NestedMap(now.Object, "spec", "workers", "template")
			text, _ := json.Marshal(content)
			want := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{
					Name: owner.GetName(), Annotations: map[string]string{"made-of": patch.Sum(text)},
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())},
				},
				Spec: appsv1.DeploymentSpec{
					Replicas: new(int32(1)),
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": owner.GetName()}},
				},
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &want.Spec.Template); err != nil {
				continue
			}
			is, err := deployments.Get(ctx, want.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				_, _ = deployments.Create(ctx, want, metav1.CreateOptions{}) // it is tried again
			case err == nil && is.Annotations["made-of"] != want.Annotations["made-of"]:
				want.ResourceVersion = is.ResourceVersion
				_, _ = deployments.Update(ctx, want, metav1.UpdateOptions{})
			}
		}
	}()
	return func() { cancel(); <-ended }
}
