package exercise

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// A repair passes only if the next pods, the next rollout and the next drain work as well. Candidates tried each of
// these changes in addition to a correct repair.
func TestWorsened(t *testing.T) {
	const deployment = "{spec: {template: {spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}}}}"
	container := func(fields string) string {
		return "{spec: {template: {spec: {containers: [{name: main, " + fields + "}]}}}}"
	}
	anti := func(term string) string {
		return "{spec: {template: {metadata: {labels: {app: a}}, spec: {affinity: {podAntiAffinity: " +
			"{requiredDuringSchedulingIgnoredDuringExecution: [" + term + "]}}}}}}"
	}
	for name, c := range map[string]struct {
		kind, was, is, want string
	}{
		"ordinary requests and limits": {
			"Deployment", deployment,
			container("resources: {limits: {memory: 2Gi, cpu: 4}, requests: {cpu: 500m, memory: 64Mi}}"), "",
		},
		"evicted by its first file": {
			"Deployment", deployment, container("resources: {limits: {ephemeral-storage: 1Mi}}"),
			"resources.limits.ephemeral-storage is 1Mi (before: none)",
		},
		"killed while it works": {
			"Deployment", deployment, container("resources: {limits: {memory: 64Mi}}"),
			"resources.limits.memory is 64Mi",
		},
		"takes the node's processors": {
			"Deployment", deployment, container("resources: {requests: {cpu: 1500m}}"),
			"resources.requests.cpu is 1500m",
		},
		"as before": {
			"Deployment", container("resources: {limits: {memory: 32Mi}}"),
			container("resources: {limits: {memory: 32Mi}}"), "",
		},
		"starts only where the image is": {
			"Deployment", deployment, container("imagePullPolicy: Never"), "imagePullPolicy is Never",
		},
		"initialized only where the image is": {
			"Deployment", "{}",
			"{spec: {template: {spec: {initContainers: [{name: load, imagePullPolicy: Never}]}}}}",
			"container load: imagePullPolicy is Never",
		},
		"keeps its node": {
			"Node", "{metadata: {annotations: {example.com/note: a}}}",
			"{metadata: {annotations: {cluster-autoscaler.kubernetes.io/scale-down-disabled: 'true'}}}",
			"controllers obey the annotation cluster-autoscaler.kubernetes.io/scale-down-disabled",
		},
		"a note on a node":    {"Node", "{}", "{metadata: {annotations: {example.com/note: a}}}", ""},
		"no rollout any more": {"StatefulSet", deployment, "{spec: {updateStrategy: {type: OnDelete}}}", "OnDelete"},
		"no rollout for most": {
			"StatefulSet", "{}", "{spec: {updateStrategy: {rollingUpdate: {partition: 9}}}}", "partition is 9",
		},
		"excludes its next revision": {
			"Deployment", deployment, anti("{labelSelector: {matchLabels: {app: a}}, " +
				"mismatchLabelKeys: [pod-template-hash], topologyKey: kubernetes.io/hostname}"),
			"pods of two revisions exclude each other",
		},
		"excludes others": {
			"Deployment", deployment, anti("{labelSelector: {matchExpressions: [{key: job-name, operator: Exists}]}, " +
				"namespaceSelector: {}, topologyKey: kubernetes.io/os}"),
			"keeps the pods of others away",
		},
		"one at a time": {
			"Deployment", deployment,
			anti("{labelSelector: {matchLabels: {app: a}}, topologyKey: kubernetes.io/os}"),
			"only one of its pods",
		},
		"one per node": {
			"Deployment", deployment,
			anti("{labelSelector: {matchLabels: {app: a}}, topologyKey: kubernetes.io/hostname}"), "",
		},
		"beside others": {
			"Deployment", deployment,
			"{spec: {template: {metadata: {labels: {app: a}}, spec: {affinity: {podAffinity: " +
				"{requiredDuringSchedulingIgnoredDuringExecution: " +
				"[{labelSelector: {matchLabels: {app: store}}, topologyKey: kubernetes.io/hostname}]}}}}}}",
			"only run beside pods of others",
		},
		"a policy for one revision": {
			"NetworkPolicy", "{spec: {egress: [{to: [{podSelector: {matchLabels: {app: a}}}]}]}}",
			"{spec: {egress: [{to: [{podSelector: {matchLabels: {app: a, pod-template-hash: x}}}]}]}}",
			"the next rollout changes",
		},
		"a policy for one revision, by expression": {
			"NetworkPolicy", "",
			"{spec: {podSelector: {matchExpressions: [{key: pod-template-hash, operator: In, values: [x]}]}}}",
			"the next rollout changes",
		},
		"no drain any more":    {"PodDisruptionBudget", "", "{spec: {maxUnavailable: 0}}", "allows no eviction"},
		"no drain, in percent": {"PodDisruptionBudget", "", "{spec: {minAvailable: 100%}}", "allows no eviction"},
		"an ordinary budget":   {"PodDisruptionBudget", "", "{spec: {maxUnavailable: 1}}", ""},
		"a token for ever":     {"Secret", "", "{type: kubernetes.io/service-account-token}", "does not expire"},
		"a token that claims to be OpenShift's": {
			"Secret", "", "{type: kubernetes.io/service-account-token, metadata: {annotations: {kubernetes.io/created-by: x}}}",
			"does not expire",
		},
		"an ordinary Secret": {"Secret", "", "{type: Opaque}", ""},
		"cannot be deleted":  {"ClusterRoleBinding", "", "{metadata: {finalizers: [x.y/z]}}", "the finalizer x.y/z"},
	} {
		ref := scenario.Ref{APIVersion: "v1", Kind: c.kind, Namespace: "team-a", Name: "x"}
		d := baseline.Difference{Ref: ref, Kind: baseline.Changed}
		if c.was == "" {
			d.Kind = baseline.Created
		}
		parsed := func(text string) func(scenario.Ref) map[string]any {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(text), &object); err != nil {
				t.Fatal(err)
			}
			// As in a baseline, whole numbers are integers.
			object = integers(object).(map[string]any)
			return func(scenario.Ref) map[string]any { return object }
		}
		was := func(scenario.Ref) map[string]any { return nil }
		if c.was != "" {
			was = parsed(c.was)
		}
		all := []baseline.Difference{d}
		worsened(all, []string{"team-a"}, func(scenario.Ref) bool { return true }, was, parsed(c.is))
		if got := all[0].Note; (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		all[0].Note = ""
		worsened(all, []string{"team-b"}, func(scenario.Ref) bool { return false }, was, parsed(c.is))
		if got := all[0].Note; got != "" {
			t.Errorf("%s, by somebody else: got %q, want no note", name, got)
		}
	}
}

// integers replaces the numbers of sigs.k8s.io/yaml, which are floats, with integers.
func integers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			value[k] = integers(v)
		}
	case []any:
		for i, v := range value {
			value[i] = integers(v)
		}
	case float64:
		return int64(value)
	}
	return value
}
