//go:build e2e

package cluster

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The sample workload runs on every node as any user, with nothing that it could write to, and finds no shell.
func TestTrainerRunsWithoutRootAndShell(t *testing.T) {
	c := Require(t)
	ns := c.Namespace(t)
	image := c.Trainer(t)
	for _, n := range c.Nodes() {
		pod := podOn(n, "trainer")
		container := &pod.Spec.Containers[0]
		container.Image, container.ImagePullPolicy, container.Command = image, corev1.PullNever, nil
		for name, value := range map[string]string{
			"TRAINER_STEPS": "3", "TRAINER_REPORT": "1", "FAKECUDA_DEVICES": "2",
		} {
			container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
		}
		container.SecurityContext = &corev1.SecurityContext{
			RunAsUser: new(int64(12345)), ReadOnlyRootFilesystem: new(true),
		}
		out := runPod(t, c, ns, pod)
		for _, want := range []string{"no NVIDIA driver: simulated GPU", "2 of 2 devices", "\nstep 3 ", "\ndone\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: it did not say %q:\n%s", n.Name, want, out)
			}
		}

		files := n.Sh(t, "sh", "-ec", `ctr -n k8s.io images mount "docker.io/$1" /mnt >/dev/null
			find /mnt -type f -o -type l; ctr -n k8s.io images unmount --rm /mnt >/dev/null`, "sh", image)
		if !strings.Contains(files, "/mnt/trainer\n") || strings.Contains(files, "/bin/") {
			t.Errorf("%s: the image has a shell, or no trainer:\n%s", n.Name, files)
		}
	}
}

// Scenarios have the workload under a name that says nothing, as an image of its own: kubelets tell all names of one.
// Its next version is of another architecture.
func TestTrainerForScenarios(t *testing.T) {
	c := Require(t)
	ns := c.Namespace(t)
	c.Trainer(t)
	for _, n := range c.Nodes() {
		const works, fails = "registry.lab.internal/ml/trainer:2.3", "registry.lab.internal/ml/trainer:2.4"
		pod := podOn(n, "works")
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy, pod.Spec.Containers[0].Command = works,
			corev1.PullNever, nil
		pod.Spec.Containers[0].Args = []string{"-steps", "3"}
		if out := runPod(t, c, ns, pod); !strings.Contains(out, "\ndone\n") {
			t.Errorf("%s: %s", n.Name, out)
		}
		ran, err := c.Client.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if image := ran.Status.ContainerStatuses[0].Image; image != works {
			t.Errorf("%s: the pod's status tells another name of the image, %s", n.Name, image)
		}

		pod = podOn(n, "fails")
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy, pod.Spec.Containers[0].Command = fails,
			corev1.PullNever, nil
		pods := c.Client.CoreV1().Pods(ns)
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		Eventually(t, 90*time.Second, "the program of another architecture fails", func() (bool, string) {
			log, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
			if err != nil {
				return false, err.Error()
			}
			return strings.Contains(string(log), "exec format error"), string(log)
		})
	}
}
