package leftover

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// change describes what was, or would be, removed from a pod spec.
type change struct {
	gone []string
	// doubts describe what was skipped because it may belong to the user.
	doubts []string
	// names are the removed names. The managed fields show when these names were added.
	names []string
}

func (c *change) add(name, format string, args ...any) {
	if said := fmt.Sprintf(format, args...); !slices.Contains(c.gone, said) {
		c.gone = append(c.gone, said)
	}
	c.names = append(c.names, name)
}

func (c *change) doubt(format string, args ...any) {
	if said := fmt.Sprintf(format, args...); !slices.Contains(c.doubts, said) {
		c.doubts = append(c.doubts, said)
	}
}

// merge adds the changes of another pod spec of the same object.
func (c *change) merge(other change) {
	for _, said := range other.gone {
		if !slices.Contains(c.gone, said) {
			c.gone = append(c.gone, said)
		}
	}
	for _, said := range other.doubts {
		if !slices.Contains(c.doubts, said) {
			c.doubts = append(c.doubts, said)
		}
	}
	c.names = append(c.names, other.names...)
}

const preload = "LD_PRELOAD"

// Names that Dynamo's fault injection (inject_into_pods.py) uses for libraries, environment variables, volumes, and
// init containers.
var (
	dynamoLibraries  = []string{"cuda_intercept.so", "fake_cuda_xid79.so"}
	dynamoVariables  = []string{"CUDA_FAULT_INJECTION_ENABLED", "CUDA_XID_TYPE"}
	dynamoContainers = []string{"compile-cuda-fault-lib", "decode-cuda-fault-lib"}
)

const (
	dynamoVariablePrefix = "CUDA_FAULT_"
	dynamoConfigMap      = "cuda-fault-injection-lib"
	dynamoSource         = "cuda-fault-lib-source" // volume with that ConfigMap
	ourVariablePrefix    = "GPUFAULT_"
)

// Additions of this tool's CUDA faults (pkg/faults/cudashim): a library, an environment variable, and two
// volumes. The ConfigMap of the first volume is named after the run.
const (
	ourLibrary      = cudashim.LibraryName
	ourConfigPrefix = "gpu-fault-"
	ourLibVolume    = "gpu-fault-lib"
	ourRunVolume    = "gpu-fault-run"
)

// ourVolume reports whether a volume has one of this tool's names, and whether its contents are also from this tool.
func ourVolume(volume map[string]any) (named, genuine bool) {
	switch text(volume, "name") {
	case ourLibVolume:
		source, _ := field(volume, "configMap")
		return true, strings.HasPrefix(text(source, "name"), ourConfigPrefix)
	case ourRunVolume:
		_, genuine = volume["emptyDir"]
		return true, genuine
	}
	return false, false
}

// ourVariable reports whether only this tool sets the environment variable.
func ourVariable(name string) bool {
	return name == cudashim.NodeVar || strings.HasPrefix(name, ourVariablePrefix)
}

// dynamoVolume reports whether a volume has one of Dynamo's names, and whether its contents are also from Dynamo.
func dynamoVolume(volume map[string]any) (named, genuine bool) {
	switch text(volume, "name") {
	case dynamoSource:
		source, _ := field(volume, "configMap")
		return true, text(source, "name") == dynamoConfigMap
	case "cuda-fault-lib":
		_, genuine = volume["emptyDir"]
		return true, genuine
	case "node-fault-marker":
		_, genuine = volume["hostPath"]
		return true, genuine
	}
	return false, false
}

