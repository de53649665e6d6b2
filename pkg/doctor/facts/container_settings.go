package facts

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// refusedEnv reports a container that requests all GPUs with an environment variable that the node's toolkit ignores in
// unprivileged containers.
func (f *Facts) refusedEnv(pod *corev1.Pod, n *Node) (source, text string) {
	refused, variable := n.toolkitRefuses(AcceptsEnv)
	if !refused || PrivilegedForToolkit(pod) || len(GPURequests(pod)) > 0 {
		return "", ""
	}
	setting := AcceptsEnv + " = false"
	if variable != "" {
		setting = variable + "=false"
	}
	for i := range pod.Spec.Containers {
		if slices.Contains(EnvOf(pod.Spec.Containers[i].Env, "NVIDIA_VISIBLE_DEVICES"), "all") {
			return PodObject(pod).String() + " .spec.containers[].env, and the toolkit on " + n.Object().String(),
				"conflict: NVIDIA_VISIBLE_DEVICES=all, " + setting
		}
	}
	return "", ""
}

// unreadEnv reports a container that requests GPUs with an environment variable that only NVIDIA's runtime reads,
// although the container starts with its node's default runtime and that is a different runtime.
func (f *Facts) unreadEnv(pod *corev1.Pod, n *Node) (source, text string) {
	class := f.NVIDIAClass()
	if class == nil || n.View == nil || n.View.Runtime == nil || pod.Spec.RuntimeClassName != nil ||
		len(GPURequests(pod))+len(pod.Spec.ResourceClaims) > 0 {
		return "", ""
	}
	i := n.View.Runtime
	handler := cmp.Or(i.DefaultHandler, "runc") // the default of containerd
	if h, known := i.Handler(handler); !known || h.IsGPU() {
		return "", ""
	}
	for j := range pod.Spec.Containers {
		for _, value := range EnvOf(pod.Spec.Containers[j].Env, "NVIDIA_VISIBLE_DEVICES") {
			if !slices.Contains([]string{"", "none", "void"}, value) {
				return PodObject(pod).String() + " .spec.containers[].env and .spec.runtimeClassName, and the runtime of " +
						n.Object().String(), "conflict: NVIDIA_VISIBLE_DEVICES=" + value +
						", no RuntimeClass, default handler " + handler + ", class " + class.Name
			}
		}
	}
	return "", ""
}

// profiles reports a container that requests several MIG profiles, if the device plugin passes GPUs through an
// environment variable. The device plugin sets the variable for each profile, and the kubelet keeps only one value.
func (f *Facts) profiles(pod *corev1.Pod, n *Node) (source, text string) {
	if strategy, _, known := DeviceStrategy(f, n); known && strategy != "envvar" {
		return "", ""
	}
	for i := range pod.Spec.Containers {
		var all []string
		for name := range pod.Spec.Containers[i].Resources.Limits {
			if strings.HasPrefix(string(name), "nvidia.com/mig-") {
				all = append(all, string(name))
			}
		}
		if slices.Sort(all); len(all) > 1 {
			return PodObject(pod).String() + " .spec.containers[].resources.limits",
				"conflict: MIG " + strings.Join(all, " and ")
		}
	}
	return "", ""
}

// AbsolutePath matches an absolute path in a message.
var AbsolutePath = regexp.MustCompile(`/[\w.][\w./-]*\w`)

// under reports whether a path is the directory itself or inside the directory.
func under(file, dir string) bool {
	return strings.HasPrefix(file+"/", strings.TrimSuffix(dir, "/")+"/")
}

// MountOf returns the innermost volume mount in a container that contains a path, or nil if none does.
func MountOf(c *corev1.Container, file string) (found *corev1.VolumeMount) {
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		if under(file, m.MountPath) && (found == nil || len(m.MountPath) > len(found.MountPath)) {
			found = m
		}
	}
	return found
}

