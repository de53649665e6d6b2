package runtime

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// runtimeClass is a RuntimeClass of the cluster.
type runtimeClass struct {
	Name    string `json:"name"`
	Handler string `json:"handler"`
	// Known is whether the kubelet's runtime has the handler in memory; not given when that is not known.
	Known *bool `json:"known,omitempty"`
}

// toolkit is a DaemonSet of the NVIDIA container toolkit, which edits a containerd's configuration and restarts it.
type toolkit struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Container string `json:"container"`
	// MatchesNode is whether its node selector lets it run on the node.
	MatchesNode bool      `json:"matchesNode"`
	Settings    []setting `json:"settings"`
}

// setting is what the toolkit was told about the runtime.
type setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// OnNode is the path on the node, where Value is one in the container.
	OnNode string `json:"onNode,omitempty"`
}

// toolkitSettings are the toolkit's variables that say which runtime it edits (cmd/nvidia-ctk-installer in nvidia-container-toolkit).
var toolkitSettings = []string{
	"RUNTIME", "RUNTIME_CONFIG", "CONTAINERD_CONFIG", "RUNTIME_CONFIG_SOURCE", "RUNTIME_DROP_IN_CONFIG", "RUNTIME_DROP_IN_CONFIG_HOST_PATH",
	"RUNTIME_SOCKET", "CONTAINERD_SOCKET", "RUNTIME_RESTART_MODE", "CONTAINERD_RUNTIME_CLASS", "NVIDIA_RUNTIME_NAME",
}

// readCluster reads what the cluster says about runtimes. Who may not read it gets a warning, and the node's own side.
func readCluster(ctx context.Context, client kubernetes.Interface, nodeLabels labels.Set) (classes []runtimeClass, toolkits []toolkit, warnings []string) {
	list, err := client.NodeV1().RuntimeClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("the cluster's RuntimeClasses are not shown: %v", err))
	} else {
		for _, c := range list.Items {
			classes = append(classes, runtimeClass{Name: c.Name, Handler: c.Handler})
		}
	}
	sets, err := client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return classes, nil, append(warnings, fmt.Sprintf("what the NVIDIA container toolkit was told is not shown: %v", err))
	}
	for _, set := range sets.Items {
		toolkits = append(toolkits, toolkitsOf(set, nodeLabels)...)
	}
	return classes, toolkits, warnings
}

func toolkitsOf(set appsv1.DaemonSet, nodeLabels labels.Set) []toolkit {
	var all []toolkit
	pod := set.Spec.Template.Spec
	for _, c := range pod.Containers {
		if !strings.Contains(c.Image, "container-toolkit") && !strings.Contains(set.Name, "container-toolkit") {
			continue
		}
		t := toolkit{Namespace: set.Namespace, Name: set.Name, Container: c.Name, Settings: []setting{}, MatchesNode: labels.SelectorFromSet(pod.NodeSelector).Matches(nodeLabels)}
		for _, env := range c.Env {
			if slices.Contains(toolkitSettings, env.Name) {
				t.Settings = append(t.Settings, setting{env.Name, env.Value, hostPathOf(env.Value, c, pod.Volumes)})
			}
		}
		all = append(all, t)
	}
	return all
}

// hostPathOf follows a path in a container to the node, through its mounts.
func hostPathOf(value string, c corev1.Container, volumes []corev1.Volume) string {
	_, file, found := strings.Cut(value, "file=") // RUNTIME_CONFIG_SOURCE=file=/path
	if !found {
		file = value
	}
	if !path.IsAbs(file) {
		return ""
	}
	best, result := 0, ""
	for _, m := range c.VolumeMounts {
		inside, below := strings.CutPrefix(file, strings.TrimSuffix(m.MountPath, "/"))
		if !below || inside != "" && inside[0] != '/' || len(m.MountPath) <= best {
			continue
		}
		for _, v := range volumes {
			if v.Name == m.Name && v.HostPath != nil {
				best, result = len(m.MountPath), path.Join(v.HostPath.Path, m.SubPath, inside)
			}
		}
	}
	if result == file {
		return ""
	}
	return result
}

// tells is what the toolkit was told, by the first of these variables that it has, as a path on the node.
func (t toolkit) tells(names ...string) string {
	for _, name := range names {
		for _, s := range t.Settings {
			if s.Name == name && s.OnNode != "" {
				return s.OnNode
			}
			if s.Name == name {
				return s.Value
			}
		}
	}
	return ""
}
