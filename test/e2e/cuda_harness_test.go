//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// cuda is a test of `kubectl gpu-fault cuda`: a namespace of its own, in which Pod Security is as strict as it can be,
// for workloads of the sample image, which has no shell.
type cuda struct {
	*env
	namespace string
	image     string
	dynamic   dynamic.Interface
}

func setupCUDA(t *testing.T) *cuda {
	t.Helper()
	all := cluster.Require(t)
	c := &cuda{
		env: &env{t: t, cluster: all, worker: all.Workers()[0], control: all.ControlPlane()}, image: all.Trainer(t),
		namespace: all.Namespace(t),
	}
	var err error
	if c.dynamic, err = dynamic.NewForConfig(all.RESTConfig); err != nil {
		t.Fatal(err)
	}
	namespaces := all.Client.CoreV1().Namespaces()
	restricted := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	if _, err := namespaces.Patch(
		t.Context(), c.namespace, "application/merge-patch+json", restricted, metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	// New each time, as the namespace is, so that nobody has to wait until a former one is gone.
	c.ledger = "ledger-" + c.namespace
	t.Cleanup(func() { _ = namespaces.Delete(context.Background(), c.ledger, metav1.DeleteOptions{}) })
	return c
}

// asUserSees returns an object without what the API server and controllers write: what a revert must bring back to the
// letter, with who owns which field. UIDs are left out, as a recreated object has another.
func asUserSees(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	annotations := object.GetAnnotations()
	for _, name := range []string{"deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation"} {
		delete(annotations, name)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	owners := map[string]any{}
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "" && entry.Manager != "kube-controller-manager" {
			owners[entry.Manager+" "+string(entry.Operation)] = json.RawMessage(entry.FieldsV1.GetRawBytes())
		}
	}
	text, err := json.MarshalIndent(map[string]any{
		"labels": object.GetLabels(), "annotations": annotations, "spec": object.Object["spec"], "owners": owners,
	}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), string(object.GetUID()), "UID")
}

// inject runs `cuda inject` and returns the run's ID.
func (c *cuda) inject(args ...string) string {
	c.t.Helper()
	out := c.ok(append([]string{"cuda", "inject", "-n", c.namespace, "--yes", "-o", "name"}, args...)...).stdout
	run, found := strings.CutPrefix(strings.TrimSpace(out), "run/")
	if !found {
		c.t.Fatalf("-o name printed %q", out)
	}
	return run
}

// refuse runs `cuda inject`, which must say why it does not, and leave nothing.
func (c *cuda) refuse(args []string, parts ...string) {
	c.t.Helper()
	c.mustSay(c.plugin(append([]string{"cuda", "inject", "-n", c.namespace, "--yes"}, args...)...), 1, parts...)
	c.nothingLeft()
}

// nothingLeft checks that the namespace has no ConfigMap of ours, and the ledger no lock and no open run.
func (c *cuda) nothingLeft() {
	c.t.Helper()
	ours := metav1.ListOptions{LabelSelector: ledger.LabelManagedBy + "=" + ledger.ManagedBy}
	maps, err := c.cluster.Client.CoreV1().ConfigMaps(c.namespace).List(c.t.Context(), ours)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, m := range maps.Items {
		c.t.Errorf("ConfigMap %s is left", m.Name)
	}
	locks, err := c.cluster.Client.CoordinationV1().Leases(c.ledger).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, lock := range locks.Items {
		if holder := lock.Spec.HolderIdentity; holder != nil && *holder != "" {
			c.t.Errorf("lock %s is left, of %s", lock.Name, *holder)
		}
	}
	for _, run := range c.runs() {
		c.t.Errorf("run %s is left %s: %s", run.ID, run.Phase, run.Message)
	}
}

// reverted reverts the run and checks that the workload is as it was to the letter, and nothing is left.
func (c *cuda) reverted(run, before string, get func() *unstructured.Unstructured) {
	c.t.Helper()
	out := c.ok("revert", run, "--yes").stdout
	if !strings.Contains(out, ": reverted") {
		c.t.Errorf("revert: %s", out)
	}
	c.same(before, get())
	c.nothingLeft()
}

func (c *cuda) same(before string, now *unstructured.Unstructured) {
	c.t.Helper()
	if after := asUserSees(c.t, now); after != before {
		c.t.Errorf("%s/%s is not as it was:\n%s", now.GetKind(), now.GetName(), difference(before, after))
	}
}

// nothingOfOurs checks that no part of ours is in an object.
func (c *cuda) nothingOfOurs(object *unstructured.Unstructured) {
	c.t.Helper()
	for line := range strings.Lines(asUserSees(c.t, object)) {
		for _, part := range []string{"libgpufault", "gpu-fault-", "GPU_FAULT", "gpufault.dev", ledger.ManagedBy} {
			if strings.Contains(line, part) {
				c.t.Errorf("%s/%s has something of ours left: %s", object.GetKind(), object.GetName(), line)
			}
		}
	}
}

// difference lists the lines that only one of the texts has.
func difference(before, after string) string {
	var text strings.Builder
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			fmt.Fprintf(&text, "-%s\n", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			fmt.Fprintf(&text, "+%s\n", line)
		}
	}
	return text.String()
}

// soon is for what follows at once, on a busy machine.
const soon = 20 * time.Second
