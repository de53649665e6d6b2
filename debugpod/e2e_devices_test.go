//go:build e2e

package debugpod_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	testcluster "github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// TestDevicesOfANode holds, with a real kubelet and a device plugin, that a failed device leaves the node's allocatable
// devices and comes back, that the other device is never missing, and that the plugin is in charge afterwards.
func TestDevicesOfANode(t *testing.T) {
	w := onWorker(t)
	const run, resource = "device-e2e", "nvidia.com/gpu"
	allocatable := func() int64 {
		node, err := w.c.Client.CoreV1().Nodes().Get(t.Context(), w.Node.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		q := node.Status.Allocatable[corev1.ResourceName(resource)]
		return q.Value()
	}
	sees := func(want int64) {
		t.Helper()
		since := time.Now()
		what := fmt.Sprintf("allocatable GPUs of the node: %d", want)
		testcluster.Eventually(t, time.Minute, what, func() (bool, string) {
			now := allocatable()
			if now == 0 {
				t.Error("a healthy GPU is missing")
			}
			return now == want, fmt.Sprint(now)
		})
		t.Logf("%d after %v", want, time.Since(since).Round(time.Millisecond))
	}
	session := w.start(t, run)
	list, err := session.ListDevices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.Resources, func(r api.DeviceResource) bool { return r.Name == resource })
	if i < 0 || len(list.Resources[i].Healthy) < 2 || list.Resources[i].Endpoint == "" {
		t.Fatalf("%+v", list)
	}
	all := int64(len(list.Resources[i].Healthy))
	for range 3 {
		failed, err := session.FailDevices(t.Context(),
			api.FailDevices{Resource: resource, Devices: list.Resources[i].Healthy[:1], TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if failed.Healthy != int(all)-1 {
			t.Errorf("%+v", failed)
		}
		sees(all - 1)
		recovered, err := session.RecoverDevices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !recovered.Found || recovered.Healthy != int(all) || recovered.Cause != "requested" {
			t.Errorf("%+v", recovered)
		}
		sees(all)
	}
	left := w.Sh(t, "sh", "-c", "ls -A /run/gpu-fault/devices; ls /var/lib/kubelet/device-plugins | grep gpu-fault-; "+
		"for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep ^gpu-fault-device; done; true")
	if left != "" {
		t.Errorf("left on the node: %s", left)
	}
}
