//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// The example of an admission policy lets the group inject, as written, and nobody else; and the group may make our
// pods only. It binds to the test's own ledger, and has names of its own.
func TestAdmissionPolicyExample(t *testing.T) {
	e := setup(t)
	e.makeLedger(map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
	text, err := os.ReadFile("../../docs/examples/admission-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	policy := strings.NewReplacer("kubernetes.io/metadata.name: gpu-fault", "kubernetes.io/metadata.name: "+e.ledger,
		"gpu-fault-debug-pods", "e2e-"+e.ledger).Replace(string(text))
	e.kubectlWith(policy, "apply", "-f", "-")
	t.Cleanup(func() { e.kubectlWith(policy, "delete", "--ignore-not-found", "-f", "-") })

	inject := func(more ...string) result {
		return e.plugin(
			append([]string{"xid", "43", e.worker.Name, "--gpu", "0", "--yes", "--as", "root-of-all"}, more...)...,
		)
	}
	admin, sre := []string{"--as-group", "system:masters"},
		[]string{"--as-group", "system:masters", "--as-group", "gpu-sre"}
	cluster.Eventually(t, patience, "the policy is in force", func() (bool, string) {
		said := inject(append(admin, "--dry-run=server")...)
		return said.code == 1, said.stderr
	})
	e.refused(inject(admin...),
		"only the group gpu-sre can create pods in namespace "+e.ledger+", and you are root-of-all")
	e.refused(inject(append(sre, "--image", "docker.io/evil/root:1")...),
		"must use one of these images: registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9")
	e.untouched()
	if r := inject(sre...); r.code != 0 {
		t.Errorf("the group cannot inject: exit %d: %s", r.code, r.stderr)
	}
	// By hand, as the group: a pod that does something else.
	for name, pod := range map[string]string{
		"must look like those of kubectl gpu-fault": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9","command":["sh","-c","trap 'exit 0' TERM INT; sleep 1 & wait"]}]}}`,
		"must run only the sleep command":           `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"gpufault.dev/run":"x"}},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"c","image":"registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9","command":["sh","-c","rm -rf /"]}]}}`,
	} {
		if said := e.kubectlFails(
			pod, "create", "-n", e.ledger, "-f", "-", "--as", "root-of-all", "--as-group", "system:masters",
			"--as-group", "gpu-sre",
		); !strings.Contains(said, name) {
			t.Errorf("%s: kubectl said %s", name, said)
		}
	}

	// And into a pod that is there, only the group gets.
	e.kubectlWith(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"there","labels":{"gpufault.dev/run":"x"}},"spec":{"nodeName":"`+e.worker.Name+`",
		"terminationGracePeriodSeconds":0,"automountServiceAccountToken":false,"containers":[{"name":"c","image":"registry.k8s.io/e2e-test-images/busybox:1.36.1-1@sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9",
		"command":["sh","-c","trap 'exit 0' TERM INT; sleep 300 & wait"]}]}}`,
		append([]string{"create", "-n", e.ledger, "-f", "-", "--as", "root-of-all"}, sre...)...)
	e.kubectlWith("", "wait", "-n", e.ledger, "--for=condition=Ready", "--timeout=60s", "pod/there")
	enter := []string{"exec", "-n", e.ledger, "there", "--as", "root-of-all"}
	if said := e.kubectlFails("", append(enter, append(admin, "--", "true")...)...); !strings.Contains(
		said, "only the group gpu-sre can exec into, attach to or forward ports of pods in namespace "+e.ledger,
	) {
		t.Errorf("an administrator who is not of the group gets into a pod: %s", said)
	}
	e.kubectlWith("", append(enter, append(sre, "--", "true")...)...)
}
