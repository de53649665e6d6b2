package workload

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

func sharedFileCheck() engine.Check {
	return engine.Check{
		ID: "wl.shared-file", Symptom: engine.Precise, Layer: finding.LayerWorkload,
		Title: "a container in a GPU pod is not permitted to read a file that another container in the pod writes",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "the ends of the logs of GPU pods, and volumes that several of their containers mount",
		Why: "A container reports \"permission denied\" for a path in an emptyDir that another container also " +
			"mounts: the two run as different users. The pod may be ready but not serve any requests. Only the last " +
			"lines of a log are used.",
		Explains: []string{"wl.pod-failing", "wl.probe-failing"},
		Doc:      "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/",
		Sources:  []string{"nvcf#410"},
		Run:      checkSharedFile,
	}
}

// deniedFile matches an error about a file that a process is not permitted to open. The path may be before or after the
// error.
var deniedFile = regexp.MustCompile(`(?i)permission denied|\bEACCES\b`)

// deniedLines is the number of lines at the end of a log that are searched.
const deniedLines = 20

func checkSharedFile(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		for _, l := range f.LogsOf(pod) {
			if l.Previous {
				continue
			}
			if path, line := denied(l); path != "" {
				reportShared(r, pod, l, path, line)
			}
		}
	}
}

// denied returns the last path for which a container's log reports a permission error, and the line that reports it.
func denied(l *snapshot.Log) (path, said string) {
	lines := strings.Split(strings.TrimSpace(l.Text), "\n")
	for _, line := range lines[max(0, len(lines)-deniedLines):] {
		if found := facts.AbsolutePath.FindString(line); found != "" && deniedFile.MatchString(line) {
			path, said = found, line
		}
	}
	return path, said
}

func reportShared(r *engine.Result, pod *corev1.Pod, l *snapshot.Log, path, said string) {
	volume := sharedVolume(pod, l.Container, path)
	for c := range facts.Containers(pod) {
		if volume == "" || c.Name == l.Container || !writes(c, volume) {
			continue
		}
		issue := finding.Finding{
			Title: "a container is not permitted to read another container's file", Confidence: finding.Likely,
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Evidence: []finding.Evidence{
				finding.FieldEvidence(facts.PodObject(pod), ".spec.volumes["+volume+"]",
					"%s is not permitted to read %s, which %s writes", l.Container, path, c.Name),
				finding.Clipped(finding.Evidence{Source: facts.LogSource(l), Text: strings.TrimSpace(said)}),
			},
		}
		if facts.RunsReady(pod) {
			issue.Severity = finding.Warning
		}
		r.Add(issue)
		return
	}
}

// sharedVolume returns the emptyDir volume that contains a path in a container, or "" if there is none.
func sharedVolume(pod *corev1.Pod, container, path string) string {
	c := facts.ContainerOf(pod, container)
	if c == nil {
		return ""
	}
	mount := facts.MountOf(c, path)
	isEmptyDir := func(v corev1.Volume) bool { return v.Name == mount.Name && v.EmptyDir != nil }
	if mount == nil || !slices.ContainsFunc(pod.Spec.Volumes, isEmptyDir) {
		return ""
	}
	return mount.Name
}

// writes reports whether a container can write to a volume.
func writes(c *corev1.Container, volume string) bool {
	return slices.ContainsFunc(c.VolumeMounts,
		func(m corev1.VolumeMount) bool { return m.Name == volume && !m.ReadOnly })
}
