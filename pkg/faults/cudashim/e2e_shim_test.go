//go:build e2e && scenario

package cudashim_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// trainer returns the image of the sample CUDA workload, loaded into the nodes.
func (s *site) trainer() string {
	s.Helper()
	out, err := exec.Command("../../../test/cluster/trainer").Output()
	if err != nil {
		s.Fatalf("no sample workload: %v; test/cluster/trainer loads it", err)
	}
	return strings.TrimSpace(string(out))
}

func (s *site) shim(f cudafault.Fault) cudashim.Shim {
	s.Helper()
	shim := cudashim.Shim{ConfigMap: "lab-gpu-k7x2", Libraries: map[string][]byte{}}
	for _, arch := range []string{"amd64", "arm64"} {
		library, err := cudafault.Library(arch, cudafault.LayerDriver)
		if err != nil {
			s.Fatal(err)
		}
		shim.Libraries[arch] = library
	}
	f.Quiet = true
	state, err := f.State("scenario-bcdfgh", uint64(time.Now().UnixNano()), time.Now(), time.Time{})
	if err != nil {
		s.Fatal(err)
	}
	if shim.State, err = state.Encode(); err != nil {
		s.Fatal(err)
	}
	return shim
}

func (s *site) create(object *unstructured.Unstructured) {
	s.Helper()
	gvk := object.GroupVersionKind()
	mapping, err := s.cluster.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		s.Fatal(err)
	}
	_, err = s.cluster.Dynamic.Resource(mapping.Resource).Namespace(s.namespace).Create(s.Context(), object,
		metav1.CreateOptions{FieldManager: "kubectl-create", FieldValidation: "Strict"})
	if err != nil {
		s.Fatal(err)
	}
}

// logs returns those of the containers of a pod's label, the ended ones too.
func (s *site) logs(label string) (text string) {
	s.Helper()
	pods, err := s.cluster.Client.CoreV1().Pods(s.namespace).List(s.Context(), metav1.ListOptions{LabelSelector: label})
	if err != nil {
		s.Fatal(err)
	}
	for _, pod := range pods.Items {
		for _, previous := range []bool{false, true} {
			raw, err := s.cluster.Client.CoreV1().Pods(s.namespace).GetLogs(pod.Name,
				&corev1.PodLogOptions{Container: "main", Previous: previous}).DoRaw(s.Context())
			if err == nil {
				text += string(raw)
			}
		}
	}
	return text
}

