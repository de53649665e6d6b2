package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// aDeployment returns one of two replicas, whose second container has two GPUs.
func aDeployment(change func(*appsv1.Deployment)) *appsv1.Deployment {
	gpus := corev1.ResourceList{GPUResource: resource.MustParse("2")}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "server", Generation: 3},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "proxy"}, {Name: "main", Resources: corev1.ResourceRequirements{Limits: gpus, Requests: gpus}},
			}}},
		},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 3, UpdatedReplicas: 2, AvailableReplicas: 2},
	}
	if change != nil {
		change(d)
	}
	return d
}

// What a scenario has to know of the trainer's Deployment is read; what could not be broken and mended fairly is
// refused, with what to do.
func TestFindWorkload(t *testing.T) {
	t.Parallel()
	got, err := FindWorkload(t.Context(), fake.NewClientset(aDeployment(nil)), "prod", "deploy/server")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&WorkloadFacts{
		Namespace: "prod", Name: "server", Labels: "app=server", Replicas: 2, Container: 1, GPUs: 2, Requests: true,
	}, got); diff != "" {
		t.Error(diff)
	}
	for name, test := range map[string]struct {
		named  string
		change func(*appsv1.Deployment)
		want   string
	}{
		"no kind":       {"server", nil, "must be KIND/NAME"},
		"a StatefulSet": {"sts/server", nil, "specify a Deployment"},
		"another kind":  {"job/server", nil, "must be a Deployment"},
		"not there":     {"deployment/serve", nil, "deployment \"serve\" not found in namespace \"prod\""},
		"no GPUs": {
			"deploy/server",
			func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers = d.Spec.Template.Spec.Containers[:1] },
			"does not request nvidia.com/gpu",
		},
		"paused": {
			"deploy/server", func(d *appsv1.Deployment) { d.Spec.Paused = true }, "kubectl rollout resume",
		},
		"broken": {
			"deploy/server", func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 1 },
			"has 1 of 2 replicas available",
		},
		"rolling out": {
			"deploy/server", func(d *appsv1.Deployment) { d.Status.ObservedGeneration = 2 },
			"before the fault is injected",
		},
		"scaled to 0": {
			"deploy/server", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(0)) }, "of 0 replicas",
		},
		"an operator's": {"deploy/server", func(d *appsv1.Deployment) {
			d.OwnerReferences = []metav1.OwnerReference{{Kind: "InferenceService", Name: "llm"}}
		}, "is owned by InferenceService llm"},
	} {
		if _, err := FindWorkload(
			t.Context(), fake.NewClientset(aDeployment(test.change)), "prod", test.named,
		); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// On a workload of the trainer's nothing is created, nothing but it is changed, and the candidate gets no more than it.
func TestPlayedOnAWorkload(t *testing.T) {
	t.Parallel()
	s, err := Find("gpu-resources")
	if err != nil {
		t.Fatal(err)
	}
	facts := SampleFacts()
	facts.Workload = &WorkloadFacts{
		Namespace: "prod", Name: "server", Labels: "app=server", Replicas: 2, Container: 1, GPUs: 2, Requests: true,
	}
	want := &Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "prod", Name: "server"}
	kinds := map[any]bool{}
	for seed := range int64(30) {
		r, err := s.Resolve(seed, nil, facts)
		if err != nil {
			t.Fatal(err)
		}
		kinds[r.Drawn["kind"]] = true
		if len(r.Setup) > 0 || len(r.Inject) != 1 || r.Inject[0].Patch == nil || r.Inject[0].Patch.Object != *want {
			t.Errorf("seed %d: %+v %+v", seed, r.Setup, r.Inject)
		}
		if diff := cmp.Diff(Access{Namespaces: []string{}, Workload: want}, r.Public.Access); diff != "" {
			t.Error(diff)
		}
		if !strings.Contains(
			strings.Join(r.NeedsConsent(), "\n"), "lets the candidate change Deployment server in namespace prod",
		) {
			t.Errorf("%q", r.NeedsConsent())
		}
		if len(r.Requires.Images) > 0 ||
			!strings.Contains(r.Public.Briefing, "The server Deployment in the prod namespace worked") ||
			r.Public.Simulated != "" {
			t.Errorf("%+v %q %q", r.Requires, r.Public.Briefing, r.Public.Simulated)
		}
	}
	if len(kinds) != 3 || kinds["quota"] || kinds["pool"] {
		t.Errorf("%v", kinds)
	}
	if _, err := s.Resolve(1, map[string]string{"kind": "quota"}, facts); err == nil ||
		!strings.Contains(err.Error(), "kind=quota is not supported with --workload") {
		t.Errorf("%v", err)
	}
	other, err := Find("gpu-memory")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Resolve(1, nil, facts); err == nil ||
		!strings.Contains(err.Error(), "supported scenarios: gpu-resources") {
		t.Errorf("%v", err)
	}
}