// ContainerOf returns the pod's container with the given name if it mounts volumes, and nil otherwise.
func ContainerOf(pod *corev1.Pod, name string) *corev1.Container {
	if c := containerNamed(pod, name); c != nil && len(c.VolumeMounts) > 0 {
		return c
	}
	return nil
}

// writes matches messages about a file that a program writes or does not have permission to write.
var writes = regexp.MustCompile(
	`(ead-only file system|nable to write|not writable)|(ermission denied)|[Ss]av(?:ing|ed)|[Ww]rit(?:e|ing) `,
)

// volumes compares the paths in a pod's logs with the volumes of its containers.
func (f *Facts) volumes(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, l := range f.LogsOf(pod) {
		c := containerNamed(pod, l.Container)
		if c == nil {
			continue
		}
		for _, line := range strings.Split(l.Text, "\n") {
			kind := writes.FindStringSubmatch(line)
			if kind == nil {
				continue
			}
			for _, file := range AbsolutePath.FindAllString(line, -1) {
				if said := volumeOf(pod, c, file, kind[1] != "", kind[2] != ""); said != "" {
					if strings.Contains(said, ", no volume, ") && pod.Status.Phase == corev1.PodRunning &&
						!RunsReady(pod) && len(f.Troubles(pod)) == 0 {
						said += ", unready"
					}
					source = PodObject(pod).String() + ", container " + c.Name + " .volumeMounts, and its log"
					text = "conflict: " + said
				}
			}
		}
	}
	return source, text
}

// volumeOf describes the problem with a path to which a container writes, or returns "" if there is none.
func volumeOf(pod *corev1.Pod, c *corev1.Container, file string, readOnly, denied bool) string {
	m, in, user := MountOf(c, file), volumeAt(pod, c, file), userOf(pod)
	switch {
	case m == nil && pod.Status.Reason == "Evicted":
		var beside []string
		for _, m := range c.VolumeMounts {
			if dir := path.Dir(m.MountPath); dir != "/" && under(file, dir) {
				beside = append(beside, m.MountPath)
			}
		}
		if len(beside) > 0 {
			return "writes " + file + ", volumes at " + strings.Join(beside, " and ")
		}
	case denied && user != nil && *user != 0 && (m == nil || strings.HasPrefix(in, "hostPath ")):
		return fmt.Sprintf("denied %s, %s, user %d", file, in, *user)
	case m == nil:
	case readOnly && (strings.HasPrefix(in, "ConfigMap ") || strings.HasPrefix(in, "Secret ")):
		return "writes " + file + ", in " + in
	case m.ReadOnly && readOnly:
		return "writes " + file + ", mounted read-only at " + m.MountPath
	case m.ReadOnly || !denied || !strings.HasPrefix(in, "claim ") || isRoot(pod, c):
	case pod.Spec.SecurityContext == nil || pod.Spec.SecurityContext.FSGroup == nil:
		return "denied " + file + ", " + in + ", no fsGroup"
	case m.SubPath == "" && path.Dir(file) == path.Clean(m.MountPath):
		return fmt.Sprintf("denied %s, %s, fsGroup %d", file, in, *pod.Spec.SecurityContext.FSGroup)
	}
	return ""
}

// isRoot reports whether a container is configured to run as root.
func isRoot(pod *corev1.Pod, c *corev1.Container) bool {
	var user *int64
	if s := pod.Spec.SecurityContext; s != nil {
		user = s.RunAsUser
	}
	if s := c.SecurityContext; s != nil && s.RunAsUser != nil {
		user = s.RunAsUser
	}
	return user != nil && *user == 0
}

