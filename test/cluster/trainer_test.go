//go:build e2e

package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
		for name, value := range map[string]string{"TRAINER_STEPS": "3", "TRAINER_REPORT": "1", "FAKECUDA_DEVICES": "2"} {
			container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
		}
		container.SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(12345)), ReadOnlyRootFilesystem: new(true)}
		out := runPod(t, c, ns, pod)
		for _, want := range []string{"2 of 2 devices", "\nstep 3 ", "\ndone\n"} {
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
