//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// dcgmi is a stand-in for the real one and its host engine: it keeps the last XID of each GPU in a file. DCGM itself
// cannot run on this cluster.
const dcgmi = `#!/bin/sh
case "$1 $2" in
"discovery -l")
  i=0
  for uuid in $UUIDS; do
    printf '| %d      | Name: Simulated   |\n|        | Device UUID: %s  |\n' $i $uuid
    i=$((i+1))
  done;;
"dmon -e") printf '#Entity   XIDER\nID\nGPU %s     %s\n' "$5" "$(cat /tmp/$5 2>/dev/null || echo N/A)";;
"test --inject") echo "$8" >/tmp/$4; echo 'Successfully injected field info.';;
esac
`

// TestLayerDCGM is an XID in the host engine of DCGM, of the chosen GPU of the node alone, until the revert.
func TestLayerDCGM(t *testing.T) {
	c := setupCUDA(t)
	c.mustSay(c.plugin("xid", "48", c.worker.Name, "--layers", "kernel,dcgm", "--yes", "--allow-last-gpu-node",
		"--allow-majority"), 1, "nothing was changed", "omit the dcgm layer")
	cm := &corev1.ConfigMap{Data: map[string]string{"dcgmi": dcgmi}}
	cm.Name = "dcgmi"
	c.create(cm)
	var uuids []string
	for _, gpu := range c.worker.GPUs {
		uuids = append(uuids, gpu.UUID)
	}
	template := c.template("nvidia-dcgm", "UUIDS="+strings.Join(uuids, " "))
	template.Spec.Containers[0].Image = debugpod.DefaultImage
	template.Spec.Containers[0].Command = []string{"sleep", "86400"}
	template.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem = new(false)
	template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: c.worker.Name}
	template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "bin", MountPath: "/usr/local/bin"}}
	template.Spec.Volumes = []corev1.Volume{{Name: "bin", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: cm.Name}, DefaultMode: new(int32(0o555)),
		},
	}}}
	d := c.deployment("nvidia-dcgm")
	d.Spec.Template = template
	c.create(&appsv1.Deployment{ObjectMeta: d.ObjectMeta, Spec: d.Spec})
	cluster.Eventually(t, patience, "the host engine's pod", func() (bool, string) {
		pods := c.pods("nvidia-dcgm")
		return len(pods) == 1 && isUp(&pods[0]), fmt.Sprint(len(pods))
	})
	last := func(gpu string) string {
		return strings.TrimSpace(c.kubectl("exec", "-n", c.namespace, "deployment/nvidia-dcgm", "--", "dcgmi", "dmon",
			"-e", "230", "-i", gpu, "-c", "1"))
	}
	var got oneFault
	c.decode(c.ok("xid", "48", c.worker.Name, "--gpu", "1", "--layers", "kernel,dcgm", "--yes", "--allow-last-gpu-node",
		"--allow-majority", "-o", "json").stdout, &got)
	if len(got.Layers) != 2 || got.Layers[0].Layer != "dcgm" || got.Layers[0].State != "proven" {
		t.Errorf("the layers are %+v", got.Layers)
	}
	for gpu, want := range map[string]string{"0": "N/A", "1": "48"} {
		if text := last(gpu); !strings.HasSuffix(text, " "+want) {
			t.Errorf("GPU %s: %q, want %s", gpu, text, want)
		}
	}
	c.ok("revert", got.ID, "--yes")
	if text := last("1"); !strings.HasSuffix(text, " 0") {
		t.Errorf("after the revert: %q", text)
	}
	c.nothingLeft()
}
