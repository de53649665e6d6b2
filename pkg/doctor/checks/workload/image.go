package workload

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// formatTexts returns the error messages that kernels, shells, and container runtimes print for programs built for
// another architecture.
func formatTexts() []string {
	return []string{
		"exec format error", "Exec format error", "no match for platform in manifest", "no matching manifest for",
	}
}

func checkExecFormat(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded ||
			pod.Status.Phase == corev1.PodFailed && f.History(pod) {
			continue
		}
		if pod.Spec.NodeName == "" {
			checkCandidates(f, r, pod)
			continue
		}
		troubles := f.Troubles(pod)
		if len(troubles) == 0 {
			continue
		}
		e, said := f.Said(pod, troubles, formatTexts()...)
		wrong, image := wrongPlatform(f, pod, f.Node(pod.Spec.NodeName), troubles)
		if !said && len(wrong) == 0 {
			if why := f.Unread(pod, troubles); why != "" && f.AsksForGPU(pod) {
				r.Unknown(facts.PodObject(pod), "%s", why)
			}
			continue
		}
		issue := formatFinding(f, pod, image)
		if said {
			issue.Evidence = append(issue.Evidence, e)
		}
		issue.Evidence = append(issue.Evidence, wrong...)
		if n := f.Node(pod.Spec.NodeName); n != nil {
			issue.Evidence = append(issue.Evidence, quoteArchitecture(n))
		}
		if len(wrong) == 0 && strings.Contains(e.Text, "xec format error") {
			issue.Confidence = finding.Likely
			issue.Fix.Text += " Otherwise, the program is a script without an interpreter line."
		}
		if !said { // the error differs, such as a missing interpreter line, but the image is still wrong
			issue.Confidence = finding.Likely
		}
		r.Add(issue)
	}
}

func quoteArchitecture(n *facts.Node) finding.Evidence {
	return finding.Evidence{
		Source: n.Object().String() + " .status.nodeInfo.architecture", Text: n.Status.NodeInfo.Architecture,
	}
}

func formatFinding(f *facts.Facts, pod *corev1.Pod, image string) finding.Finding {
	if image == "" && len(pod.Spec.Containers) > 0 { // a pod in a damaged snapshot may have no containers
		image = pod.Spec.Containers[0].Image
	}
	n := f.Node(pod.Spec.NodeName)
	platform := "linux/amd64"
	if n != nil && n.Status.NodeInfo.Architecture != "" {
		platform = "linux/" + n.Status.NodeInfo.Architecture
	}
	issue := finding.Finding{
		Title: "the image does not support the node's architecture", Object: facts.PodObject(pod),
		Nodes: facts.OnNode(pod),
		Fix: finding.Fix{
			Text: "Use an image for " + platform + ". If the image claims to support this platform (first command), " +
				"it contains a program for another platform: use another tag.",
			Commands: append([]string{shell.Command(
				"crane config --platform %s %s | jq -r '.os + \"/\" + .architecture'", platform, image,
			)}, facts.EditCommands(pod)...),
		},
	}
	if slices.ContainsFunc(f.GPUNodes, func(other *facts.Node) bool {
		return n != nil && other.Status.NodeInfo.Architecture != n.Status.NodeInfo.Architecture
	}) {
		issue.Fix.Text += " Alternatively, run the pod on GPU nodes with the image's architecture (nodeSelector " +
			"kubernetes.io/arch)."
	}
	onGPUNode := n != nil && n.IsGPUNode
	if f.Concerns(pod) != finding.Error && !onGPUNode {
		issue.Severity = finding.Warning
	}
	return issue
}

// wrongPlatform quotes the images of failing containers that do not support the node's architecture. It also returns
// the first such image.
func wrongPlatform(
	f *facts.Facts, pod *corev1.Pod, n *facts.Node, troubles []facts.Trouble,
) ([]finding.Evidence, string) {
	if n == nil {
		return nil, ""
	}
	var all []finding.Evidence
	first := ""
	for _, t := range troubles {
		image := facts.ImageOf(pod, t.Container)
		known, ok := f.Images[image]
		if !ok || serves(known.Platforms, n.Status.NodeInfo.Architecture) {
			continue
		}
		all = append(
			all, finding.Evidence{Source: "platforms of image " + image, Text: strings.Join(known.Platforms, ", ")},
		)
		first = cmp.Or(first, image)
	}
	return all, first
}

// serves reports whether an image supports an architecture. It returns true if either is unknown.
func serves(platforms []string, architecture string) bool {
	if len(platforms) == 0 || architecture == "" {
		return true
	}
	return slices.ContainsFunc(platforms, func(p string) bool {
		parts := strings.Split(p, "/")
		return len(parts) >= 2 && parts[0] == "linux" && parts[1] == architecture ||
			p == "unknown/unknown" && len(platforms) == 1
	})
}

// checkCandidates reports a pending GPU pod with images that do not support the architecture of the nodes that it
// selects.
func checkCandidates(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	told := func(c corev1.Container) bool { _, known := f.Images[c.Image]; return known }
	if !f.AsksForGPU(pod) || !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), told) {
		return
	}
	var may []*facts.Node
	for _, n := range f.GPUNodes {
		if scheduler.Selects(pod, n) && !scheduler.Foreign(pod, n) {
			may = append(may, n)
		}
	}
	if len(may) == 0 {
		return
	}
	for c := range facts.Containers(pod) {
		image, known := f.Images[c.Image]
		if !known {
			continue
		}
		if image.Error != "" {
			r.Unknown(facts.PodObject(pod), "platforms of image %s: %s", c.Image, image.Error)
			continue
		}
		unfit := scheduler.Keep(may,
			func(n *facts.Node) bool { return !serves(image.Platforms, n.Status.NodeInfo.Architecture) })
		if len(unfit) == 0 {
			continue
		}
		issue := formatFinding(f, pod, c.Image)
		issue.Title = "the image does not support the architecture of the GPU nodes that the pod may run on"
		issue.Severity, issue.Confidence, issue.Nodes = finding.Warning, finding.Likely, nil
		if len(unfit) < len(may) {
			issue.Title = "the image does not support the architecture of some GPU nodes that the pod may run on"
			issue.Severity = finding.Info
		}
		issue.Evidence = []finding.Evidence{
			{Source: "platforms of image " + c.Image, Text: strings.Join(image.Platforms, ", ")},
			quoteArchitecture(unfit[0]),
		}
		r.Add(issue)
		return
	}
}
