//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// withoutRuntimeClass deletes RuntimeClass nvidia for a test, and puts it back as it was.
func (e *env) withoutRuntimeClass() {
	e.t.Helper()
	classes := e.cluster.Client.NodeV1().RuntimeClasses()
	was, err := classes.Get(e.t.Context(), "nvidia", metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		_ = classes.Delete(context.Background(), "nvidia", metav1.DeleteOptions{})
		again := &nodev1.RuntimeClass{
			ObjectMeta: metav1.ObjectMeta{Name: was.Name, Labels: was.Labels, Annotations: was.Annotations}, Handler: was.Handler, Overhead: was.Overhead, Scheduling: was.Scheduling,
		}
		if _, err := classes.Create(context.Background(), again, metav1.CreateOptions{}); err != nil {
			e.t.Errorf("RuntimeClass nvidia was not put back: %v", err)
		}
	})
	if err := classes.Delete(e.t.Context(), "nvidia", metav1.DeleteOptions{}); err != nil {
		e.t.Fatal(err)
	}
}

// classedDeployment makes a Deployment of one pod with RuntimeClass nvidia on the worker.
func (e *env) classedDeployment(name string) {
	e.t.Helper()
	class, labels := "nvidia", map[string]string{"app": name}
	deployments := e.cluster.Client.AppsV1().Deployments("default")
	_, err := deployments.Create(e.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RuntimeClassName: &class, NodeSelector: map[string]string{"kubernetes.io/hostname": e.worker.Name}, TerminationGracePeriodSeconds: new(int64(0)),
					Containers: []corev1.Container{{Name: "c", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "600"}}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		foreground := metav1.DeletePropagationForeground
		_ = deployments.Delete(context.Background(), name, metav1.DeleteOptions{PropagationPolicy: &foreground})
		cluster.Eventually(e.t, patience, "Deployment "+name+" is gone", func() (bool, string) {
			_, err := deployments.Get(context.Background(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
	})
	cluster.Eventually(e.t, patience, "the pods of Deployment "+name+" are refused", func() (bool, string) {
		events, err := e.cluster.Client.CoreV1().Events("default").List(e.t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("reason", "FailedCreate").String()})
		if err != nil {
			return false, err.Error()
		}
		said := ""
		for _, event := range events.Items {
			if strings.HasPrefix(event.InvolvedObject.Name, name) {
				said += event.Message + "\n"
			}
		}
		return strings.Contains(said, `RuntimeClass "nvidia" not found`), said
	})
}

// hasClass is whether RuntimeClass nvidia is there.
func (e *env) hasClass() bool {
	e.t.Helper()
	_, err := e.cluster.Client.NodeV1().RuntimeClasses().Get(e.t.Context(), "nvidia", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		e.t.Fatal(err)
	}
	return err == nil
}

// A RuntimeClass that pods name and that is not there is made by --fix, so that they start, and revert takes it away again. The dry run makes
// nothing: no class, no pod that reads nodes, no namespace.
func TestDoctorMendsAMissingRuntimeClass(t *testing.T) {
	e := setup(t)
	e.withoutRuntimeClass()
	e.classedDeployment("doctor-fix")

	dry := e.ok("doctor", "--fix", "rc.handler-mismatch", "--dry-run=client")
	if dry.stdout != "runtimeclass.node.k8s.io/nvidia created (client dry run)\n" || e.hasClass() {
		t.Errorf("the dry run printed %q; the class is there: %t\n%s", dry.stdout, e.hasClass(), dry.stderr)
	}
	if _, err := e.cluster.Client.CoreV1().Namespaces().Get(t.Context(), e.ledger, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the dry run made the namespace of the pods: %v", err)
	}

	r := e.ok("doctor", "--fix", "rc.handler-mismatch", "--yes")
	if r.stdout != "runtimeclass.node.k8s.io/nvidia created\n" || !strings.Contains(r.stderr, "take it back with: ") || !e.hasClass() {
		t.Fatalf("printed %q\n%s", r.stdout, r.stderr)
	}
	cluster.Eventually(t, patience, "Deployment doctor-fix is available", func() (bool, string) {
		got, err := e.cluster.Client.AppsV1().Deployments("default").Get(t.Context(), "doctor-fix", metav1.GetOptions{})
		return err == nil && got.Status.AvailableReplicas == 1, fmt.Sprint(got.Status, err)
	})
	e.noPods()

	runs := e.runs()
	if len(runs) != 1 {
		t.Fatalf("%d runs are open: %+v", len(runs), runs)
	}
	e.ok("revert", runs[0].ID, "--yes")
	if e.hasClass() || len(e.runs()) != 0 {
		t.Errorf("after the revert the class is there: %t, open runs: %+v", e.hasClass(), e.runs())
	}
	if r := e.plugin("doctor", "--fix", "rc.handler-mismatch=gvisor", "--yes"); r.code != 1 || e.hasClass() {
		t.Errorf("a class that nobody asks for: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}
