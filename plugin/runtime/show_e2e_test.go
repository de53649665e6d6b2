//go:build e2e

package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// runShow runs the command for real, and decodes what it prints.
func runShow(t *testing.T, c *cluster.Cluster, nodeName string) view {
	t.Helper()
	namespace := strings.ToLower(t.Name()) // its own: one that is being deleted takes no pods
	t.Cleanup(func() {
		_ = c.Client.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), namespace, metav1.DeleteOptions{})
	})
	var out, talk bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &talk}
	connection := kube.NewConnection(streams)
	connection.LedgerNamespace = namespace
	cmd := newShowCommand(connection, streams)
	cmd.SilenceUsage = true
	cmd.SetArgs([]string{nodeName, "-o", "json"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, talk.String())
	}
	var v view
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return v
}

// From the kubelet's settings to the process behind its socket, with a real kubelet and containerd; and the pod is gone
// afterwards.
func TestShowOnRealNode(t *testing.T) {
	c := cluster.Require(t)
	t.Setenv("KUBECONFIG", c.Kubeconfig)
	n := c.Workers()[0]

	v := runShow(t, c, n.Name)
	i := v.Runtime
	if i == nil || v.Problem != "" || len(v.Warnings) > 0 {
		t.Fatalf("problem %q, warnings %q", v.Problem, v.Warnings)
	}
	pid := strings.TrimSpace(n.Sh(t, "systemctl", "show", "-p", "MainPID", "--value", "containerd"))
	if got, _ := json.Marshal(i.PID); string(got) != pid || i.Unit != "containerd.service" || !i.Ready ||
		i.Name != "containerd" {
		t.Errorf("containerd is process %s of containerd.service; shown: %d of %q, %q ready %t", pid, i.PID, i.Unit,
			i.Name, i.Ready)
	}
	if v.Kubelet.EndpointFrom != "/var/lib/kubelet/config.yaml" || v.Kubelet.CgroupDriver == "" {
		t.Errorf("kubelet %+v", v.Kubelet)
	}
	sum := strings.Fields(n.Sh(t, "sha256sum", "/etc/containerd/config.toml"))[0]
	if len(i.Files) == 0 || i.Files[0].Path != "/etc/containerd/config.toml" || i.Files[0].SHA256 != sum ||
		i.Files[0].NotEdited != "" {
		t.Errorf("files %+v", i.Files)
	}
	if _, known := i.Handler("runc"); !known || !i.ShowsMemory() || i.Executables["runc"] != "" ||
		i.Executables["containerd-shim-runc-v2"] != "" {
		t.Errorf("handlers %+v, executables %v", i.Handlers, i.Executables)
	}
	pods, err := c.Client.CoreV1().Pods(strings.ToLower(t.Name())).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			t.Errorf("pod %s was left", p.Name)
		}
	}
}

// A GPU handler in a file that no containerd loads is what users look for; the file is written to a place of k0s, where
// it harms nobody.
func TestShowFindsDecoyOnRealNode(t *testing.T) {
	c := cluster.Require(t)
	t.Setenv("KUBECONFIG", c.Kubeconfig)
	n := c.Workers()[0]
	const file = "/etc/k0s/containerd.toml"
	t.Cleanup(func() { n.Sh(t, "rm", "-f", file) })
	n.Sh(t, "sh", "-c", "mkdir -p /etc/k0s; cat >"+file+" <<'X'\nversion = 3\n"+onDisk("nvidia-decoy",
		"/usr/bin/nvidia-decoy", false)+"X\n")

	v := runShow(t, c, n.Name)
	found := false
	for _, f := range v.Findings {
		found = found || f.ID == "rt.wrong-instance" && strings.Contains(f.Message, file+":2")
	}
	var decoys []string // the cluster's nodes have one of their own, which is harmless
	for _, decoy := range v.Decoys {
		decoys = append(decoys, decoy.ConfigPath)
	}
	if !found || !slices.Contains(decoys, file) {
		t.Errorf("findings %+v, decoys %q", v.Findings, decoys)
	}
}
