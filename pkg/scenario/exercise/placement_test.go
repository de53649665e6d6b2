package exercise

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// A requirement that all possible nodes meet is harmless, unless it names the nodes. Fewer requirements are not: they
// admit other nodes, at least those that will be added.
func TestRequirementsThatAllNodesMeet(t *testing.T) {
	t.Parallel()
	node := func(name, pool, gpus string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "pool": pool, "memory": "80",
		}}}
		if gpus != "" {
			n.Labels["gpu.present"] = "true"
			n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": quantities.MustParse(gpus)}
		}
		return n
	}
	nodes := []corev1.Node{node("a", "x", "2"), node("b", "x", "2"), node("c", "x", ""), node("d", "y", "2")}
	const gpu = ", containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]"
	affinity := func(requirement string) string {
		return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{" +
			requirement + "}]}}}"
	}
	expression := func(text string) string { return affinity("matchExpressions: [{" + text + "}]") }
	const pool = "nodeSelector: {pool: x}"
	for name, test := range map[string]struct {
		was, is string
		want    bool
	}{
		"the operating system":      {"nodeSelector: {}", "nodeSelector: {kubernetes.io/os: linux}", true},
		"nodes with GPUs":           {pool + gpu, "nodeSelector: {pool: x, gpu.present: 'true'}" + gpu, true},
		"nodes with GPUs, for none": {pool, "nodeSelector: {pool: x, gpu.present: 'true'}", false},
		"an affinity":               {pool + gpu, pool + ", " + expression("key: gpu.present, operator: Exists") + gpu, true},
		"as much memory": {
			pool + gpu, pool + ", " + expression("key: memory, operator: Gt, values: ['40']") + gpu, true,
		},
		"too much memory": {
			pool + gpu, pool + ", " + expression("key: memory, operator: Gt, values: ['80']") + gpu, false,
		},
		"an affinity instead":       {pool, expression("key: pool, operator: In, values: [x]"), true},
		"an affinity to all others": {pool, expression("key: pool, operator: NotIn, values: [y]"), false},
		"less memory": {
			expression("key: memory, operator: Gt, values: ['40']"),
			expression("key: memory, operator: Gt, values: ['30']"), false,
		},
		"two pools":               {pool, expression("key: pool, operator: In, values: [x, y]"), false},
		"another pool":            {pool, "nodeSelector: {pool: y}", false},
		"no pool":                 {pool, "nodeSelector: {}", false},
		"one that all nodes have": {"nodeSelector: {kubernetes.io/os: linux}", "nodeSelector: {}", false},
		"one node":                {pool + gpu, "nodeSelector: {pool: x, kubernetes.io/hostname: a}" + gpu, false},
		"all nodes by host name": {
			pool + gpu, pool + ", " + expression("key: kubernetes.io/hostname, operator: In, values: [a, b]") + gpu,
			false,
		},
		"all nodes by name": {
			pool + gpu, pool + ", " + affinity("matchFields: [{key: metadata.name, operator: NotIn, values: [d]}]") + gpu,
			false,
		},
		"more of one node": {
			"nodeSelector: {kubernetes.io/hostname: a}", "nodeSelector: {kubernetes.io/hostname: a, kubernetes.io/os: linux}", true,
		},
		"no node before": {"nodeSelector: {pool: z}", "nodeSelector: {pool: z, kubernetes.io/os: linux}", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var was, is corev1.PodSpec
			for text, spec := range map[string]*corev1.PodSpec{test.was: &was, test.is: &is} {
				if err := yaml.Unmarshal([]byte("{"+text+"}"), spec); err != nil {
					t.Fatal(err)
				}
			}
			if got := onlyStricter(&was, &is, nodes); got != test.want {
				t.Errorf("%t", got)
			}
		})
	}
}
