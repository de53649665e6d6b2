package cudashim

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	slashpath "path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// Shim is the CUDA shim that AddShim adds to an object before it is created. Nothing in the object reveals the shim's
// purpose: the shim simulates hardware (a GPU with less memory), and a candidate must neither mistake the shim for the
// fault nor find the name of the fault in it.
type Shim struct {
	// ConfigMap is the name of the ConfigMap with the libraries and the state, in the object's namespace, such as
	// "lab-gpu-k7x2".
	ConfigMap string
	// Libraries are the libraries by architecture (amd64, arm64).
	Libraries map[string][]byte
	// State is the state file. Its fault should be quiet, because otherwise the shim's line on stderr would be in the
	// workload's log.
	State []byte
	// Dir and RunDir are the shim's directories in the pods, at most 14 bytes each. Empty means ShimDir and ShimRunDir.
	Dir, RunDir string
	// Library is the file name. Empty means ShimLibrary.
	Library string
}

// Names and paths of the shim of an exercise in a pod.
const (
	ShimDir     = "/opt/gpu-lab"
	ShimRunDir  = "/run/gpu-lab"
	ShimLibrary = "libgpu-lab.so"

	// shimNodeVar contains the node's name, for a fault on one node. Many workloads have this variable for other
	// reasons.
	shimNodeVar = "NODE_NAME"

	shimVolume    = "gpu-lab"
	shimRunVolume = "gpu-lab-run"
)

// maxShimDir limits the length of the directories, which replace the usual ones in the library.
const maxShimDir = 14

// AddShim adds the shim to a Pod, or to the pod templates of another object, before it is created: in the containers
// that request GPUs or, if none does, in all except init containers. It keeps the user's own LD_PRELOAD after the shim.
func AddShim(object *unstructured.Unstructured, s Shim) error {
	s = s.withDefaults()
	if err := s.validate(); err != nil {
		return err
	}
	templates := Templates(object)
	if object.GetKind() == "Pod" && object.GetAPIVersion() == "v1" {
		templates = []Template{
			{
				Path: kubeedit.Path{}, spec: kubeedit.Path{kubeedit.Field("spec")},
				Containers: containers(object.Object, kubeedit.Path{kubeedit.Field("spec")}),
			},
		}
	}
	if len(templates) == 0 {
		return fmt.Errorf("%s has no pod template for the shim", refOf(object))
	}
	found := false
	for _, t := range templates {
		chosen := slices.DeleteFunc(slices.Clone(t.Containers), func(c Container) bool { return !c.GPU })
		if len(chosen) == 0 {
			chosen = slices.DeleteFunc(slices.Clone(t.Containers), func(c Container) bool { return c.Init })
		}
		if len(chosen) == 0 {
			continue
		}
		found = true
		if err := s.into(object.Object, refOf(object), t, chosen); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s has no container into which the shim can be injected", refOf(object))
	}
	return nil
}

func (s Shim) withDefaults() Shim {
	s.Dir, s.RunDir, s.Library = cmp.Or(s.Dir, ShimDir), cmp.Or(s.RunDir, ShimRunDir), cmp.Or(s.Library, ShimLibrary)
	return s
}

func (s Shim) validate() error {
	for _, dir := range []string{s.Dir, s.RunDir} {
		if len(dir) > maxShimDir || !slashpath.IsAbs(dir) || slashpath.Clean(dir) != dir || dir == "/" ||
			strings.ContainsAny(dir, ": $") {
			return fmt.Errorf("%s cannot be the shim's directory: must be an absolute path of at most %d bytes", dir,
				maxShimDir)
		}
	}
	switch {
	case s.Dir == s.RunDir:
		return fmt.Errorf("the shim requires two different directories, not %s twice", s.Dir)
	case s.ConfigMap == "" || len(s.Libraries) == 0 || strings.ContainsAny(s.Library, "/: $"):
		return fmt.Errorf("the shim has no ConfigMap, no library, or a file name that the linker does not accept: %q",
			s.Library)
	}
	return nil
}

