package facts

import (
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// This file compares the paths in the arguments and errors of a container with its volumes, and a pod with the log of a
// peer.

// absent matches the path of a missing file in messages from Python, Go, C and shells, and in those about a model
// directory.
var absent = regexp.MustCompile(
	`(?:No such file or directory: |Repo id must [^/]{0,120}|local directory specified: )'(/[^']+)'|` +
		`\b(?:open|stat|lstat|chdir|read) (/\S+): no such file|` +
		`(?:cannot (?:open|access|stat)|can't open(?: file)?) ['"]?(/[^\s'":]+)['"]?: .*No such file|` +
		`^\S*?(?:error|Error): (/[^\s:]+): No such file`,
)

// volumeText returns a volume's kind and source: claim NAME, ConfigMap NAME, emptyDir NAME.
func volumeText(pod *corev1.Pod, name string) string {
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.Name != name:
		case v.PersistentVolumeClaim != nil:
			return "claim " + v.PersistentVolumeClaim.ClaimName
		case v.ConfigMap != nil:
			return "ConfigMap " + v.ConfigMap.Name
		case v.Secret != nil:
			return "Secret " + v.Secret.SecretName
		case v.HostPath != nil:
			return "hostPath " + v.HostPath.Path
		case v.EmptyDir != nil:
			return "emptyDir " + name
		}
	}
	return ""
}

// namedBy returns the argument or variable that names a path or one of its parent directories, or "".
func namedBy(c *corev1.Container, file string) string {
	names := func(value string) bool {
		return path.IsAbs(value) && len(value) > 1 && under(file, path.Clean(value))
	}
	all := wordsOf(c)
	for i, word := range all {
		word = strings.Trim(word, `"';`)
		flag, value, joined := strings.Cut(word, "=")
		switch {
		case joined && names(value):
			return flag
		case names(word) && i > 0 && strings.HasPrefix(all[i-1], "-"):
			return all[i-1]
		case names(word):
			return word
		}
	}
	for _, e := range c.Env {
		if names(e.Value) {
			return e.Name
		}
	}
	return ""
}

// lastLines is the number of lines at the end of a log that are about the failure of the program.
const lastLines = 20

// missingFile reports the last missing file in the log of a failed container, if a volume should contain it or the
// pod names it.
func (f *Facts) missingFile(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, t := range f.Troubles(pod) {
		c := containerNamed(pod, t.Container)
		for _, l := range f.LogsOf(pod) {
			if c == nil || l.Container != c.Name {
				continue
			}
			lines := strings.Split(strings.TrimSpace(l.Text), "\n")
			for _, line := range lines[max(0, len(lines)-lastLines):] {
				m := absent.FindStringSubmatch(line)
				if m == nil {
					continue
				}
				file := strings.Join(m[1:], "")
				in, by := "no volume", namedBy(c, file)
				if mount := MountOf(c, file); mount != nil {
					if in = volumeText(pod, mount.Name); in == "" {
						continue
					}
					in += " at " + mount.MountPath
				} else if by == "" {
					continue // a file of the image
				}
				if text = "missing: " + file + ", in " + in; by != "" {
					text += ", named by " + by
				}
				source = PodObject(pod).String() + ", container " + c.Name +
					" .args, .env and .volumeMounts, and its log"
			}
		}
	}
	return source, text
}

// mountedTwice reports an argument or variable in which the mount path of a volume is repeated.
func (f *Facts) mountedTwice(pod *corev1.Pod, _ *Node) (source, text string) {
	for c := range Containers(pod) {
		all := wordsOf(c)
		for _, e := range c.Env {
			all = append(all, e.Value)
		}
		for _, word := range all {
			if at := strings.Index(word, "/"); at >= 0 {
				file := strings.Trim(word[at:], `"';`)
				if m := MountOf(c, file); m != nil && len(m.MountPath) > 1 &&
					under(file, path.Join(m.MountPath, m.MountPath)) {
					return PodObject(pod).String() + ", container " + c.Name + " .args, .env and .volumeMounts",
						"conflict: " + file + " has the mount path " + m.MountPath + " twice"
				}
			}
		}
	}
	return "", ""
}

var (
	// unreachable matches errors of clients that reach a pod on which no program listens.
	unreachable = regexp.MustCompile(`(?i)connection refused|ECONNREFUSED`)
	// hosts matches names of hosts in such errors.
	hosts = regexp.MustCompile(`[a-z0-9][-a-z0-9]*[a-z0-9]`)
	// complains matches errors in a peer's log.
	complains = regexp.MustCompile(`(?i)error|no such file|not found|denied|cannot|failed|fatal|no hostkeys|missing`)
)

// refusedByPeer reports the last error in the log of a running pod to which this pod could not connect.
func (f *Facts) refusedByPeer(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, l := range f.LogsOf(pod) {
		for line := range strings.Lines(l.Text) {
			if !unreachable.MatchString(line) {
				continue
			}
			for _, name := range hosts.FindAllString(line, -1) {
				peer := Once(f, podsByHostname)[pod.Namespace+"/"+name]
				if peer == nil || peer == pod || peer.Status.Phase != corev1.PodRunning {
					continue
				}
				for _, said := range f.LogsOf(peer) {
					lines := strings.Split(strings.TrimSpace(said.Text), "\n")
					slices.Reverse(lines)
					if at := slices.IndexFunc(lines, complains.MatchString); at >= 0 && !said.Previous {
						return LogSource(said), "peer " + name + " logs: " + strings.TrimSpace(lines[at])
					}
				}
			}
		}
	}
	return "", ""
}
