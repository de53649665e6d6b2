//go:build e2e

package cudashim_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// forever tells the state file's content in the log whenever it changes, and proves that the other volume is writable.
const forever = `'while sleep 0.1; do now=$(cat /gpu-fault/lib/state 2>/dev/null); [ "$now" = "$was" ] || { was=$now; echo state=$now; : >/gpu-fault/run/x && echo writable; }; done'`

// documents are workloads that begin at once.
func documents() map[string]string {
	head := func(kind, api string) string {
		return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: web}\n", api, kind)
	}
	selector := "  selector: {matchLabels: {app: web}}\n  template:\n    "
	return map[string]string{
		"deploy": head("Deployment", "apps/v1") + "spec:\n  replicas: 2\n" + selector + template(4, forever),
		"sts": head("StatefulSet", "apps/v1") +
			"spec:\n  replicas: 2\n  serviceName: web\n  podManagementPolicy: Parallel\n" + selector +
			template(4, forever),
		"ds": head("DaemonSet", "apps/v1") + "spec:\n" + selector + template(4, forever),
	}
}

// essence returns what of an object must be as before after the undo: all but what the API server counts.
func essence(object *unstructured.Unstructured) map[string]any {
	o := object.DeepCopy()
	delete(o.Object, "status")
	for _, name := range []string{"generation", "resourceVersion", "uid", "creationTimestamp", "managedFields"} {
		unstructured.RemoveNestedField(o.Object, "metadata", name)
	}
	annotations := o.GetAnnotations()
	delete(annotations, "deployment.kubernetes.io/revision")
	delete(annotations, "deprecated.daemonset.template.generation")
	o.SetAnnotations(annotations)
	return o.Object
}

// owners returns the fields of each manager, but for what controllers keep in the status.
func owners(object *unstructured.Unstructured) map[string]string {
	all := map[string]string{}
	for _, e := range object.GetManagedFields() {
		if e.Subresource == "" {
			var fields any
			_ = json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields)
			sorted, _ := json.Marshal(fields)
			all[e.Manager+" "+string(e.Operation)] = string(sorted)
		}
	}
	return all
}

func (s *site) same(before, after *unstructured.Unstructured) {
	s.Helper()
	if diff := cmp.Diff(essence(before), essence(after)); diff != "" {
		s.Errorf("the object is not as before:\n%s", diff)
	}
	if diff := cmp.Diff(owners(before), owners(after)); diff != "" {
		s.Errorf("its fields are not owned as before:\n%s", diff)
	}
}

// What is injected runs in every pod, under the strictest Pod Security, and nothing of it is left, not even who owned a
// field.
func TestE2EInjectAndUndo(t *testing.T) {
	for kind, document := range documents() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			_, err := s.cluster.Client.CoreV1().Namespaces().Patch(t.Context(), s.namespace,
				"application/merge-patch+json",
				[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`),
				metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s.apply(document)
			w := s.find(kind + "/web")
			s.until("pods", func() (bool, string) {
				pods, err := s.cluster.Client.CoreV1().Pods(s.namespace).List(t.Context(),
					metav1.ListOptions{FieldSelector: "status.phase=Running"})
				return err == nil && len(pods.Items) >= 2, fmt.Sprint(err)
			})
			before := s.get(w)
			in := s.injection(w)
			in.Pin = &cudashim.Pin{Nodes: nodes(s), Hard: true}
			preview, err := in.Preview(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s\nnotes %q", strings.Join(preview.Changes, "\n"), preview.Notes)
			s.same(before, s.get(w)) // a preview keeps nothing

			r := s.inject(in)
			pods, err := s.cluster.Pods(t.Context(), s.namespace, r.run.ID)
			if err != nil || len(pods) != 2 {
				t.Fatalf("%d pods, %v", len(pods), err)
			}
			if got := cudashim.Carriers(&pods[0]); len(got) != 2 {
				t.Errorf("carriers %v", got)
			}
			if pod, err := s.cluster.Find(t.Context(), s.namespace, "pod/"+pods[0].Name); err != nil ||
				pod.Ref() != w.Ref() || pod.Run() != r.run.ID {
				t.Errorf("up from its pod: %v, %v", pod, err)
			}
			_, err = s.injection(w).Preview(t.Context())
			if err == nil || !strings.Contains(err.Error(), r.run.ID) {
				t.Errorf("a second injection: %v", err)
			}
			s.seen(pods[0].Name, "armed")
			if err := cudashim.UpdateState(
				t.Context(), s.cluster.Client, s.namespace, r.run.ID, []byte("changed"),
			); err != nil {
				t.Error(err)
			}
			begin := time.Now()
			if err := cudashim.Refresh(t.Context(), s.cluster.Client, pods, "1"); err != nil {
				t.Error(err)
			}
			s.seen(pods[0].Name, "changed")
			if took := time.Since(begin); took > 20*time.Second { // without the refresh it takes 23 to 66 seconds
				t.Errorf("the pod saw the new state after %s", took)
			} else {
				t.Logf("the pod saw the new state after %s", took.Round(10*time.Millisecond))
			}
			if state, _ := s.undo(r); state != ledger.StateReverted {
				t.Errorf("state %s", state)
			}
			s.same(before, s.get(w))
			if state, said := s.undo(r); state != ledger.StateReverted ||
				!strings.Contains(said, "its pod templates contain none of the run's changes") {
				t.Errorf("once more: %s, %s", state, said)
			}
			if cms, err := s.cluster.Client.CoreV1().ConfigMaps(s.namespace).List(
				t.Context(), metav1.ListOptions{LabelSelector: ledger.LabelRun},
			); err != nil || len(cms.Items) > 0 {
				t.Errorf("left %d configmaps, %v", len(cms.Items), err)
			}
		})
	}
}

// seen waits until a pod has seen a state.
func (s *site) seen(pod, state string) {
	s.Helper()
	s.until("the state in "+pod, func() (bool, string) {
		text, err := s.cluster.Client.CoreV1().Pods(s.namespace).GetLogs(pod,
			&corev1.PodLogOptions{Container: "main"}).DoRaw(s.Context())
		return strings.Contains(string(text), "state="+state+"\nwritable"), fmt.Sprintf("%s %v", text, err)
	})
}

func nodes(s *site) []string {
	list, err := s.cluster.Client.CoreV1().Nodes().List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}
