//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/leftover"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// left returns the leftovers in a namespace. Others' tests run side by side and have theirs, so that the exit code says
// little here.
func (e *env) left(namespace string) map[string]leftover.Leftover {
	e.t.Helper()
	r := e.plugin("leftovers", "-o", "json")
	if r.code != 0 && r.code != 2 {
		e.t.Fatalf("leftovers: exit %d: %s", r.code, r.stderr)
	}
	var list struct {
		Items []leftover.Leftover `json:"items"`
	}
	e.decode(r.stdout, &list)
	found := map[string]leftover.Leftover{}
	for _, l := range list.Items {
		if l.Namespace == namespace {
			found[l.Ref()] = l
		}
	}
	if len(found) > 0 && r.code != 2 {
		e.t.Errorf("it found %d leftovers and exited with %d, wanted 2", len(found), r.code)
	}
	return found
}

// dynamoDeployment has a library of the user's, and what Dynamo's fault injection adds.
func dynamoDeployment() *appsv1.Deployment {
	labels := map[string]string{"app": "worker"}
	mount := corev1.VolumeMount{Name: "cuda-fault-lib", MountPath: "/cuda-fault"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{
					{
						Name: "compile-cuda-fault-lib", Image: debugpod.DefaultImage,
						VolumeMounts: []corev1.VolumeMount{mount},
					},
				},
				Containers: []corev1.Container{{
					Name: "main", Image: debugpod.DefaultImage, VolumeMounts: []corev1.VolumeMount{mount},
					Env: []corev1.EnvVar{
						{Name: "LD_PRELOAD", Value: "/opt/mine.so:/cuda-fault/cuda_intercept.so"},
						{Name: "CUDA_XID_TYPE", Value: "79"}, {Name: "MINE", Value: "1"},
					},
				}},
				Volumes: []corev1.Volume{
					{
						Name:         "cuda-fault-lib",
						VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
					},
				},
			}},
		},
	}
}

// What another tool and a lost run of ours left is found, removed to the last piece, and then not found; what is the
// user's stays.
func TestLeftoversAreFoundAndRemoved(t *testing.T) {
	e := setup(t)
	namespace := e.cluster.Namespace(t)
	client := e.cluster.Client
	ours := map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: "xid-222222"}
	create := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	options := metav1.CreateOptions{}
	create(client.CoreV1().ConfigMaps(namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cuda-fault-injection-lib"}}, options))
	create(client.CoreV1().ConfigMaps(namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, options))
	create(client.NetworkingV1().NetworkPolicies(namespace).Create(t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Name: "partition", Labels: map[string]string{"managed-by": "fault-injection-api"},
		},
	}, options))
	create(client.AppsV1().Deployments(namespace).Create(t.Context(), dynamoDeployment(), options))
	create(client.CoordinationV1().Leases(namespace).Create(t.Context(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lock", Labels: ours}}, options))
	create(client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: ours},
		Spec: corev1.PodSpec{
			NodeName: e.worker.Name, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{
				{Name: "main", Image: debugpod.DefaultImage, Command: []string{"sleep", "600"}},
			},
		},
	}, options))

	all := []string{
		"configmap/cuda-fault-injection-lib", "networkpolicy.networking.k8s.io/partition", "deployment.apps/worker",
		"lease.coordination.k8s.io/lock", "pod/orphan",
	}
	found := e.left(namespace)
	for _, name := range all {
		if _, ok := found[name]; !ok {
			t.Errorf("%s was not found", name)
		}
	}
	if len(found) != len(all) {
		t.Errorf("found %d, wanted %d: %v", len(found), len(all), found)
	}

	e.refused(e.plugin("leftovers", "--clean"), "--yes")
	dry := e.plugin("leftovers", "--clean", "--dry-run=client")
	if dry.code != 2 ||
		!strings.Contains(dry.stdout, "pod/orphan deleted from namespace "+namespace+" (client dry run)") ||
		len(e.left(namespace)) != len(all) {
		t.Errorf("a dry run: exit %d, %s\n%d left of %d", dry.code, dry.stdout, len(e.left(namespace)), len(all))
	}

	cleaned := e.plugin("leftovers", "--clean", "--yes")
	for _, line := range []string{
		"deployment.apps/worker edited in namespace " + namespace,
		"lease.coordination.k8s.io/lock deleted from namespace " + namespace,
	} {
		if !strings.Contains(cleaned.stdout, line) {
			t.Errorf("it did not say %q:\n%s\n%s", line, cleaned.stdout, cleaned.stderr)
		}
	}
	cluster.Eventually(t, patience, "nothing is found in "+namespace, func() (bool, string) {
		left := e.left(namespace)
		return len(left) == 0, fmt.Sprint(left)
	})

	worker, err := client.AppsV1().Deployments(namespace).Get(t.Context(), "worker", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := worker.Spec.Template.Spec
	env := spec.Containers[0].Env
	if len(spec.InitContainers)+len(spec.Volumes)+len(spec.Containers[0].VolumeMounts) != 0 || len(env) != 2 ||
		env[0].Value != "/opt/mine.so" {
		t.Errorf("the template after it: %+v", spec)
	}
	if _, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "mine", metav1.GetOptions{}); err != nil {
		t.Errorf("the user's ConfigMap: %v", err)
	}
}

// A run that is open is no leftover, nor is what belongs to it.
func TestOpenRunsAreNoLeftovers(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.ok("xid", "43", e.worker.Name, "--yes")
	if found := e.left(e.ledger); len(found) != 0 {
		t.Errorf("found %v", found)
	}
}
