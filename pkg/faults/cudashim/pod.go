package cudashim

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// AddToPod adds the shim to a pod before it is created, in all containers except init containers. The pod's ConfigMap
// must have the content that PodData returns for the architecture of the pod's node (amd64, arm64).
func AddToPod(pod *corev1.Pod, configMap, arch string) error {
	text, err := json.Marshal(pod)
	if err != nil {
		return fmt.Errorf("encode pod %s: %w", pod.Name, err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		return fmt.Errorf("decode pod %s: %w", pod.Name, err)
	}
	spec := kubeedit.Fields("spec")
	t := Template{Path: kubeedit.Path{}, spec: spec}
	for _, c := range containers(object, spec) {
		if !c.Init {
			t.Containers = append(t.Containers, c)
		}
	}
	a := additions{
		configMap: configMap, variable: PreloadVar, preload: LibraryDir + "/" + LibraryName,
		files: []any{
			map[string]any{"key": libraryKey(arch), "path": LibraryName},
			map[string]any{"key": StateKey, "path": StateKey},
		},
	}
	if _, err := a.template(object, "pod/"+pod.Name, Chosen{Template: t, Containers: t.Containers}); err != nil {
		return err
	}
	if text, err = json.Marshal(object); err != nil {
		return fmt.Errorf("encode pod %s with the shim: %w", pod.Name, err)
	}
	*pod = corev1.Pod{}
	return json.Unmarshal(text, pod)
}

// PodData returns the content of the ConfigMap for a pod with the shim.
func PodData(arch string, library, state []byte) (map[string][]byte, error) {
	if len(library)+len(state) > maxConfigMap {
		return nil, errors.New("the shim does not fit into a ConfigMap")
	}
	return map[string][]byte{libraryKey(arch): library, StateKey: state}, nil
}
