package facts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

var (
	// requirement matches an instance requirement in Karpenter's messages: eks.amazonaws.com/instance-family In [p4d
	// p5].
	requirement = regexp.MustCompile(`/instance-(\w+) (In|NotIn) \[([^\]]*)\]`)
	// ofType matches an EC2 instance type, which consists of a family (including category and generation) and a size:
	// p6-b200.48xlarge.
	ofType = regexp.MustCompile(`^(([a-z]+)(\d+)[\w-]*)\.([\w-]+)$`)
	// filtered matches Karpenter's log line about a NodePool without any suitable instance type.
	filtered = regexp.MustCompile(`filtered out all instance types.*"NodePool":\{"name":"([^"]+)"`)
	// limited matches Karpenter's log line about a NodePool (or, in older releases, a Provisioner) whose limits exclude
	// instance types.
	limited = regexp.MustCompile(
		`types were excluded because they would breach limits.*"(?:provisioner|nodepool|NodePool)":(?:\{"name":)?("[^"]+")`,
	)
)

// excludedType returns the requirement in a Karpenter message that excludes all instance types that the pod selects.
func excludedType(e *corev1.Event) []signatures.Line {
	if !strings.Contains(e.Message, "no instance type met") {
		return nil
	}
	all := requirement.FindAllStringSubmatch(e.Message, -1)
	at := slices.IndexFunc(all, func(m []string) bool { return m[1] == "type" && m[2] == "In" })
	if at < 0 {
		return nil
	}
	for _, m := range all {
		part := slices.Index([]string{"", "family", "category", "generation", "size"}, m[1])
		excluded := ""
		for _, t := range strings.Fields(all[at][3]) {
			of := ofType.FindStringSubmatch(t)
			if part < 1 || of == nil || slices.Contains(strings.Fields(m[3]), of[part]) == (m[2] == "In") {
				excluded = ""
				break
			}
			excluded = fmt.Sprintf("%s, whose %s is %s", t, m[1], of[part])
		}
		if excluded != "" {
			return []signatures.Line{{Place: signatures.Spec, Evidence: finding.Evidence{
				Source: Quote(e).Source + ", compared",
				Text:   fmt.Sprintf("NodePool: instance-%s %s [%s] excludes %s", m[1], m[2], m[3], excluded),
			}}}
		}
	}
	return nil
}

// limits reports whether a line in Karpenter's log is about the limits of a NodePool that is named in an event about
// the pod.
func (f *Facts) limits(line string, pod *corev1.Pod) bool {
	m := limited.FindStringSubmatch(line)
	return m != nil && slices.ContainsFunc(f.EventsOfPod(pod), func(e *corev1.Event) bool {
		return strings.Contains(e.Message, m[1])
	})
}

// Refused returns the events about node launches that failed for lack of capacity, if the nodes belong to NodePools
// that are named in events about the pods. After such a failure, Karpenter considers the instance type unsuitable for
// some minutes.
func (f *Facts) Refused(pods []*corev1.Pod) (all []signatures.Line) {
	about := ""
	for _, pod := range pods {
		for _, e := range f.EventsOfPod(pod) {
			if text := strings.ToLower(e.Message); strings.Contains(text, "nodepool ") {
				about += text
			}
		}
	}
	if about == "" {
		return nil
	}
	for i := range f.Snapshot.Events {
		e := &f.Snapshot.Events[i]
		claim := e.InvolvedObject.Name
		if at := strings.LastIndex(claim, "-"); at > 0 && e.Reason == "InsufficientCapacityError" &&
			strings.Contains(about, `nodepool "`+claim[:at]+`"`) {
			all = append(all, signatures.Line{Place: signatures.Event, Evidence: Quote(e)})
		}
	}
	return all
}

// skips reports whether a line in Karpenter's log is about a NodePool that has no suitable instance types and that the
// pod is waiting for. A pod is waiting for a NodePool if the pod's selector or tolerations contain the NodePool's name,
// or the instance type in this name.
func skips(line string, pod *corev1.Pod) bool {
	m := filtered.FindStringSubmatch(line)
	if m == nil {
		return false
	}
	same := func(value string) bool { return value == m[1] || strings.ReplaceAll(value, ".", "-") == m[1] }
	for _, value := range pod.Spec.NodeSelector {
		if same(value) {
			return true
		}
	}
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return same(t.Value) })
}
