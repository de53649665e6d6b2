//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// An image of ours that lies on the nodes only: nothing is pulled, nothing is streamed (it has no shell that could take
// it), and all works as with the stock image. Then pushed to a registry, from where the kubelet pulls it.
func TestImage(t *testing.T) {
	e := setup(t)
	t.Run("loaded into the nodes", func(t *testing.T) {
		// Since Kubernetes 1.35 a kubelet that has once pulled an image does not take the same bytes for loaded by hand
		// any more.
		if out, err := e.worker.TrySh(
			t.Context(), "grep", "-rl", pushedImage, "/var/lib/kubelet/image_manager/pulled",
		); err == nil && out != "" {
			t.Skip(
				"the kubelet of this cluster has pulled this image before, and wants to pull it always: make cluster-down, and try again",
			)
		}
		e.t = t
		imageLoaded(e)
	})
	t.Run("pushed to a registry", func(t *testing.T) {
		e.t = t
		imagePushed(e)
	})
}

const pushedImage = "localhost:5000/tools/gpu-fault-node"

func imageLoaded(e *env) {
	t := e.t
	archive := e.ok("image", "save", "gpu-fault-node", "-f", "-").stdout
	for _, node := range e.cluster.Nodes() {
		load := node.Command(t.Context(), "ctr", "-n", "k8s.io", "images", "import", "-")
		load.Stdin = strings.NewReader(archive)
		if out, err := load.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", node.Name, err, out)
		}
	}
	var built struct{ Digest, Tag string }
	e.decode(e.ok("image", "build", "-o", "json").stdout, &built)
	for _, image := range []string{"gpu-fault-node:" + built.Tag, "gpu-fault-node@" + built.Digest} {
		r := e.ok("xid", "79", e.worker.Name, "--yes", "--image", image, "--image-pull-policy", "Never")
		if !strings.Contains(r.stdout, "GPU has fallen off the bus") {
			t.Errorf("--image %s: %s", image, r.stdout)
		}
	}
	// What enters the node's own namespaces starts from the image's file, too.
	e.ok("runtime", "show", e.worker.Name, "--image", "gpu-fault-node:"+built.Tag, "--image-pull-policy", "Never")
	e.ok("leftovers", "--nodes", "--image", "gpu-fault-node:"+built.Tag, "--image-pull-policy", "Never")
	e.noPods()
}

// The image of another build is refused before anything is made.
func TestImageOfAnotherBuild(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.refused(e.plugin("xid", "79", e.worker.Name, "--yes", "--image", "gpu-fault-node:gpu-fault-000000000000"),
		"contains the node helper from another build of kubectl gpu-fault", "image push or save")
	e.untouched()
}

// The registry is at the node's localhost, so the push is from there.
func imagePushed(e *env) {
	t := e.t
	e.cluster.Addons(t)
	program, err := os.ReadFile(binary(t, "kubectl-gpu_fault"))
	if err != nil {
		t.Fatal(err)
	}
	const onNode = "/run/kubectl-gpu_fault"
	copied := e.worker.Command(t.Context(), "tee", onNode)
	copied.Stdin = bytes.NewReader(program)
	if err := copied.Run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.worker.Sh(t, "rm", "-f", onNode) })
	e.worker.Sh(t, "chmod", "755", onNode)
	image := strings.TrimSpace(e.worker.Sh(t, onNode, "image", "push", pushedImage))
	if !strings.Contains(image, "@sha256:") {
		t.Fatalf("push printed %q", image)
	}
	r := e.pluginWith([]string{"KUBECTL_GPU_FAULT_IMAGE=" + image}, "xid", "79", e.worker.Name, "--yes")
	if r.code != 0 || !strings.Contains(r.stdout, "GPU has fallen off the bus") {
		t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}
