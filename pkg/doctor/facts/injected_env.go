package facts

import (
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kyvernos matches the annotation in which Kyverno records the policy and the rule that added variables to a pod.
var kyvernos = regexp.MustCompile(`([\w.-]+?)\.([\w-]+)\.kyverno\.io: (?:added|replaced) /spec/\w+/\d+/env`)

// turnedOff reports a container whose NVIDIA_VISIBLE_DEVICES takes the GPUs away, and who set the variable: a policy,
// or a webhook if the DaemonSet of the pod does not have it.
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
		if d := f.daemonSetOf(pod); d != nil && !slices.ContainsFunc(d, func(own corev1.Container) bool {
			return own.Name == c.Name && len(EnvOf(own.Env, name)) > 0
		}) {
			return source + ", and the template of its DaemonSet, which does not have it",
				text + ", a webhook set it"
		}
		return source, text
	}
	return "", ""
}

// daemonSetOf returns the containers in the template of the DaemonSet that owns a pod, or nil if there is none or the
// pod may be of an earlier template.
func (f *Facts) daemonSetOf(pod *corev1.Pod) []corev1.Container {
	owner := metav1.GetControllerOf(pod)
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if owner != nil && owner.Kind == "DaemonSet" && d.Name == owner.Name && d.Namespace == pod.Namespace &&
			(d.Generation == 1 || pod.Labels["pod-template-generation"] != "" &&
				pod.Labels["pod-template-generation"] == d.Annotations["deprecated.daemonset.template.generation"]) {
			t := d.Spec.Template.Spec
			return slices.Concat(t.InitContainers, t.Containers)
		}
	}
	return nil
}
