package chaosmesh

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// TestManifests holds the specs of all faults. What a NetworkChaos cannot express in one object takes several.
func TestManifests(t *testing.T) {
	t.Parallel()
	all, b, network := &Peers{}, &Peers{Pods: []string{"ml/b", "other/c"}}, &Peers{Networks: []string{"10.0.0.0/8"}}
	const (
		target   = `"target":{"mode":"all","selector":{"pods":{"ml":["b"],"other":["c"]}}}`
		external = `"externalTargets":["10.0.0.0/8"]`
	)
	for name, tc := range map[string]struct {
		fault Fault
		want  []string
	}{
		"partition":  {Fault{To: all, From: all}, []string{`"action":"partition","direction":"both"`}},
		"to a pod":   {Fault{To: b}, []string{`"action":"partition","direction":"to",` + target}},
		"with a pod": {Fault{To: b, From: b}, []string{`"action":"partition","direction":"both",` + target}},
		"two objects": {Fault{To: b, From: all}, []string{
			`"action":"partition","direction":"to",` + target, `"action":"partition","direction":"from"`,
		}},
		// In one object, Chaos Mesh would cut the pod off from the network, too.
		"a pod and a network": {
			Fault{From: &Peers{Pods: b.Pods, Networks: network.Networks}},
			[]string{
				`"action":"partition","direction":"from",` + target,
				`"action":"partition","direction":"from",` + external,
			},
		},
		"loss": {Fault{To: network, Loss: 5}, []string{
			`"action":"loss","loss":{"correlation":"0","loss":"5"},"direction":"to",` + external,
		}},
		"latency and rate": {
			Fault{To: all, Slow: &api.Slow{
				Latency: 90 * time.Second, Jitter: 1500 * time.Microsecond, Rate: 80_000_000,
			}},
			[]string{
				`"action":"netem","delay":{"correlation":"0","jitter":"1500us","latency":"90000ms"},` +
					`"rate":{"rate":"10000000bps"},"direction":"to"`,
			},
		},
		"latency": {Fault{From: b, Slow: &api.Slow{Latency: time.Millisecond}}, []string{
			`"action":"delay","delay":{"correlation":"0","jitter":"0ms","latency":"1ms"},"direction":"from",` + target,
		}},
		"rate": {Fault{To: all, Slow: &api.Slow{Rate: 80_000_000}}, []string{
			`"action":"bandwidth","bandwidth":{"buffer":100000,"limit":1000000,"rate":"10000000bps"},"direction":"to"`,
		}},
		"the lowest rate": {Fault{To: all, Slow: &api.Slow{Rate: 8000}}, []string{
			`"action":"bandwidth","bandwidth":{"buffer":10240,"limit":40960,"rate":"1000bps"},"direction":"to"`,
		}},
		"the highest rate": {Fault{To: all, Slow: &api.Slow{Rate: api.MaxRate}}, []string{
			`"action":"bandwidth","bandwidth":{"buffer":125000000,"limit":1250000000,"rate":"12500000000bps"},"direction":"to"`,
		}},
	} {
		tc.fault.Namespace, tc.fault.Pods, tc.fault.TTL = "ml", []string{"ml/a"}, 90*time.Second
		got, err := tc.fault.Manifests("gpu-fault-x")
		if err != nil || len(got) != len(tc.want) {
			t.Fatalf("%s: %d objects, %v", name, len(got), err)
		}
		for i, o := range got {
			want := map[string]any{}
			text := `{"duration":"90s","mode":"all","selector":{"pods":{"ml":["a"]}},` + tc.want[i] + `}`
			if err := json.Unmarshal([]byte(text), &want); err != nil {
				t.Fatalf("%s: %v: %s", name, err, text)
			}
			spec, _ := json.Marshal(o.Object["spec"])
			if wanted, _ := json.Marshal(want); string(spec) != string(wanted) {
				t.Errorf("%s: got\n%s\nwanted\n%s", name, spec, wanted)
			}
			if o.GetNamespace() != "ml" || !strings.HasPrefix(o.GetName(), "gpu-fault-x-") {
				t.Errorf("%s: %s/%s", name, o.GetNamespace(), o.GetName())
			}
		}
	}
}

// TestInstalled holds that a cluster without Chaos Mesh is reported, with what to do.
func TestInstalled(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	for name, want := range map[string]string{
		"": "install Chaos Mesh, or omit --via", "podchaos": "does not serve NetworkChaos", "networkchaos": "",
	} {
		if name != "" {
			client.Resources = []*metav1.APIResourceList{{
				GroupVersion: "chaos-mesh.org/v1alpha1", APIResources: []metav1.APIResource{{Name: name}},
			}}
		}
		err := Installed(client)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, wanted %q", name, err, want)
		}
		client.Resources = nil
	}
}

