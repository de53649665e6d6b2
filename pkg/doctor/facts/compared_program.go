package facts

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// This file compares a container's command and environment with the rest of its pod.

// wordsOf returns the words in a container's command, including those in a shell command.
func wordsOf(c *corev1.Container) []string {
	return strings.Fields(strings.Join(slices.Concat(c.Command, c.Args), " "))
}

// argument returns the value of the last of the named flags in a command, or "" if none is set.
func argument(all []string, names ...string) (value string) {
	for i, word := range all {
		name, rest, joined := strings.Cut(word, "=")
		switch {
		case !slices.Contains(names, name):
		case joined:
			value = rest
		case i+1 < len(all):
			value = all[i+1]
		}
	}
	return strings.Trim(value, `"'`)
}

// probedPort returns the number of the port to which a probe connects, or 0.
func probedPort(c *corev1.Container, probe *corev1.Probe) int32 {
	port := ""
	switch {
	case probe == nil:
	case probe.HTTPGet != nil && probe.HTTPGet.Host == "":
		port = probe.HTTPGet.Port.String()
	case probe.TCPSocket != nil && probe.TCPSocket.Host == "":
		port = probe.TCPSocket.Port.String()
	}
	for _, p := range c.Ports {
		if p.Name != "" && p.Name == port {
			return p.ContainerPort
		}
	}
	number, _ := strconv.ParseUint(port, 10, 16)
	return int32(number)
}

// probedElsewhere reports a probe that connects to a different port from the one on which the pod's only server is
// configured to listen.
func (f *Facts) probedElsewhere(pod *corev1.Pod, _ *Node) (source, text string) {
	if len(pod.Spec.Containers) != 1 {
		return "", "" // a proxy in another container may listen on the probe's port
	}
	c := &pod.Spec.Containers[0]
	port := argument(wordsOf(c), "--port", "--http-port")
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", ""
	}
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if probed := strconv.Itoa(int(probedPort(c, probe))); probed != "0" && probed != port {
			return PodObject(pod).String() + ", container " + c.Name + " .args, and its probe",
				"conflict: probe of port " + probed + ", --port " + port
		}
	}
	return "", ""
}

// loopbackOnly reports a server that listens only on the loopback address, either by configuration or by default.
func (f *Facts) loopbackOnly(pod *corev1.Pod, _ *Node) (source, text string) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all := wordsOf(c)
		said := ""
		host := argument(all, "--host", "--listen-address", "--bind", "--hostname")
		listens := func(address string) bool {
			name, _, _ := strings.Cut(strings.TrimPrefix(address, "http://"), ":")
			return name == "localhost" || strings.HasPrefix(name, "127.")
		}
		sglang := slices.Contains(all, "sglang.launch_server")
		comfy := slices.ContainsFunc(all, func(word string) bool { return path.Base(word) == "main.py" }) &&
			strings.Contains(strings.ToLower(c.Image+" "+strings.Join(all, " ")), "comfyui")
		switch {
		case listens(host):
			said = "configured by " + host
		case sglang && host == "":
			said = "the default of SGLang without --host"
		case comfy && !slices.ContainsFunc(all, func(word string) bool { return strings.HasPrefix(word, "--listen") }):
			said = "the default of ComfyUI without --listen"
		}
		for _, name := range []string{"OLLAMA_HOST", "LLAMA_ARG_HOST", "GRADIO_SERVER_NAME"} {
			for _, value := range EnvOf(c.Env, name) {
				if listens(value) && host == "" {
					said = "configured by " + name + "=" + value
				}
			}
		}
		if said != "" {
			return PodObject(pod).String() + ", container " + c.Name + " .command, .args and .env",
				"conflict: listens on 127.0.0.1 only, " + said
		}
	}
	if l, ok := f.onlyOnLoopback(pod); ok && isProbed(pod, l.port) {
		return l.source, "conflict: listens on 127.0.0.1 only, according to its log: " + l.line
	}
	return "", ""
}

// otherContainersGPU reports a failing container that requests no GPU although another container in its pod requests
// one.
func (f *Facts) otherContainersGPU(pod *corev1.Pod, _ *Node) (source, text string) {
	var without []string
	with, resource := "", corev1.ResourceName("")
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		has := false
		for name, count := range asked(&c.Resources, IsGPUResource) {
			if count > 0 {
				has, with, resource = true, c.Name, name
			}
		}
		if !has && len(c.Resources.Claims) == 0 && len(EnvOf(c.Env, "NVIDIA_VISIBLE_DEVICES")) == 0 {
			without = append(without, c.Name)
		}
	}
	for _, t := range f.Troubles(pod) {
		if with != "" && slices.Contains(without, t.Container) {
			return PodObject(pod).String() + " .spec.containers[].resources.limits",
				"conflict: no GPU in container " + t.Container + ", " + string(resource) + " in container " + with
		}
	}
	return "", ""
}

// nodesDNS reports a pod that uses its node's network and therefore the node's DNS servers, which do not know the names
// of Services.
func (f *Facts) nodesDNS(pod *corev1.Pod, _ *Node) (source, text string) {
	policy := pod.Spec.DNSPolicy
	if !pod.Spec.HostNetwork || policy != "" && policy != corev1.DNSClusterFirst && policy != corev1.DNSDefault {
		return "", ""
	}
	return PodObject(pod).String() + " .spec.hostNetwork and .spec.dnsPolicy",
		"conflict: hostNetwork, dnsPolicy " + string(policy)
}

