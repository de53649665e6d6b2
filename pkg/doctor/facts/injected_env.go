package facts

import (
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// kyvernos matches the annotation in which Kyverno records the policy and rule that added variables to a pod.
var kyvernos = regexp.MustCompile(`([\w.-]+?)\.([\w-]+)\.kyverno\.io: (?:added|replaced) /spec/\w+/\d+/env`)

// turnedOff reports a container whose NVIDIA_VISIBLE_DEVICES variable hides its GPUs, and the policy that set the
// variable, if Kyverno recorded it.
func (f *Facts) turnedOff(pod *corev1.Pod, _ *Node) (source, text string) {
	const name = "NVIDIA_VISIBLE_DEVICES"
	for c := range Containers(pod) {
		at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == name && e.ValueFrom == nil && slices.Contains([]string{"", "none", "void"}, e.Value)
		})
		if at < 0 {
			continue
		}
		source, text = PodObject(pod).String()+", container "+c.Name+" .env", "GPUs off: "+name+"="+c.Env[at].Value
		if m := kyvernos.FindStringSubmatch(pod.Annotations["policies.kyverno.io/last-applied-patches"]); m != nil {
			return source + ", and .metadata.annotations[policies.kyverno.io/last-applied-patches]",
				text + ", rule " + m[2] + " of Kyverno policy " + m[1] + " set it"
		}
		return source, text
	}
	return "", ""
}