// TestCheckNamespaces holds that namespaces that Chaos Mesh's settings exclude are rejected.
func TestCheckNamespaces(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settings map[string]string
		want     string
	}{
		"no settings":       {},
		"another namespace": {map[string]string{"CLUSTER_SCOPED": "false", "TARGET_NAMESPACE": "x"}, `"ml" is not "x"`},
		"this namespace": {
			map[string]string{"CLUSTER_SCOPED": "false", "TARGET_NAMESPACE": "ml"}, `"open" is not "ml"`,
		},
		"all namespaces": {map[string]string{"CLUSTER_SCOPED": "true", "TARGET_NAMESPACE": "x"}, ""},
		"filtered": {
			map[string]string{"ENABLE_FILTER_NAMESPACE": "true"},
			"kubectl annotate namespace ml chaos-mesh.org/inject=enabled",
		},
	} {
		manager := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "cm", Name: "chaos-controller-manager"}}
		var env []corev1.EnvVar
		for key, value := range tc.settings {
			env = append(env, corev1.EnvVar{Name: key, Value: value})
		}
		manager.Spec.Template.Spec.Containers = []corev1.Container{{Env: env}}
		client := fake.NewClientset(manager, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ml"}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: "open", Annotations: map[string]string{"chaos-mesh.org/inject": "enabled"},
			}})
		err := CheckNamespaces(t.Context(), client, []string{"ml", "open"})
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, wanted %q", name, err, tc.want)
		}
	}
}

type noRecorder struct{ fault.Recorder }

func (noRecorder) Progress(string) {}

// TestVerified holds that a change succeeds only if Chaos Mesh reports that every selected pod and every peer is
// injected, and that its own report says what is missing otherwise.
func TestVerified(t *testing.T) {
	t.Parallel()
	made, err := Fault{
		Namespace: "ml", Pods: []string{"ml/a"}, To: &Peers{Pods: []string{"ml/b"}}, TTL: time.Minute,
	}.Manifests("x")
	if err != nil {
		t.Fatal(err)
	}
	record := func(id, key, phase string) map[string]any {
		return map[string]any{"id": id, "selectorKey": key, "phase": phase}
	}
	a, b := record("ml/a", ".", "Injected"), record("ml/b", ".Target", "Injected")
	failed := record("ml/b", ".Target", "Not Injected")
	failed["events"] = []any{map[string]any{"type": "Failed", "message": "no netem"}}
	injected := []any{map[string]any{"type": "AllInjected", "status": "True"}}
	not := []any{map[string]any{"type": "AllInjected", "status": "False"}}
	status := func(phase string, conditions []any, records ...any) map[string]any {
		return map[string]any{"conditions": conditions, "experiment": map[string]any{
			"desiredPhase": phase, "containerRecords": records,
		}}
	}
	for name, tc := range map[string]struct {
		status any
		want   string
	}{
		"injected":       {status("Run", injected, a, b), ""},
		"no report":      {nil, "check that the Deployment chaos-controller-manager is running"},
		"no pods":        {status("Run", not), "has selected no pods"},
		"not the peer":   {status("Run", injected, a), "ml/b"},
		"not the pod":    {status("Run", injected, record("ml/a", ".Target", "Injected"), b), "ml/a"},
		"failed":         {status("Run", not, a, failed), "ml/b; error for pod ml/b: no netem"},
		"waits":          {status("Run", not, a, record("ml/b", ".Target", "Not Injected/Wait")), "ml/b"},
		"no condition":   {status("Run", not, a, b), "has not injected the fault into all pods"},
		"paused":         {status("Stop", injected, a, b), `the desired phase is "Stop"`},
		"not its format": {"?", "check that the Deployment"},
	} {
		live := made[0].DeepCopy()
		if tc.status != nil {
			live.Object["status"] = tc.status
		}
		client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{gvr: "NetworkChaosList"})
		creation := fault.Change{Apply: func(ctx context.Context, _ fault.Recorder) ([]ledger.Evidence, error) {
			_, err := client.Resource(gvr).Namespace("ml").Create(ctx, live, metav1.CreateOptions{})
			return []ledger.Evidence{{Text: "created"}}, err
		}}
		change := Verified(creation, client, []*unstructured.Unstructured{made[0]}, 300*time.Millisecond)
		evidence, err := change.Apply(t.Context(), noRecorder{})
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, wanted %q", name, err, tc.want)
		}
		if err == nil && (len(evidence) != 2 || evidence[1].Source != "NetworkChaos ml/x-1" ||
			!strings.HasPrefix(evidence[1].Text, "AllInjected=True; Injected: ml/")) {
			t.Errorf("%s: %+v", name, evidence)
		}
	}
}