// A Deployment comes with a GPU that has 16 GiB, as its first revision: its program, which wants 32, dies of it with
// the driver's own error, and nothing that a candidate reads names the cause.
func TestALabsShimIsThereFromTheFirstRevision(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	image := s.trainer()
	document := fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: train, namespace: %s}, spec: {selector: {matchLabels: {app: train}},
  template: {metadata: {labels: {app: train}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: IMAGE, imagePullPolicy: Never,
    env: [{name: TRAINER_BYTES, value: "34359738368"}], resources: {limits: {nvidia.com/gpu: 1}}}, {name: side, image: "busybox:1.35", command: [sleep, "600"]}]}}}}`,
		s.namespace)
	object := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(document, "IMAGE", image)))
	if err == nil {
		err = object.UnmarshalJSON(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	shim := s.shim(cudafault.Fault{MemLimit: 16 << 30})
	if err := cudashim.AddShim(object, shim); err != nil {
		t.Fatal(err)
	}
	cm, err := cudashim.ShimConfigMap(s.namespace, shim)
	if err != nil {
		t.Fatal(err)
	}
	s.create(cm)
	s.create(object)
	s.until("the program dies of its memory", func() (bool, string) {
		text := s.logs("app=train")
		return strings.Contains(text, "16384 MiB free") && strings.Contains(text, "out of memory"), text
	})
	text := s.logs("app=train")
	t.Log(text)

	// What a candidate reads, but for the image, whose name is the sample's.
	deployment, err := s.cluster.Client.AppsV1().Deployments(s.namespace).Get(s.Context(), "train", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if revision := deployment.Annotations["deployment.kubernetes.io/revision"]; revision != "1" {
		t.Errorf("revision %s", revision)
	}
	sets, err := s.cluster.Client.AppsV1().ReplicaSets(s.namespace).List(s.Context(), metav1.ListOptions{})
	if err != nil || len(sets.Items) != 1 {
		t.Fatalf("%v: %d ReplicaSets", err, len(sets.Items))
	}
	configMap, err := s.cluster.Client.CoreV1().ConfigMaps(s.namespace).Get(s.Context(), shim.ConfigMap,
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]any{
		"deployment": deployment, "replica set": sets.Items[0], "config map": configMap, "log": text,
	} {
		seen, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		visible := strings.ToLower(strings.ReplaceAll(string(seen), image, ""))
		for _, word := range []string{"gpu-fault", "gpu_fault", "gpufault", "shim", "inject", "memlimit", "mem-limit"} {
			if strings.Contains(visible, word) {
				t.Errorf("a candidate reads %q in the %s: %s", word, name, visible)
			}
		}
	}
	for key, data := range configMap.BinaryData {
		if strings.Contains(strings.ToLower(string(data)), "fault") {
			t.Errorf("%s of the ConfigMap tells what it is", key)
		}
	}
	if len(deployment.Spec.Template.Spec.Containers[1].VolumeMounts) > 0 {
		t.Error("a container without a GPU got the shim")
	}
}

// A GPU that dies stays dead for the container's next start: the mark of it is in the pod, whose folder for it is found
// under its other name.
func TestALabsGPUStaysLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{
			"name": "train", "namespace": s.namespace, "labels": map[string]any{"app": "train"},
		},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": s.trainer(),
			"imagePullPolicy": "Never",
			"resources":       map[string]any{"limits": map[string]any{"nvidia.com/gpu": "1"}}}}},
	}}
	shim := s.shim(cudafault.Fault{XID: 79, Trigger: cudafault.Trigger{AfterCalls: 60}})
	if err := cudashim.AddShim(object, shim); err != nil {
		t.Fatal(err)
	}
	cm, err := cudashim.ShimConfigMap(s.namespace, shim)
	if err != nil {
		t.Fatal(err)
	}
	s.create(cm)
	s.create(object)
	s.until("its GPU is lost, for its next start too", func() (bool, string) {
		text := s.logs("app=train")
		return strings.Contains(text, "(999)") && strings.Contains(text, "(100)") ||
			strings.Count(text, "Error") > 1, text
	})
	text := s.logs("app=train")
	t.Log(text)
	if strings.Contains(strings.ToLower(text), "fault") {
		t.Error("the log names the cause")
	}
}

// A fault of one node acts on that node and on no other: the shim learns by a variable that many have where it is.
func TestALabsFaultOfOneNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes, err := s.cluster.Client.CoreV1().Nodes().List(s.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) < 2 {
		t.Fatalf("%v: it takes two nodes: start the cluster with NODES=2", err)
	}
	bad, good := nodes.Items[0].Name, nodes.Items[1].Name
	shim := s.shim(cudafault.Fault{XID: 79, Scope: cudafault.Scope{Nodes: []string{bad}}})
	cm, err := cudashim.ShimConfigMap(s.namespace, shim)
	if err != nil {
		t.Fatal(err)
	}
	s.create(cm)
	image := s.trainer()
	for _, node := range []string{bad, good} {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": node, "namespace": s.namespace, "labels": map[string]any{"on": node}},
			"spec": map[string]any{"nodeName": node, "restartPolicy": "Never",
				"containers": []any{map[string]any{
					"name": "main", "image": image, "imagePullPolicy": "Never",
					"env": []any{map[string]any{"name": "TRAINER_STEPS", "value": "20"}},
				}}},
		}}
		if err := cudashim.AddShim(object, shim); err != nil {
			t.Fatal(err)
		}
		s.create(object)
	}
	s.until("the one fails, the other does not", func() (bool, string) {
		on, off := s.logs("on="+bad), s.logs("on="+good)
		return strings.Contains(on, "(100)") && strings.Contains(off, "finished 20 steps"), on + "\n" + off
	})
}
