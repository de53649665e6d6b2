package facts

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
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

// created matches a program's message about creating a file with a unique name, including the file's path and size.
var created = regexp.MustCompile(`[Cc]reat(?:ed|ing) .*?(/\S*(?:[0-9a-f]{8}|\d{4})\S*) \((\d+(?:\.\d+)?) ([GM])(i?)B\)`)

// keptFile reports a file that a restarted container creates in an emptyDir in memory, if the volume has room for only
// one such file. An emptyDir keeps the files of previous containers.
func (f *Facts) keptFile(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, l := range f.LogsOf(pod) {
		c := containerNamed(pod, l.Container)
		if c == nil || !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.Name == c.Name && s.RestartCount > 0
		}) {
			continue
		}
		m := created.FindStringSubmatch(l.Text)
		if m == nil {
			continue
		}
		size, _ := strconv.ParseFloat(m[2], 64)
		unit := map[string]float64{"G": 1e9, "M": 1e6, "Gi": 1 << 30, "Mi": 1 << 20}[m[3]+m[4]]
		for _, v := range pod.Spec.Volumes {
			at := MountOf(c, m[1])
			if at == nil || v.Name != at.Name || v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil ||
				v.EmptyDir.Medium != corev1.StorageMediumMemory {
				continue
			}
			if limit := v.EmptyDir.SizeLimit.AsApproximateFloat64(); size*unit <= limit && 2*size*unit > limit {
				return pathSource(pod, c) + " and restartCount", fmt.Sprintf(
					"kept file: %s of %s %s%sB per start, volume %s at %s of %s keeps it", m[1], m[2], m[3], m[4], v.Name,
					at.MountPath, v.EmptyDir.SizeLimit)
			}
		}
	}
	return "", ""
}

// unread matches a message about a missing configuration file.
var unread = regexp.MustCompile(`(?i)(?:can ?not|can't|could not|unable to|failed to) (?:stat|open|read|find|load)\b.*?[\w.-]+\.(?:conf|cfg|ya?ml|toml|json|ini)\b`)

// unmounted reports a ConfigMap that may contain the configuration file that this pod does not find. Another pod in the
// namespace mounts the ConfigMap, while this pod mounts other objects in the same directory.
func (f *Facts) unmounted(pod *corev1.Pod, _ *Node) (source, text string) {
	if !slices.ContainsFunc(f.LogsOf(pod), func(l *snapshot.Log) bool { return unread.MatchString(l.Text) }) {
		return "", ""
	}
	own := mountedMaps(pod)
	for i := range f.Snapshot.Pods {
		other := &f.Snapshot.Pods[i]
		if other.Namespace != pod.Namespace || other == pod || Ended(other) {
			continue
		}
		maps := mountedMaps(other)
		for _, dir := range words.SortedKeys(maps) {
			has, ok := own[dir]
			if ok && len(has) == 0 && len(maps[dir]) == 1 {
				return PodObject(pod).String() + " and " + PodObject(other).String() + " .spec.volumes, and the log",
					"unmounted: ConfigMap " + maps[dir][0] + ", which Pod " + other.Name + " has at " + dir
			}
		}
	}
	return "", ""
}

// mountedMaps returns the names of the ConfigMaps in a pod's ConfigMap, Secret and projected volumes, by mount path.
func mountedMaps(pod *corev1.Pod) map[string][]string {
	all := map[string][]string{}
	for c := range Containers(pod) {
		for _, m := range c.VolumeMounts {
			for _, v := range pod.Spec.Volumes {
				switch {
				case v.Name != m.Name:
				case v.ConfigMap != nil:
					all[m.MountPath] = []string{v.ConfigMap.Name}
				case v.Secret != nil:
					all[m.MountPath] = nil
				case v.Projected != nil:
					all[m.MountPath] = nil
					for _, s := range v.Projected.Sources {
						if s.ConfigMap != nil {
							all[m.MountPath] = append(all[m.MountPath], s.ConfigMap.Name)
						}
					}
				}
			}
		}
	}
	return all
}

// countedByPeer reports the log line of a slurmd pod that explains why slurmctld receives too few GPUs from it.
func (f *Facts) countedByPeer(pod *corev1.Pod, _ *Node) (source, text string) {
	if _, low := f.GrepLogs(pod, "count reported lower than configured"); !low {
		return "", ""
	}
	for i := range f.Snapshot.Pods {
		peer := &f.Snapshot.Pods[i]
		if e, ok := f.GrepLogs(peer, "Ignoring file-less GPU"); ok && peer.Namespace == pod.Namespace {
			return e.Source, "peer " + peer.Name + " logs: " + e.Text
		}
	}
	return "", ""
}

// npusOfNode reports Ascend NPUs that HAMi allocated to a pod, if the node and the program number them differently and
// nothing maps one numbering to the other.
func (f *Facts) npusOfNode(pod *corev1.Pod, n *Node) (source, text string) {
	for _, key := range words.SortedKeys(pod.Annotations) {
		kind, ok := strings.CutSuffix(path.Base(key), "-devices-allocated")
		var devices []struct {
			ID    string `json:"id"`
			Index int    `json:"index"`
		}
		register := "hami.io/node-register-" + kind
		if !ok || !strings.HasPrefix(kind, "Ascend") ||
			json.Unmarshal([]byte(n.Annotations[register]), &devices) != nil {
			continue
		}
		var numbers []string
		last := 0
		for _, d := range devices {
			if strings.Contains(pod.Annotations[key], d.ID) {
				numbers, last = append(numbers, strconv.Itoa(d.Index)), max(last, d.Index)
			}
		}
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			if last < len(numbers) || strings.Contains(fmt.Sprint(c.Env, wordsOf(c)), "ASCEND_RT_VISIBLE_DEVICES") {
				return "", ""
			}
		}
		return PodObject(pod).String() + " .metadata.annotations[" + key + "], .env and .args, and " +
				n.Object().String() + " .metadata.annotations[" + register + "]",
			"NPUs " + strings.Join(numbers, ", ") + " of the node allocated by HAMi, ASCEND_RT_VISIBLE_DEVICES not set"
	}
	return "", ""
}
