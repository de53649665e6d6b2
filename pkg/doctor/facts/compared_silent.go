package facts

import (
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// silentFor is the time after which a program that is starting but logs nothing counts as stuck. Large models take
// longer to load, but log their progress.
const silentFor = 30 * time.Minute

// Silent returns the last line in the log of a container that is running but not ready, if the line is old. If there is
// no such line, the time of the returned evidence is zero. The times in the log must be in the time zone of the
// cluster.
func Silent(f *Facts, pod *corev1.Pod) (container string, last finding.Evidence) {
	for _, l := range f.LogsOf(pod) {
		line := words.LastLine(l.Text)
		at, stamped := timeOf(line, f.Now)
		for i := range pod.Status.ContainerStatuses {
			s := &pod.Status.ContainerStatuses[i]
			if stamped && s.Name == l.Container && !l.Previous && !s.Ready && s.State.Running != nil &&
				!at.Before(s.State.Running.StartedAt.Time) && f.Now.Sub(at) > silentFor {
				last = finding.Evidence{Source: "end of the " + LogSource(l), Time: at, Text: words.Clip(line)}
				return l.Container, last
			}
		}
	}
	return "", finding.Evidence{}
}

// hubName matches the name of a model on Hugging Face.
var hubName = regexp.MustCompile(`^[A-Za-z][\w.-]*/[\w.-]+$`)

// silent reports a silent container, and whether the container starts by loading a model from Hugging Face. The Hugging
// Face client downloads models through Xet unless a variable forbids it.
func (f *Facts) silent(pod *corev1.Pod, _ *Node) (source, text string) {
	name, last := Silent(f, pod)
	c := containerNamed(pod, name)
	if c == nil {
		return "", ""
	}
	with, direct := "", false
	for _, named := range settingsOf(c) {
		switch key := strings.ToLower(named[0]); {
		case key == "hf_hub_disable_xet", strings.HasSuffix(key, "_offline"):
			direct = true
		case (key == "serve" || strings.Contains(key, "model")) && hubName.MatchString(named[1]):
			with = ", with " + named[1] + " from Hugging Face through Xet"
		}
	}
	if direct {
		with = ""
	}
	return last.Source + ", and .args and .env of container " + name,
		"silent: container " + name + " for " + words.AgeText(f.Now.Sub(last.Time)) + with + ", after: " + last.Text
}

// withoutDeviceshare reports a pod that requests a share of a GPU from Volcano, if the scheduler's deviceshare plugin
// lacks the argument for such shares.
func (f *Facts) withoutDeviceshare(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, share := range [][2]string{
		{"volcano.sh/vgpu-number", "VGPUEnable"}, {"volcano.sh/gpu-memory", "GPUSharingEnable"},
	} {
		for i := range f.ConfigMaps {
			m := &f.ConfigMaps[i]
			conf := m.Data["volcano-scheduler.conf"]
			if conf != "" && !strings.Contains(conf, share[1]) && Demand(pod)[corev1.ResourceName(share[0])] > 0 {
				at := "ConfigMap " + m.Namespace + "/" + m.Name
				return at + ", and limits of " + PodObject(pod).String(),
					"conflict: limit " + share[0] + ", no deviceshare." + share[1] + " in " + at
			}
		}
	}
	return "", ""
}
