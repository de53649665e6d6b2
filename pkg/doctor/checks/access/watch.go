package access

import (
	"cmp"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// ofAccount returns a finding about a rejected request from a pod's service account.
func ofAccount(pod *corev1.Pod, e finding.Evidence) finding.Finding {
	account := accountOf(pod)
	return finding.Finding{
		Title:  "the API server rejects a request from the pod's service account",
		Object: facts.PodObject(pod), Nodes: facts.OnNode(pod),
		Confidence: finding.Likely, Evidence: []finding.Evidence{e},
		Fix: finding.Fix{
			Text: "Check whether the program should have this permission: its log alone does not prove this. If " +
				"so, create a Role with only the verb and resource in the message, in the namespace that the " +
				"message names, and bind the Role to the service account " + account + ". Do not bind a broader role " +
				"such as edit. A binding's role cannot be changed: delete a wrong binding and recreate it.",
			Commands: []string{shell.Command("kubectl auth can-i --list -n %s --as=system:serviceaccount:%s:%s",
				pod.Namespace, pod.Namespace, account)},
		},
	}
}

func accountOf(pod *corev1.Pod) string { return cmp.Or(pod.Spec.ServiceAccountName, "default") }

// unwatched matches the API server's rejection of a request to list or watch objects.
var unwatched = regexp.MustCompile(`is forbidden: User \\*"system:serviceaccount:([\w.-]+):([\w.-]+)\\*" cannot ` +
	`(?:list|watch) resource \\*"([\w./-]+)\\*"`)

// reportUnwatched adds running pods, such as routers and controllers of model servers, that may not list or watch the
// objects with which they work. They run and are ready, but know no backends. Other pods with the same permissions may
// be unrelated to GPUs, so only pods in namespaces with GPU pods count.
func reportUnwatched(f *facts.Facts, r *engine.Result) {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Status.Phase != corev1.PodRunning || len(f.Troubles(pod)) > 0 || pod.DeletionTimestamp != nil ||
			facts.ComponentOf(pod.Labels, &pod.Spec) != "" || facts.Serves(pod) ||
			!slices.ContainsFunc(f.GPUPods, func(other *corev1.Pod) bool { return other.Namespace == pod.Namespace }) {
			continue
		}
		e, m := f.PersistentError(pod, unwatched)
		if m == nil || m[1] != pod.Namespace || m[2] != accountOf(pod) {
			continue
		}
		e.Text = words.Clip(e.Text)
		found := ofAccount(pod, e)
		found.Severity = finding.Warning
		found.Title = "the pod runs, but its service account " + m[2] + " may not list " + m[3]
		found.Cause = "A program that finds its backends or objects through the Kubernetes API finds none. The other " +
			"pods are unrelated to this."
		found.Fix.Text = "If the program needs this (service discovery in a router, a controller), create a Role " +
			"with get, list and watch for " + m[3] + " in the namespace that the message names, and a RoleBinding. "
		if m[2] == "default" {
			found.Fix.Text += "All pods without serviceAccountName use the service account default, so create one " +
				"for this program, and set serviceAccountName in the object that owns the pod."
		} else {
			found.Fix.Text += "Bind it to the service account " + m[2] + ", or upgrade the chart that installed both."
		}
		r.Add(found)
	}
}
