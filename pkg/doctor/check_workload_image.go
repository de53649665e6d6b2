package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// formatTexts returns what kernels, shells and container runtimes say of a program for another processor.
func formatTexts() []string {
	return []string{
		"exec format error", "Exec format error", "no match for platform in manifest", "no matching manifest for",
	}
}

func checkExecFormat(f *Facts, r *Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded ||
			pod.Status.Phase == corev1.PodFailed && f.history(pod) {
			continue
		}
		if pod.Spec.NodeName == "" {
			f.checkCandidates(r, pod)
			continue
		}
		troubles := f.troubles(pod)
		if len(troubles) == 0 {
			continue
		}
		e, said := f.said(pod, troubles, formatTexts()...)
		wrong, image := f.wrongPlatform(pod, f.Node(pod.Spec.NodeName), troubles)
		if !said && len(wrong) == 0 {
			if why := f.unread(pod, troubles); why != "" && f.wantsGPU(pod) {
				r.Unknown(PodObject(pod), "%s", why)
			}
			continue
		}
		finding := f.formatFinding(pod, image)
		if said {
			finding.Evidence = append(finding.Evidence, e)
		}
		finding.Evidence = append(finding.Evidence, wrong...)
		if n := f.Node(pod.Spec.NodeName); n != nil {
			finding.Evidence = append(finding.Evidence, quoteArchitecture(n))
		}
		if !said { // a script without its first line, a crash of another kind: the image is wrong all the same
			finding.Confidence = Likely
		}
		r.Add(finding)
	}
}

func quoteArchitecture(n *Node) Evidence {
	return Evidence{
		Source: n.Object().String() + " .status.nodeInfo.architecture", Text: n.Status.NodeInfo.Architecture,
	}
}

func (f *Facts) formatFinding(pod *corev1.Pod, image string) Finding {
	if image == "" && len(pod.Spec.Containers) > 0 { // a damaged snapshot may have a pod without
		image = pod.Spec.Containers[0].Image
	}
	finding := Finding{
		Title: "the image is for another processor than the node has", Object: PodObject(pod), Nodes: onNode(pod),
		Fix: Fix{
			Text: "Use an image that has the node's platform, or send the pod to nodes of the image's (nodeSelector kubernetes.io/arch).",
			Commands: append([]string{command("crane config %s | jq -r '.os + \"/\" + .architecture'", image)},
				editCommands(pod)...),
		},
	}
	n := f.Node(pod.Spec.NodeName)
	onGPUNode := n != nil && slices.Contains(f.GPUNodes, n)
	if f.concerns(pod) != Error && !onGPUNode {
		finding.Severity = Warning
	}
	if n != nil && n.Status.NodeInfo.Architecture != "" {
		finding.Fix.Text = fmt.Sprintf(
			"Use an image that has linux/%s, or send the pod to nodes of the image's processor (nodeSelector kubernetes.io/arch).",
			n.Status.NodeInfo.Architecture,
		)
	}
	return finding
}

// wrongPlatform quotes the images of failing containers that lack the node's processor, and names the first.
func (f *Facts) wrongPlatform(pod *corev1.Pod, n *Node, troubles []trouble) ([]Evidence, string) {
	if n == nil {
		return nil, ""
	}
	var all []Evidence
	first := ""
	for _, t := range troubles {
		image := imageOf(pod, t.container)
		known, ok := f.Images[image]
		if !ok || serves(known.Platforms, n.Status.NodeInfo.Architecture) {
			continue
		}
		all = append(all, Evidence{Source: "platforms of image " + image, Text: strings.Join(known.Platforms, ", ")})
		first = cmp.Or(first, image)
	}
	return all, first
}

// serves reports whether an image runs on a processor. Nothing known counts as yes.
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

// checkCandidates looks at a GPU pod that is on no node yet: will its images run where it may go?
func (f *Facts) checkCandidates(r *Result, pod *corev1.Pod) {
	told := func(c corev1.Container) bool { _, known := f.Images[c.Image]; return known }
	if !f.wantsGPU(pod) || !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), told) {
		return
	}
	var may []*Node
	for _, n := range f.GPUNodes {
		if selects(pod, n) && foreignTaint(pod, n) == nil {
			may = append(may, n)
		}
	}
	if len(may) == 0 {
		return
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		image, known := f.Images[c.Image]
		if !known {
			continue
		}
		if image.Error != "" {
			r.Unknown(PodObject(pod), "platforms of image %s: %s", c.Image, image.Error)
			continue
		}
		unfit := keep(may, func(n *Node) bool { return !serves(image.Platforms, n.Status.NodeInfo.Architecture) })
		if len(unfit) == 0 {
			continue
		}
		finding := f.formatFinding(pod, c.Image)
		finding.Title = "the image is for another processor than the GPU nodes that the pod may run on have"
		finding.Severity, finding.Confidence, finding.Nodes = Warning, Likely, nil
		if len(unfit) < len(may) {
			finding.Title = "the image is for another processor than some of the GPU nodes that the pod may run on have"
			finding.Severity = Info
		}
		finding.Evidence = []Evidence{
			{Source: "platforms of image " + c.Image, Text: strings.Join(image.Platforms, ", ")},
			quoteArchitecture(unfit[0]),
		}
		r.Add(finding)
		return
	}
}
