//go:build e2e

package e2e

import (
	"compress/gzip"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
	"github.com/gpu-fault/kubectl-gpu-fault/test/planted"
)

// secrets has manifests for a cluster with made-up secrets in the places in which users put them. Their author did not
// know the code. planted.tsv lists each secret, the kind of its place and its object; keep.tsv lists values that a
// diagnosis needs; unrecognized.tsv lists the secrets that look like ordinary values.
const secrets = "testdata/secrets.tar.zst"

// podsThatEnd is the number of pods in the manifests that run once and fail.
const podsThatEnd = 25

// TestDoctorKeepsSecrets protects people who post what doctor writes: the bundle, the JSON, the page and stderr contain
// none of the secrets in the objects, events, logs, Helm releases and node files of a real cluster.
func TestDoctorKeepsSecrets(t *testing.T) {
	p := newPatient(t)
	files := planted.Files(t, secrets)
	for _, namespace := range []string{"planted-a", "planted-b", "gpu-operator"} {
		p.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait")
	}
	now := time.Now().UTC().Format(time.RFC3339)
	p.definitions()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) == ".yaml" {
			objects := strings.ReplaceAll(string(files[name]), "NOW", now)
			t.Cleanup(func() { p.kubectlWith(objects, "delete", "--ignore-not-found", "--wait=false", "-f", "-") })
			p.kubectlWith(objects, "delete", "--ignore-not-found", "-f", "-")
			p.kubectlWith(objects, "create", "-f", "-")
		}
	}
	// The schedule of a CronJob would decide whether there is a pod of it.
	p.kubectl("create", "job", "--from=cronjob/nightly-eval", "nightly-eval-now", "-n", "planted-b")
	p.plantOnNode(files["node/containerd-conf.toml"], files["node/kmsg.txt"])
	p.waitUntilFailed("planted-a", "planted-b")

	folder := t.TempDir()
	bundle, page := filepath.Join(folder, "bundle.tar.gz"), filepath.Join(folder, "page.html")
	r := p.plugin(
		"doctor", "--since", p.since(), "--node", p.worker.Name, "--bundle", bundle, "--html", page, "-o", "json",
	)
	if r.code != 0 && r.code != 2 {
		t.Fatalf("doctor: exit %d\n%s", r.code, r.stderr)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]string{
		"the bundle": plainText(t, bundle), "-o json": r.stdout, "--html": string(html), "stderr": r.stderr,
	}
	unrecognized := strings.Fields(string(files["unrecognized.tsv"]))
	rows := planted.Rows(files["planted.tsv"])
	kinds, leaked := map[string]bool{}, 0
	for _, row := range rows {
		value, kind, object := row[0], row[1], row[2]
		kinds[kind] = true
		for where, text := range written {
			if strings.Contains(text, value) && !slices.Contains(unrecognized, value) {
				leaked++
				t.Errorf("%s has a secret from %s of %s: %q", where, kind, object, value)
			}
		}
	}
	lost := 0
	needed := planted.Rows(files["keep.tsv"])
	for _, row := range needed {
		if !strings.Contains(written["the bundle"], row[0]) {
			lost++
			t.Logf("the bundle lacks %q (%s)", row[0], row[1])
		}
	}
	if len(rows) < 300 || len(kinds) < 40 || len(unrecognized) > len(rows)/20 {
		t.Errorf("%d secrets in %d kinds of places, %d of them not recognized", len(rows), len(kinds), len(unrecognized))
	}
	if lost > len(needed)/8 {
		t.Errorf("%d of %d values that a diagnosis needs are not in the bundle", lost, len(needed))
	}
	t.Logf("secrets leaked %d of %d in %d kinds of places; %d of %d other values kept", leaked, len(rows), len(kinds),
		len(needed)-lost, len(needed))
}

// definitions creates the CustomResourceDefinitions of GPU software. The objects may have any fields.
func (e *env) definitions() {
	e.t.Helper()
	var all strings.Builder
	for _, crd := range []struct{ kind, plural, group, version, scope string }{
		{"ClusterPolicy", "clusterpolicies", "nvidia.com", "v1", "Cluster"},
		{"NVIDIADriver", "nvidiadrivers", "nvidia.com", "v1alpha1", "Cluster"},
		{"ServiceMonitor", "servicemonitors", "monitoring.coreos.com", "v1", "Namespaced"},
	} {
		fmt.Fprintf(&all, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[2]s.%[3]s
spec:
  group: %[3]s
  names: {kind: %[1]s, plural: %[2]s}
  scope: %[5]s
  versions:
  - name: %[4]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, crd.kind, crd.plural, crd.group, crd.version, crd.scope)
	}
	e.t.Cleanup(func() { e.kubectlWith(all.String(), "delete", "--ignore-not-found", "-f", "-") })
	e.kubectlWith(all.String(), "delete", "--ignore-not-found", "-f", "-") // from a killed run
	e.kubectlWith(all.String(), "create", "-f", "-")
	e.kubectlWith(all.String(), "wait", "--for=condition=Established", "--timeout=60s", "-f", "-")
}

// plantOnNode puts secrets into the worker's runtime configuration and kernel log, as administrators do.
func (e *env) plantOnNode(conf, kmsg []byte) {
	e.t.Helper()
	const file = "/etc/containerd/conf.d/50-planted.toml"
	e.worker.Sh(e.t, "sh", "-c", "mkdir -p /etc/containerd/conf.d && cat > "+file+" <<'END'\n"+string(conf)+"\nEND")
	e.t.Cleanup(func() { e.worker.Sh(e.t, "rm", "-f", file) })
	for line := range strings.Lines(string(kmsg)) {
		if line = strings.TrimSpace(line); line != "" {
			e.worker.Sh(e.t, "sh", "-c", "cat > /dev/kmsg <<'END'\n"+line+"\nEND")
		}
	}
}

// waitUntilFailed waits until the pods that can run have failed, so that their logs and statuses exist. Other pods wait
// for a volume or a node forever.
func (e *env) waitUntilFailed(namespaces ...string) {
	e.t.Helper()
	cluster.Eventually(e.t, patience, "the pods failed", func() (bool, string) {
		ended := 0
		for _, namespace := range namespaces {
			pods, err := e.cluster.Client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			for _, pod := range pods.Items {
				for _, c := range pod.Status.Conditions {
					if strings.Contains(c.Message, "Insufficient nvidia.com/gpu") {
						return false, pod.Name + " waits for a GPU"
					}
				}
				if pod.Status.Phase == corev1.PodFailed {
					ended++
				}
			}
		}
		return ended >= podsThatEnd, fmt.Sprintf("%d pods of %d failed", ended, podsThatEnd)
	})
}

// plainText returns everything in a bundle.
func plainText(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // read-only
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for name, data := range planted.Untar(t, z) {
		fmt.Fprintf(&all, "%s\n%s\n", name, data)
	}
	return all.String()
}