// withoutDynamo removes what Dynamo's fault injection added to a pod spec, and nothing else.
func withoutDynamo(p place) change {
	var c change
	kept := map[string]bool{} // volumes of the user with these names
	for _, volume := range elements(p.spec, "volumes") {
		if named, genuine := dynamoVolume(volume); named && !genuine {
			kept[text(volume, "name")] = true
			c.doubt("volume %s has the name that the tool uses, but different contents", text(volume, "name"))
		}
	}
	gone := func(named map[string]any) bool {
		name := text(named, "name")
		is, _ := dynamoVolume(named)
		if !is || kept[name] {
			return false
		}
		c.add(name, "volume %s", name)
		return true
	}
	for _, container := range p.containers() {
		withoutVariables(container, &c, func(name string) bool {
			return slices.Contains(dynamoVariables, name) || strings.HasPrefix(name, dynamoVariablePrefix)
		}, dynamoLibraries)
	}
	for _, container := range p.containers() {
		remove(container.fields, "volumeMounts", gone)
	}
	remove(p.spec, "initContainers", func(container map[string]any) bool {
		name := text(container, "name")
		if !slices.Contains(dynamoContainers, name) {
			return false
		}
		c.add(name, "init container %s", name)
		return true
	})
	remove(p.spec, "volumes", gone)
	if len(c.gone) == 0 {
		return change{}
	}
	for _, host := range pinnedTo(p.spec) {
		c.doubt("nodeAffinity kubernetes.io/hostname In [%s] may be from the tool: check it", host)
	}
	return c
}

// withoutOurs removes this tool's environment variables, library, mounts and volumes.
func withoutOurs(p place) change {
	var c change
	kept := map[string]bool{} // volumes of the user with these names
	for _, volume := range elements(p.spec, "volumes") {
		if named, genuine := ourVolume(volume); named && !genuine {
			kept[text(volume, "name")] = true
		}
	}
	gone := func(what string) func(map[string]any) bool {
		return func(named map[string]any) bool {
			name := text(named, "name")
			is, _ := ourVolume(named)
			if !is || kept[name] {
				return false
			}
			c.add(name, "%s %s", what, name)
			return true
		}
	}
	for _, container := range p.containers() {
		withoutVariables(container, &c, ourVariable, []string{ourLibrary})
		remove(container.fields, "volumeMounts", gone("volume"))
	}
	remove(p.spec, "volumes", gone("volume"))
	return c
}

// withoutVariables removes environment variables from a container, and libraries from its LD_PRELOAD.
func withoutVariables(container container, c *change, ours func(name string) bool, libraries []string) {
	remove(container.fields, container.env, func(variable map[string]any) bool {
		name := text(variable, "name")
		if ours(name) {
			c.add(name, "env %s", name)
			return true
		}
		if name != preload {
			return false
		}
		rest, taken := withoutLibraries(text(variable, "value"), libraries)
		for _, library := range taken {
			c.add(preload, "%s in env %s", path.Base(library), preload)
		}
		if len(taken) > 0 && rest != "" {
			variable["value"] = rest
		}
		return len(taken) > 0 && rest == ""
	})
}

// withoutLibraries removes libraries by file name from a value of LD_PRELOAD, which contains paths separated by spaces
// or colons (ld.so(8)). The separators between the remaining paths are preserved.
func withoutLibraries(value string, names []string) (rest string, taken []string) {
	const separators = ": "
	var kept strings.Builder
	for left := value; left != ""; {
		library := strings.TrimLeft(left, separators)
		separator := left[:len(left)-len(library)]
		left = ""
		if end := strings.IndexAny(library, separators); end >= 0 {
			library, left = library[:end], library[end:]
		}
		switch {
		case slices.Contains(names, path.Base(library)):
			taken = append(taken, library)
		case kept.Len() > 0:
			kept.WriteString(separator + library)
		default:
			kept.WriteString(library)
		}
	}
	if len(taken) == 0 {
		return value, nil
	}
	return strings.Trim(kept.String(), separators), taken
}

// pinnedTo returns the hosts that the required node affinity allows by name.
func pinnedTo(spec map[string]any) []string {
	required, _ := field(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
	var hosts []string
	for _, term := range elements(required, "nodeSelectorTerms") {
		for _, e := range elements(term, "matchExpressions") {
			if text(e, "key") != "kubernetes.io/hostname" || text(e, "operator") != "In" {
				continue
			}
			values, _ := e["values"].([]any)
			var names []string
			for _, value := range values {
				names = append(names, fmt.Sprint(value))
			}
			hosts = append(hosts, strings.Join(names, ", "))
		}
	}
	return hosts
}
