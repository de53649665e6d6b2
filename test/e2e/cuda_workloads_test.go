//go:build e2e

package e2e

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
)

// template returns a pod of the trainer that Pod Security restricted admits: not root, and with nothing that it could
// write to. The labels choose the pods; the environment is in the form NAME=VALUE.
func (c *cuda) template(app string, environ ...string) corev1.PodTemplateSpec {
	container := corev1.Container{
		Name: "main", Image: c.image, ImagePullPolicy: corev1.PullNever,
		Env: []corev1.EnvVar{{Name: "TRAINER_REPORT", Value: "1"}},
		// So that the API tells how a container ended.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(2)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65534)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{container},
		},
	}
}

// deployment returns one of a pod.
func (c *cuda) deployment(app string, environ ...string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			Template: c.template(app, environ...),
		},
	}
}

// onEachNode makes a Deployment one of two pods, on nodes apart.
func onEachNode(d *appsv1.Deployment) *appsv1.Deployment {
	d.Spec.Replicas = new(int32(2))
	d.Spec.Template.Spec.Affinity = apartFrom(d.Spec.Selector.MatchLabels)
	// There is no third node for a pod in advance.
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
		MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1)),
	}
	return d
}

// apartFrom keeps pods off the nodes of those with the labels.
func apartFrom(labels map[string]string) *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}},
		},
	}}
}

// resource returns the API of an object of one of Kubernetes' own kinds.
func (c *cuda) resource(object runtime.Object) (schema.GroupVersionResource, schema.GroupVersionKind) {
	c.t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		c.t.Fatal(err)
	}
	plural, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return plural, kinds[0]
}

// create creates it in the test's namespace. It returns a function that reads it.
func (c *cuda) create(object runtime.Object) (get func() *unstructured.Unstructured) {
	c.t.Helper()
	resource, kind := c.resource(object)
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		c.t.Fatal(err)
	}
	content := &unstructured.Unstructured{Object: fields}
	content.SetGroupVersionKind(kind)
	return c.createIn(resource, content)
}

func (c *cuda) createIn(
	resource schema.GroupVersionResource, content *unstructured.Unstructured,
) (get func() *unstructured.Unstructured) {
	c.t.Helper()
	api := c.dynamic.Resource(resource).Namespace(c.namespace)
	made, err := api.Create(c.t.Context(), content, metav1.CreateOptions{FieldManager: "e2e-user"})
	if err != nil {
		c.t.Fatalf("create %s %s: %v", content.GetKind(), content.GetName(), err)
	}
	return func() *unstructured.Unstructured {
		c.t.Helper()
		now, err := api.Get(c.t.Context(), made.GetName(), metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		return now
	}
}
