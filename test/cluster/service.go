package cluster

import (
	"context"
	"testing"
)

// StopService stops a service of the node (containerd, kubelet, on the control plane kube-apiserver) until start is
// called, which waits until it serves again; the end of the test calls it too. Without the API server running pods go
// on, and so does everything on the nodes.
func (n Node) StopService(t testing.TB, unit string) (start func()) {
	t.Helper()
	stopped := true
	start = func() {
		if !stopped {
			return
		}
		stopped = false
		n.Sh(t, "systemctl", "start", unit)
		if unit != "kube-apiserver" {
			return
		}
		Eventually(t, patience, "the API server is ready again", func() (bool, string) {
			// t.Context ends before the cleanup
			answer, err := n.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background())
			if err != nil {
				return false, err.Error()
			}
			return true, string(answer)
		})
	}
	t.Cleanup(start)
	n.Sh(t, "systemctl", "stop", unit)
	return start
}
