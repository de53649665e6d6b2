package runtimeview

import (
	"cmp"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// RuntimeClass describes a RuntimeClass of the cluster.
type RuntimeClass struct {
	Name    string `json:"name"`
	Handler string `json:"handler"`
	// Known reports whether the kubelet's runtime has the handler in memory. It is nil if this is unknown.
	Known *bool `json:"known,omitempty"`
}

// Toolkit is a DaemonSet of the NVIDIA Container Toolkit, which edits containerd's configuration and restarts
// containerd.
type Toolkit struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Container string `json:"container"`
	// MatchesNode reports whether the node selector of the DaemonSet matches the node.
	MatchesNode bool      `json:"matchesNode"`
	Settings    []Setting `json:"settings"`
}

// Setting is a setting of the toolkit that affects the runtime.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// OnNode is the path on the node if Value is a path in the container.
	OnNode string `json:"onNode,omitempty"`
}

// toolkitSettings are the environment variables that select the runtime to edit (see cmd/nvidia-ctk-installer in
// nvidia-container-toolkit).
var toolkitSettings = []string{
	"RUNTIME", "RUNTIME_CONFIG", "CONTAINERD_CONFIG", "RUNTIME_CONFIG_SOURCE", "RUNTIME_DROP_IN_CONFIG",
	"RUNTIME_DROP_IN_CONFIG_HOST_PATH",
	"RUNTIME_SOCKET", "CONTAINERD_SOCKET", "RUNTIME_RESTART_MODE", "CONTAINERD_RUNTIME_CLASS", "NVIDIA_RUNTIME_NAME",
}

// ToolkitsOf returns the containers of a DaemonSet that run the toolkit, if any.
func ToolkitsOf(set appsv1.DaemonSet, nodeLabels labels.Set) []Toolkit {
	var all []Toolkit
	pod := set.Spec.Template.Spec
	for _, c := range pod.Containers {
		if !strings.Contains(c.Image, "container-toolkit") && !strings.Contains(set.Name, "container-toolkit") {
			continue
		}
		t := Toolkit{
			Namespace: set.Namespace, Name: set.Name, Container: c.Name, Settings: []Setting{},
			MatchesNode: labels.SelectorFromSet(pod.NodeSelector).Matches(nodeLabels),
		}
		for _, env := range c.Env {
			if slices.Contains(toolkitSettings, env.Name) {
				t.Settings = append(t.Settings, Setting{env.Name, env.Value, hostPathOf(env.Value, c, pod.Volumes)})
			}
		}
		all = append(all, t)
	}
	return all
}

// hostPathOf converts a path in a container to a path on the node, based on the container's mounts.
func hostPathOf(value string, c corev1.Container, volumes []corev1.Volume) string {
	_, file, found := strings.Cut(value, "file=") // the format is RUNTIME_CONFIG_SOURCE=file=/path
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

// Setting returns the first of the named variables that is set for the toolkit, or nil.
func (t Toolkit) Setting(names ...string) *Setting {
	for _, name := range names {
		for i, s := range t.Settings {
			if s.Name == name {
				return &t.Settings[i]
			}
		}
	}
	return nil
}

// Config returns the path on the node of the file that the toolkit edits. It returns "" if the setting is a path in the
// container whose path on the node is unknown.
func (t Toolkit) Config() string {
	s := t.Setting("RUNTIME_CONFIG", "CONTAINERD_CONFIG")
	switch {
	case s == nil || s.Value == "":
		return "/etc/containerd/config.toml"
	case s.OnNode == "" && strings.HasPrefix(s.Value, "/runtime/"): // a mount created by the GPU operator
		return ""
	}
	return cmp.Or(s.OnNode, s.Value)
}