// covered reports a container that runs a script from a path that is covered by a mounted volume.
func (f *Facts) covered(pod *corev1.Pod, _ *Node) (source, text string) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for _, word := range wordsOf(c) {
			word = strings.Trim(word, `"';`)
			if !path.IsAbs(word) || path.Ext(word) == "" || path.Ext(word) != ".py" && path.Ext(word) != ".sh" {
				continue
			}
			if m := MountOf(c, word); m != nil && m.MountPath != word {
				return PodObject(pod).String() + ", container " + c.Name + " .command, .args and .volumeMounts",
					"covered: " + word + " by volume " + m.Name + " at " + m.MountPath
			}
		}
	}
	return "", ""
}

// modelOutside reports a container that is configured to load a model from a directory outside its volumes.
func (f *Facts) modelOutside(pod *corev1.Pod, _ *Node) (source, text string) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		model := argument(wordsOf(c), "--model", "--model-path", "--model-id", "--model_path", "--model-repository")
		if !path.IsAbs(model) || MountOf(c, model) != nil {
			continue
		}
		var mounts []string
		for _, m := range c.VolumeMounts {
			if m.MountPath != "/dev/shm" && !strings.HasPrefix(m.MountPath, "/var/run/") {
				mounts = append(mounts, m.MountPath)
			}
		}
		if len(mounts) > 0 {
			return PodObject(pod).String() + ", container " + c.Name + " .args and .volumeMounts",
				"conflict: model " + model + ", volumes at " + strings.Join(mounts, " and ")
		}
	}
	return "", ""
}

// tokens are the environment variables from which programs read a Hugging Face token.
var tokens = []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}

// otherContainersToken reports a container that has no Hugging Face token in its environment and is denied access to a
// repository, although another container in its pod has a token.
func (f *Facts) otherContainersToken(pod *corev1.Pod, _ *Node) (source, text string) {
	name, with := "", ""
	var without []string
	for c := range Containers(pod) {
		at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return slices.Contains(tokens, e.Name) })
		switch {
		case at >= 0:
			name, with = c.Env[at].Name, c.Name
		case len(c.EnvFrom) == 0:
			without = append(without, c.Name)
		}
	}
	for _, l := range f.LogsOf(pod) {
		if with != "" && slices.Contains(without, l.Container) && (strings.Contains(l.Text, "gated repo") ||
			strings.Contains(l.Text, "is restricted") || strings.Contains(l.Text, "401 Client Error")) {
			return PodObject(pod).String() + ", .env of its containers",
				"conflict: no " + name + " in container " + l.Container + ", which container " + with + " has"
		}
	}
	return "", ""
}

// readOnlyRoot reports a container that cannot be created because its root file system is read-only. It also names a
// GPU pod that is ready on the same node.
func (f *Facts) readOnlyRoot(pod *corev1.Pod, n *Node) (source, text string) {
	for _, t := range f.Troubles(pod) {
		for c := range Containers(pod) {
			if s := c.SecurityContext; c.Name != t.Container || t.Ran || s == nil || !Yes(s.ReadOnlyRootFilesystem) {
				continue
			}
			text = "read-only root: container " + c.Name
			for _, other := range n.Pods {
				if f.AsksForGPU(other) && RunsReady(other) {
					text += "; " + PodObject(other).String() + " has a GPU and runs on the node"
					break
				}
			}
			return PodObject(pod).String() + ", container " + c.Name + " .securityContext.readOnlyRootFilesystem", text
		}
	}
	return "", ""
}

var freeAtStart = regexp.MustCompile(
	`Free memory on device \S+ \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired GPU memory utilization \(([\d.]+),`,
)

// ownAtStart is the maximum GPU memory, in GiB, that a vLLM process uses for the CUDA context and for the buffers of
// NCCL and the network before it reserves memory.
const ownAtStart = 6.0

// overReserved reports a vLLM setting that reserves more GPU memory than vLLM's own processes leave free at startup. It
// reports nothing if more memory is in use than these processes need, or if the GPU is shared, because other processes
// then hold memory.
func (f *Facts) overReserved(pod *corev1.Pod, n *Node) (source, text string) {
	if replicas := n.Labels["nvidia.com/gpu.replicas"]; replicas != "" && replicas != "1" {
		return "", ""
	}
	least := 0.0
	for _, l := range f.LogsOf(pod) {
		if !strings.Contains(l.Text, "less than desired GPU memory utilization") {
			continue
		}
		for _, m := range freeAtStart.FindAllStringSubmatch(l.Text, -1) {
			free, _ := strconv.ParseFloat(m[1], 64)
			total, _ := strconv.ParseFloat(m[2], 64)
			wants, _ := strconv.ParseFloat(m[3], 64)
			if total == 0 || total-free > min(ownAtStart, total/10) {
				return "", ""
			}
			if least != 0 && free >= least {
				continue
			}
			least = free
			fits := math.Floor(free/total*20) / 20 // in steps of 5%, to leave room for CUDA graphs
			if fits >= wants {
				fits = math.Floor(free/total*100) / 100
			}
			source = "sizes in the " + LogSource(l)
			text = fmt.Sprintf("memory: vLLM reserves %s of %.0f GiB, but %.0f GiB are free at startup; at most %.2f "+
				"fits",
				m[3], total, free, fits)
		}
	}
	return source, text
}
