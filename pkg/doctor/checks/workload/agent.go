package workload

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func agentCheck() engine.Check {
	return engine.Check{
		ID: "wl.node-agent", Layer: finding.LayerWorkload,
		Title: "a GPU pod fails because a DaemonSet that it depends on is excluded from the pod's node",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "hostPath volumes of failing GPU pods and of DaemonSets, the pods' messages; taints and labels of " +
			"their nodes",
		Why: "The pod reports a problem with a socket or directory on the node. A DaemonSet also mounts this path, " +
			"but has no pod on the node because of a taint, its nodeSelector or its affinity. This is not reported " +
			"if another DaemonSet that mounts the path has a pod on the node, or for directories that the system or " +
			"the container runtime owns, such as /dev, /etc or /var/log.",
		Explains: []string{"wl.pod-failing", "wl.probe-failing", "wl.volume", "rt.sandbox-failed"},
		Doc:      "https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations",
		Sources:  []string{"kubeflow/community-distribution#923"},
		Run:      checkAgents,
	}
}

func checkAgents(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") || r.Lacks(f, "api/daemonsets") {
		return
	}
	for _, pod := range f.Workloads() {
		n := f.Node(pod.Spec.NodeName)
		if n == nil || facts.Ended(pod) || facts.RunsReady(pod) || f.Age(pod) < startTime {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.HostPath == nil || ofSystem(v.HostPath.Path) {
				continue
			}
			if said, ok := complaint(f, pod, v); ok {
				reportAgent(f, r, pod, n, v, said)
				break
			}
		}
	}
}

// reportAgent reports a DaemonSet that mounts a volume's path but is excluded from the node. It reports nothing if
// another DaemonSet that mounts the path has a pod on the node.
func reportAgent(
	f *facts.Facts, r *engine.Result, pod *corev1.Pod, n *facts.Node, v corev1.Volume, said finding.Evidence,
) {
	var absent *appsv1.DaemonSet
	var mounts string
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		at := mountedBy(d, v.HostPath.Path)
		switch {
		case at == "":
		case slices.ContainsFunc(n.Pods, func(other *corev1.Pod) bool { return ownedBy(other, d) }):
			return
		case absent == nil:
			absent, mounts = d, at
		}
	}
	if absent == nil {
		return
	}
	object := finding.Object{Kind: "DaemonSet", Namespace: absent.Namespace, Name: absent.Name}
	found := finding.Finding{
		Title: fmt.Sprintf("DaemonSet %s/%s, which also mounts %s, has no pod on the node", absent.Namespace,
			absent.Name, words.Clip(v.HostPath.Path)),
		Object: facts.PodObject(pod), Subject: object, Nodes: facts.OnNode(pod), Confidence: finding.Likely,
		Evidence: []finding.Evidence{said},
	}
	edit := shell.Command("kubectl -n %s edit daemonset %s", absent.Namespace, absent.Name)
	if taint, kept := facts.KeptAway(n, absent); kept {
		found.Evidence = append(found.Evidence, finding.FieldEvidence(n.Object(), ".spec.taints", "%s",
			facts.TaintText(&taint)))
		found.Fix = finding.Fix{Text: fmt.Sprintf("Add a toleration for the taint %s to the DaemonSet, then "+
			"recreate the GPU pod.", facts.TaintText(&taint))}
	} else if missing := scheduler.MissingLabels(absent.Spec.Template.Spec, n); len(missing) > 0 {
		found.Evidence = append(found.Evidence, finding.FieldEvidence(object,
			".spec.template.spec nodeSelector and affinity", "%s", words.Joined(missing)))
		found.Fix = finding.Fix{Text: "Change the DaemonSet's nodeSelector and affinity so that they select the " +
			"node, or run the GPU pod on a node that they select. Then recreate the GPU pod."}
	} else {
		return // the pod is missing for another reason, perhaps temporarily
	}
	found.Evidence = append(found.Evidence, finding.FieldEvidence(object, ".spec.template.spec.volumes", "hostPath: %s",
		mounts))
	found.Fix.Commands = []string{edit, shell.Command("kubectl -n %s get pods -o wide", absent.Namespace)}
	r.Add(found)
}

func ownedBy(pod *corev1.Pod, d *appsv1.DaemonSet) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "DaemonSet" && owner.Name == d.Name && pod.Namespace == d.Namespace
}

// mountedBy returns the path of a DaemonSet's volume that equals, contains or is inside the given path, or "" if there
// is none.
func mountedBy(d *appsv1.DaemonSet, of string) string {
	of = cleaned(of)
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.HostPath == nil || ofSystem(v.HostPath.Path) {
			continue
		}
		at := cleaned(v.HostPath.Path)
		if at == of || strings.HasPrefix(at, of+"/") || strings.HasPrefix(of, at+"/") {
			return v.HostPath.Path
		}
	}
	return ""
}

// cleaned returns a host path in canonical form. /var/run is a link to /run.
func cleaned(of string) string {
	of = path.Clean("/" + of)
	if rest, ok := strings.CutPrefix(of, "/var/run/"); ok {
		return "/run/" + rest
	}
	return of
}

// ofSystem reports whether many kinds of pods mount the path: it is a directory of the system, the container runtime,
// the kubelet or the network, or is directly below the root directory.
func ofSystem(of string) bool {
	of = cleaned(of)
	if strings.Count(of, "/") < 2 {
		return true
	}
	return slices.ContainsFunc([]string{
		"/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/proc", "/root", "/sbin", "/sys", "/tmp", "/usr",
		"/opt/cni", "/var/log", "/var/tmp", "/var/run", "/var/lib/kubelet", "/var/lib/docker", "/var/lib/containerd",
		"/var/lib/containers", "/var/lib/cni", "/var/lib/rancher", "/run/docker", "/run/docker.sock", "/run/containerd",
		"/run/crio", "/run/cri-dockerd.sock", "/run/k3s", "/run/udev", "/run/systemd", "/run/dbus", "/run/netns",
		"/run/user", "/run/lock", "/run/log", "/run/secrets", "/run/xtables.lock", "/run/nvidia/driver",
		"/run/nvidia/toolkit", "/run/nvidia/validations",
	}, func(dir string) bool { return of == dir || strings.HasPrefix(of, dir+"/") })
}

// complains matches messages about failures or missing objects.
var complains = regexp.MustCompile(`(?i)wait|fail|error|fatal|no such|not found|refused|cannot|can't|could not|unable|` +
	`time[ds]? ?out|denied|not exist|missing|not a (?:socket|directory)|unavailable|not ready`)

// complaint returns a message from a pod about a problem with a volume's path.
func complaint(f *facts.Facts, pod *corev1.Pod, v corev1.Volume) (finding.Evidence, bool) {
	paths := []string{v.HostPath.Path}
	for c := range facts.Containers(pod) {
		for _, m := range c.VolumeMounts {
			if m.Name == v.Name && strings.Count(path.Clean(m.MountPath), "/") >= 2 {
				paths = append(paths, strings.TrimRight(m.MountPath, "/"))
			}
		}
	}
	for _, line := range f.Lines([]*corev1.Pod{pod}, nil) {
		if line.Place != signatures.Spec && words.ContainsAny(line.Evidence.Text, paths) &&
			complains.MatchString(line.Evidence.Text) {
			return finding.Clipped(line.Evidence), true
		}
	}
	return finding.Evidence{}, false
}