func (s Shim) archs() []string { return slices.Sorted(maps.Keys(s.Libraries)) }

func (s Shim) into(object map[string]any, ref string, t Template, chosen []Container) error {
	a := additions{variable: PreloadVar, preload: s.preload()}
	var files []any
	for _, arch := range s.archs() {
		for _, directory := range directories(arch, len(s.Libraries) > 1) {
			files = append(files, map[string]any{"key": arch, "path": directory + s.Library})
		}
	}
	files = append(files, map[string]any{"key": StateKey, "path": StateKey})
	var err error
	set := func(at kubeedit.Path, value any) {
		if err == nil {
			if _, taken := kubeedit.Get(object, at); taken && at[len(at)-1].Key != "" &&
				at[len(at)-1].Field != PreloadVar {
				err = fmt.Errorf("%s: %s already exists", ref, at)
				return
			}
			_, err = kubeedit.Put(object, at, value)
		}
	}
	set(t.spec.Then(kubeedit.Field("volumes"), kubeedit.Element("name", shimVolume)), map[string]any{
		"name":      shimVolume,
		"configMap": map[string]any{"name": s.ConfigMap, "defaultMode": int64(mode), "items": files},
	})
	set(t.spec.Then(kubeedit.Field("volumes"), kubeedit.Element("name", shimRunVolume)), map[string]any{
		"name": shimRunVolume, "emptyDir": map[string]any{"sizeLimit": "1Mi"},
	})
	for _, c := range chosen {
		at, value, problem := a.preloadOf(object, t, c)
		if problem != nil {
			return fmt.Errorf("%s: %w", ref, problem)
		}
		mounts := c.path.Then(kubeedit.Field("volumeMounts"))
		set(mounts.Then(kubeedit.Element("mountPath", s.Dir)),
			map[string]any{"name": shimVolume, "mountPath": s.Dir, "readOnly": true})
		set(mounts.Then(kubeedit.Element("mountPath", s.RunDir)),
			map[string]any{"name": shimRunVolume, "mountPath": s.RunDir})
		set(at, value)
		node := c.path.Then(kubeedit.Field("env"), kubeedit.Element("name", shimNodeVar))
		source := map[string]any{"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": "spec.nodeName"}}
		switch users := kubeedit.Map(object, node); {
		case users == nil:
			set(node, map[string]any{"name": shimNodeVar, "valueFrom": source})
		case kubeedit.Text(users, kubeedit.Fields("valueFrom", "fieldRef", "fieldPath")) != "spec.nodeName":
			return fmt.Errorf("%s: variable %[3]s of container %[2]q is not set to spec.nodeName: rename it", ref,
				c.Name, shimNodeVar)
		}
	}
	return err
}

// preload returns the path for ld.so, which expands $PLATFORM to its name for the processor.
func (s Shim) preload() string {
	if len(s.Libraries) > 1 {
		return s.Dir + "/$PLATFORM/" + s.Library
	}
	return s.Dir + "/" + s.Library
}

// ShimConfigMap returns the ConfigMap that must be created before the object.
func ShimConfigMap(namespace string, s Shim) (*unstructured.Unstructured, error) {
	s = s.withDefaults()
	if err := s.validate(); err != nil {
		return nil, err
	}
	data := map[string]any{}
	size := 0
	add := func(key string, content []byte) {
		size += len(key) + len(content)
		data[key] = base64.StdEncoding.EncodeToString(content)
	}
	for _, arch := range s.archs() {
		library, err := s.neutralLibrary(s.Libraries[arch])
		if err != nil {
			return nil, fmt.Errorf("prepare the library for %s: %w", arch, err)
		}
		add(arch, library)
	}
	state, err := neutralState(s.State)
	if err != nil {
		return nil, err
	}
	add(StateKey, state)
	if size > maxConfigMap {
		return nil,
			fmt.Errorf("the libraries require %d KiB, but a ConfigMap can contain at most %d KiB", size>>10, maxConfigMap>>10)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata":   map[string]any{"name": s.ConfigMap, "namespace": namespace},
		"binaryData": data,
	}}, nil
}
