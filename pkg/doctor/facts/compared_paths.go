package facts

import (
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// This file compares the paths in a container's arguments and errors with the container's volumes, and compares a pod
// with the log of a peer.

// absent matches the path of a missing file in messages from Python, Go, C and shells, and in messages about a model
// directory.
var absent = regexp.MustCompile(
	`(?:No such file or directory: |Repo id must [^/]{0,120}|local directory specified: |` +
		`OSError: Can't load [\w ]+ (?:of|for) )'(/[^']+)'|` +
		`\b(?:open|stat|lstat|chdir|read) (/\S+): no such file|` +
		`(?:cannot (?:open|access|stat)|can't open(?: file)?) ['"]?(/[^\s'":]+)['"]?: .*No such file|` +
		`^\S*?(?:error|Error): (/[^\s:]+): No such file`,
)

// volumeAt describes the volume that contains a path in a container: claim NAME at PATH, emptyDir NAME at PATH.
func volumeAt(pod *corev1.Pod, c *corev1.Container, file string) string {
	m, text := MountOf(c, file), ""
	if m == nil {
		return "no volume"
	}
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.Name != m.Name:
		case v.PersistentVolumeClaim != nil:
			text = "claim " + v.PersistentVolumeClaim.ClaimName
		case v.ConfigMap != nil:
			text = "ConfigMap " + v.ConfigMap.Name
		case v.Secret != nil:
			text = "Secret " + v.Secret.SecretName
		case v.HostPath != nil:
			text = "hostPath " + v.HostPath.Path
		case v.EmptyDir != nil:
			text = "emptyDir " + m.Name
		}
	}
	return text + " at " + m.MountPath
}

// settingsOf returns the names and values of a container's arguments and variables.
func settingsOf(c *corev1.Container) (all [][2]string) {
	before := ""
	for _, word := range wordsOf(c) {
		if name, value, joined := strings.Cut(word, "="); joined {
			before, word = name, value
		}
		all = append(all, [2]string{before, strings.Trim(word, `"';`)})
		before = word
	}
	for i := range c.Env {
		all = append(all, [2]string{c.Env[i].Name, c.Env[i].Value})
	}
	return all
}

// lastLines is the number of lines at the end of a log that are considered to be about the program's failure.
const lastLines = 20

// missingFile reports the last file that is missing according to the log of a failing pod, if a volume should contain
// the file or the pod names it.
func (f *Facts) missingFile(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, l := range f.LogsOf(pod) {
		c := containerNamed(pod, l.Container)
		lines := strings.Split(strings.TrimSpace(l.Text), "\n")
		for _, line := range lines[max(0, len(lines)-lastLines):] {
			m := absent.FindStringSubmatch(line)
			if m == nil || c == nil {
				continue
			}
			file := strings.Join(m[1:], "")
			in, by := volumeAt(pod, c, file), ""
			for _, named := range settingsOf(c) {
				if path.IsAbs(named[1]) && len(named[1]) > 1 && under(file, named[1]) {
					by = ", named by " + named[0]
					if named[0] != "" && named[0] == strings.ToLower(named[0]) && named[0][0] != '-' {
						by = ", named by the argument of " + named[0]
					}
				}
			}
			if in != "no volume" || by != "" { // otherwise, the file belongs to the image
				source, text = pathSource(pod, c), "missing: "+file+", in "+in+by
			}
		}
	}
	return source, text
}

func pathSource(pod *corev1.Pod, c *corev1.Container) string {
	return PodObject(pod).String() + ", container " + c.Name + " .args, .env and .volumeMounts, and its log"
}

// mountedTwice reports an argument or variable in which the mount path of a volume is repeated.
func (f *Facts) mountedTwice(pod *corev1.Pod, _ *Node) (source, text string) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for _, named := range settingsOf(c) {
			if m := MountOf(c, named[1]); m != nil && len(m.MountPath) > 1 &&
				under(named[1], m.MountPath+m.MountPath) {
				source = pathSource(pod, c)
				text = "conflict: " + named[1] + " has the mount path " + m.MountPath + " twice"
			}
		}
	}
	return source, text
}

// hosts matches host names in connection errors.
var hosts = regexp.MustCompile(`[a-z0-9][-a-z0-9]*[a-z0-9]`)

// refusedByPeer reports an error in the log of a running pod that refused a connection from this pod.
func (f *Facts) refusedByPeer(pod *corev1.Pod, _ *Node) (source, text string) {
	refused, _ := f.GrepLogs(pod, "onnection refused")
	for _, name := range hosts.FindAllString(refused.Text, -1) {
		peer := Once(f, podsByHostname)[pod.Namespace+"/"+name]
		if peer == nil || peer == pod || peer.Status.Phase != corev1.PodRunning {
			continue
		}
		e, found := f.GrepLogs(peer, "o such file", "ot found", "rror", "enied", "annot ", "hostkeys", "issing")
		if found {
			return e.Source, "peer " + name + " logs: " + e.Text
		}
	}
	return "", ""
}

// movedPort reports a pod that refuses a connection although, according to its log, it coordinates the job on another
// port.
func (f *Facts) movedPort(pod *corev1.Pod, _ *Node) (source, text string) {
	refused, _ := f.GrepLogs(pod, "onnection refused")
	for i := range f.Snapshot.Pods {
		peer := &f.Snapshot.Pods[i]
		if ip := peer.Status.PodIP; ip == "" || !strings.Contains(refused.Text, ip+":") {
			continue
		}
		e, _ := f.GrepLogs(peer, "distributed service on ")
		_, port, found := strings.Cut(e.Text, ".0.0:")
		if found && !strings.Contains(refused.Text, ":"+port) {
			return e.Source, "refused, but Pod " + peer.Name + " listens on port " + port + ": " + refused.Text
		}
	}
	return "", ""
}