// killedAtLimit reports the memory limit of a container that was OOM-killed, and the LimitRange that set this limit, if
// any.
func (f *Facts) killedAtLimit(pod *corev1.Pod, _ *Node) (source, text string) {
	for s := range Statuses(pod) {
		killed, c := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated), containerNamed(pod, s.Name)
		if killed == nil || killed.Reason != "OOMKilled" || c == nil {
			continue
		}
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok {
			source = PodObject(pod).String() + ", container " + c.Name + " .resources.limits"
			text = "OOMKilled with memory limit " + q.String() + " in container " + c.Name
			if name := f.limitedBy(pod, c.Name, q); name != "" {
				return source + ", and .metadata.annotations[" + limitRanger + "]",
					text + ", the default of LimitRange " + name
			}
			return source, text
		}
	}
	return "", ""
}

// containerNamed returns the pod's container with the given name, or nil if there is none.
func containerNamed(pod *corev1.Pod, name string) *corev1.Container {
	for c := range Containers(pod) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Stopped reports whether the container is not running. No command can be executed in such a container.
func Stopped(pod *corev1.Pod, container string) bool {
	for s := range Statuses(pod) {
		if s.Name == container {
			return s.State.Running == nil
		}
	}
	return false
}

// limitRanger is the annotation in which the API server records the values that it took from LimitRanges.
const limitRanger = "kubernetes.io/limit-ranger"

// limitedBy returns the LimitRange whose default is a container's memory limit, or "" if the pod sets the limit itself.
// It reads the annotation: "LimitRanger plugin set: cpu, memory request for container a; cpu, memory limit for init
// container b".
func (f *Facts) limitedBy(pod *corev1.Pod, container string, limit resource.Quantity) string {
	if !slices.ContainsFunc(strings.Split(pod.Annotations[limitRanger], ";"), func(set string) bool {
		return strings.Contains(set, "memory") && strings.Contains(set, " limit for ") &&
			strings.HasSuffix(set, " container "+container)
	}) {
		return ""
	}
	for i := range f.Snapshot.LimitRanges {
		r := &f.Snapshot.LimitRanges[i]
		for _, item := range r.Spec.Limits {
			if q, ok := item.Default[corev1.ResourceMemory]; ok && r.Namespace == pod.Namespace && q.Cmp(limit) == 0 {
				return r.Name
			}
		}
	}
	return "of namespace " + pod.Namespace
}

// runsElsewhere reports a ready pod with the same image on a node with a different version of the toolkit.
func (f *Facts) runsElsewhere(pod *corev1.Pod, n *Node) (source, text string) {
	if RunsReady(pod) || n.Host == nil || n.Host.Probe.ToolkitVersion == "" || len(pod.Spec.Containers) == 0 {
		return "", ""
	}
	here := n.Host.Probe.ToolkitVersion
	for _, other := range f.GPUNodes {
		if other.Host == nil || other.Host.Probe.ToolkitVersion == "" || other.Host.Probe.ToolkitVersion == here {
			continue
		}
		for _, twin := range other.Pods {
			if twin.Namespace == pod.Namespace && len(twin.Spec.Containers) > 0 && RunsReady(twin) &&
				twin.Spec.Containers[0].Image == pod.Spec.Containers[0].Image {
				return PodObject(twin).String() + " on " + other.Object().String() + ", with the same image",
					"runs elsewhere: toolkit " + other.Host.Probe.ToolkitVersion + " there, " + here + " here"
			}
		}
	}
	return "", ""
}

// fullVolume reports the claim of a full volume if a write to the volume failed.
func (f *Facts) fullVolume(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, l := range f.LogsOf(pod) {
		c := ContainerOf(pod, l.Container)
		if c == nil {
			continue
		}
		for line := range strings.Lines(l.Text) {
			if !strings.Contains(strings.ToLower(line), "no space left on device") {
				continue
			}
			for _, file := range AbsolutePath.FindAllString(line, -1) {
				if in := volumeAt(pod, c, file); strings.HasPrefix(in, "claim ") {
					return LogSource(l), "volume full: " + in + ": " + strings.TrimSpace(line)
				}
			}
		}
	}
	return "", ""
}
