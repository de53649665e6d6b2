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
	"k8s.io/apimachinery/pkg/api/resource"
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
			ObjectMeta: metav1.ObjectMeta{Name: was.Name, Labels: was.Labels, Annotations: was.Annotations},
			Handler:    was.Handler, Overhead: was.Overhead, Scheduling: was.Scheduling,
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
					RuntimeClassName: &class, NodeSelector: map[string]string{"kubernetes.io/hostname": e.worker.Name},
					TerminationGracePeriodSeconds: new(int64(0)),
					Containers: []corev1.Container{{
						Name: "c", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever,
						Command: []string{"sleep", "600"},
					}},
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
		events, err := e.cluster.Client.CoreV1().Events("default").List(e.t.Context(),
			metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("reason", "FailedCreate").String()})
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

// hasClass reports whether RuntimeClass nvidia is there.
func (e *env) hasClass() bool {
	e.t.Helper()
	_, err := e.cluster.Client.NodeV1().RuntimeClasses().Get(e.t.Context(), "nvidia", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		e.t.Fatal(err)
	}
	return err == nil
}

// A RuntimeClass that pods name and that is not there is made by --fix, so that they start, and revert takes it away
// again. The dry run makes nothing: no class, no pod that reads nodes, no namespace.
func TestDoctorMendsAMissingRuntimeClass(t *testing.T) {
	e := setup(t)
	e.withoutRuntimeClass()
	e.classedDeployment("doctor-fix")

	dry := e.ok("doctor", "--fix", "rc.handler-mismatch", "--dry-run=client")
	if dry.stdout != "runtimeclass.node.k8s.io/nvidia created (client dry run)\n" || e.hasClass() {
		t.Errorf("the dry run printed %q; the class is there: %t\n%s", dry.stdout, e.hasClass(), dry.stderr)
	}
	if _, err := e.cluster.Client.CoreV1().Namespaces().Get(
		t.Context(), e.ledger, metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("the dry run made the namespace of the pods: %v", err)
	}

	r := e.ok("doctor", "--fix", "rc.handler-mismatch", "--yes")
	if r.stdout != "runtimeclass.node.k8s.io/nvidia created\n" || !strings.Contains(r.stderr, "to undo this, run: ") ||
		!e.hasClass() {
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

// hangPlugin makes the worker's device plugin hang, and restarts its kubelet: that forgets the plugin, which does not
// register again, and looks healthy all the same.
func (e *env) hangPlugin() {
	e.t.Helper()
	const signal = "kill -%s $(pgrep -f ^/simulated-device-plugin)"
	e.t.Cleanup(func() {
		e.worker.Sh(e.t, "sh", "-c", fmt.Sprintf(signal, "CONT"))
		e.advertises(len(e.worker.GPUs))
	})
	e.worker.Sh(e.t, "sh", "-c", fmt.Sprintf(signal, "STOP"))
	e.worker.Sh(e.t, "systemctl", "restart", "kubelet")
	e.advertises(0)
	e.isReady(corev1.ConditionTrue)
}

// advertises waits until that many GPUs of the worker can be had. It may be called by a test's cleanup.
func (e *env) advertises(gpus int) {
	e.t.Helper()
	cluster.Eventually(e.t, patience, fmt.Sprintf("%s advertises %d GPUs", e.worker.Name, gpus), func() (bool, string) {
		n, err := e.cluster.Client.CoreV1().Nodes().Get(context.Background(), e.worker.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		all, usable := n.Status.Capacity["nvidia.com/gpu"], n.Status.Allocatable["nvidia.com/gpu"]
		return all.Value() == int64(gpus) &&
			usable.Value() == int64(gpus), fmt.Sprintf("%s, of which %s can be had", &all, &usable)
	})
}

// pluginPod returns the name of the device plugin's pod on the worker.
func (e *env) pluginPod() string {
	e.t.Helper()
	pods, err := e.cluster.Client.CoreV1().Pods("kube-system").List(e.t.Context(), metav1.ListOptions{
		LabelSelector: "name=nvidia-device-plugin-ds",
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", e.worker.Name).String(),
	})
	if err != nil {
		e.t.Fatal(err)
	}
	if len(pods.Items) != 1 {
		e.t.Fatalf("%d pods of the device plugin on %s", len(pods.Items), e.worker.Name)
	}
	return pods.Items[0].Name
}

// A device plugin that its kubelet has forgotten is restarted by --fix, so that the node has its GPUs again, and a pod
// that waits for them starts.
func TestDoctorMendsAForgottenDevicePlugin(t *testing.T) {
	p := newPatient(t)
	p.hangPlugin()
	class, all := "nvidia", resource.MustParse(fmt.Sprint(len(p.worker.GPUs)))
	waits := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-forgotten"},
		Spec: corev1.PodSpec{
			RuntimeClassName: &class, NodeSelector: map[string]string{"kubernetes.io/hostname": p.worker.Name},
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "c", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "600"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": all}},
			}},
		},
	}
	pods := p.cluster.Client.CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), waits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pods.Delete(context.Background(), waits.Name, metav1.DeleteOptions{}) })

	const root = "dp.capacity-zero"
	cluster.Eventually(t, 3*patience, "doctor takes the device plugin for more than a new one", func() (bool, string) {
		report := p.ask("--api-only")
		return roots(report) == root, describe(report)
	})
	if report := p.ask(); roots(report) != root {
		t.Errorf("with the node read, the roots are %q:\n%s", roots(report), describe(report))
	}

	was := p.pluginPod()
	if dry := p.ok("doctor", "--fix", root, "--dry-run=client"); dry.stdout != "pod/"+was+
		" deleted (client dry run)\n" ||
		p.pluginPod() != was {
		t.Errorf("the dry run printed %q; the pod was %s, and is %s\n%s", dry.stdout, was, p.pluginPod(), dry.stderr)
	}
	if r := p.ok("doctor", "--fix", root, "--yes"); r.stdout != "pod/"+was+" deleted\n" || p.pluginPod() == was {
		t.Errorf("printed %q; the pod was %s, and is %s\n%s", r.stdout, was, p.pluginPod(), r.stderr)
	}
	p.advertises(len(p.worker.GPUs))
	p.isRunning(waits.Name)
	if report := p.ask(); roots(report) != "" {
		t.Errorf("after the fix:\n%s", describe(report))
	}
	// The record has the proof; there is nothing to take back.
	if runs := p.runs(); len(runs) != 1 || len(runs[0].Pending()) > 0 || len(runs[0].Steps[0].Evidence) != 2 {
		t.Errorf("open runs: %+v", runs)
	}
	p.ok("revert", "--all", "--yes")
	if runs := p.runs(); len(runs) > 0 {
		t.Errorf("after the revert these are open: %+v", runs)
	}
	p.refused(p.plugin("doctor", "--fix", root, "--yes"), "--fix "+root+": not found")
}
