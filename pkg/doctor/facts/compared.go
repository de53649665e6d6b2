package facts

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

// This file derives facts by comparing several objects. Signatures that match these facts provide the titles and fixes.

// compared returns these facts about a pod, one per line:
//
//	advertised: no node has RESOURCE, and the cluster has no device plugin for it    for resources of other vendors
//	vgpu: N of N GPUs of Node NAME have vgpu-memory SIZE (smallest: SIZE), container NAME requests N
//	vgpu fits: ...                   the same, if the GPUs are large enough
//	webhook certificate: clients of NAMESPACE/NAME reject it: LINE    of HAMi's webhook, which sets schedulers
//	conflict: STRATEGY refused       the toolkit ignores how the device plugin passes GPUs to the pod
//	conflict: DEVICE_LIST_STRATEGY=envvar, CDI on    the operator's setting for the device plugin contradicts CDI
//	conflict: claims N, CDI off      the DRA driver passes N devices to the pod through CDI
//	conflict: driver root / not DIR  the DRA driver searches / for the driver, which is in DIR
//	unanswered: NAMESPACE/NAME:PORT  a timeout although the pods are ready; no policy applies
//	conflict: NVIDIA_VISIBLE_DEVICES=all, SETTING = false    the toolkit ignores the variable in unprivileged containers
//	conflict: NVIDIA_VISIBLE_DEVICES=all, VARIABLE=false     the same, set by a variable of the toolkit's DaemonSet
//	conflict: writes PATH, mounted read-only at PATH         a write fails because of the mount
//	conflict: denied PATH, claim NAME at PATH, no fsGroup    the user cannot write to the volume
//	conflict: writes PATH, volumes at PATHS                  an evicted pod wrote outside its volumes
//	conflict: MIG RESOURCE and RESOURCE                      a container requests several MIG profiles
//	conflict: probe of port PORT, --port PORT                the server listens on another port
//	conflict: listens on 127.0.0.1 only, WHY                 the server is unreachable from outside the container
//	conflict: no GPU in container NAME, RESOURCE in container NAME    the failing container requests no GPU
//	conflict: hostNetwork, dnsPolicy POLICY                  the pod uses its node's DNS servers
//	conflict: model PATH, volumes at PATHS                   no volume of the container contains the model
//	missing: PATH, in (no volume | KIND NAME at PATH)(, named by ARGUMENT)    a failed container does not find a file
//	conflict: PATH has the mount path PATH twice             in an argument or variable
//	conflict: denied PATH, (no volume | hostPath NAME at PATH), user NUMBER    (, unready: the pod runs, not ready)
//	conflict: writes PATH, in (ConfigMap | Secret) NAME at PATH    these volumes are read-only
//	peer NAME logs: LINE                                     the last error of a pod that refuses a connection
//	peer NAME logs: LINE                                     the reason why slurmd reports too few GPUs to this pod
//	unmounted: ConfigMap NAME, which Pod NAME has at PATH    the pod misses a configuration file and mounts less there
//	kept file: PATH of SIZE per start, volume NAME at PATH of SIZE keeps it    a restarted container has no room
//	NPUs NUMBERS of the node allocated by HAMi, ASCEND_RT_VISIBLE_DEVICES not set    and they do not begin with 0
//	refused, but Pod NAME listens on port PORT: LINE         the pod at the address in LINE, according to its log
//	covered: PATH by volume NAME at PATH                     a volume hides the program in the image
//	GPUs off: NVIDIA_VISIBLE_DEVICES=VALUE, WHO set it       the variable hides the GPUs
//	volume full: claim NAME at PATH: MESSAGE                 a write fails because the volume is full
//	OOMKilled with memory limit QUANTITY in container NAME(, the default of LimitRange NAME)
//	runs elsewhere: toolkit VERSION there, VERSION here      a pod with the same image runs on another node
//	hangs in the library of HAMi; nvidia-smi on the node works with driver VERSION
//	hangs with LD_PRELOAD=PATH; nvidia-smi on the node works with driver VERSION
//	works as root, but fails as user NUMBER                  a pod with the same image runs on the node as root
//	containerd restarted at TIME, the toolkit configured it at TIME   before the pod started
//	stale: OSTREE_VERSION=VERSION, (no worker of NFD on the node | a worker of NFD runs)    the node's image differs
//	name: no pod has the DNS name NAME: REASON               see NamesPeers for other facts about pod names
//	memory: vLLM reserves SHARE of GIB GiB, but GIB GiB are free at startup; at most SHARE fits
//	conflict: no VARIABLE in container NAME, which container NAME has
//	read-only root: container NAME                           the container cannot be created
//	mesh: CONTAINER between the ranks of KIND NAME(, which are waiting at the rendezvous)
//	mesh: init container NAME needs a connection and runs before CONTAINER    CONTAINER proxies the connection
//	startup taint KEY left on NODE: Pod NAMESPACE/NAME has been ready there for AGE    the pod should remove the taint
//	kept off: NUMBER pods, such as NAME, must not share a KEY with pods that match SELECTOR
//	conflict: no RuntimeClass, pods with NAME have the driver    the pod relies on its node's default runtime
//	conflict: NVIDIA_VISIBLE_DEVICES=VALUE, no RuntimeClass, default handler NAME, class NAME    ignores the variable
//	conflict: NRI plugin enabled, toolkit disabled in NAME   the operator's pods get no GPUs
//	CNI plugins in DIR, toolkit VERSION configures containerd    on a platform with a non-default directory
//	no container toolkit of the GPU operator                     a toolkit on a node is a leftover
//	libraries VERSION, module VERSION since it was loaded        versions of the node's driver
//	fills the disk: container NAME wrote SIZE of the SIZE of the node    an evicted pod wrote outside its volumes
//	conflict: LMCACHE_MAX_LOCAL_DISK_SIZE=SIZE x COUNT workers is SIZE, the node has SIZE
//	conflict: SETTING=SIZE x COUNT workers is SIZE, (the node has | the memory limit is) SIZE    in host memory
//	conflict: KServe's defaults of 1 CPU and 2Gi memory in container NAME, no GPU requested
//	conflict: volume NAME of gcsfuse.csi.storage.gke.io, no annotation gke-gcsfuse/volumes and no sidecar
//	volume held: claim NAME by Pod NAME on NODE, (an old pod of Deployment NAME | no controller and no GPU)
//	claim NAME in NAMESPACE waits for its first consumer, and no pod mounts it: LINE    the pod waits for the claim
//	conflict: uses NAME, but the DNS domain of the cluster is DOMAIN
//	unexpanded: $(NAME) in container NAME                        the shell runs NAME as a command
//	default limit: RESOURCE QUANTITY, of LimitRange NAME         the API server rejected pods, according to a log
//	BAR NUMBER of DEVICE, which vfio-pci cannot reserve (RANGE), has the framebuffer of DRIVER at ADDRESS
//	conflict: kubelet root DIR, Pod NAMESPACE/NAME mounts PATH   so the pod registers where the kubelet does not look
//	driver in DIR, not mounted in the pod of IMAGE               on a platform with such a directory
//	operator: driver disabled(, toolkit disabled) on PLATFORM    in the ClusterPolicy, for pods of the operator
//	conflict: Service NAME uses port PORT, the program listens only on ADDRESS:PORT    a loopback address
//	conflict: listens on 0.0.0.0:PORT, the pod has only the IPv6 address ADDRESS
//	unpublished: NAME, Service NAME publishes only ready pods, and Pod NAME is not ready    the pod waits for NAME
//	conflict: HSA_OVERRIDE_GFX_VERSION=VERSION, the GPU is gfxNUMBER (LINE)    of another generation
//	silent: container NAME for AGE(, with MODEL from Hugging Face through Xet), after: LINE
//	left over: Pod NAMESPACE/NAME of KIND NAME: its master succeeded    the job has finished
//	conflict: denied PATH, claim NAME at PATH, fsGroup NUMBER    the user cannot write to the volume's top directory
//	conflict: limit volcano.sh/NAME, no deviceshare.NAME in ConfigMap NAMESPACE/NAME
//	nvidia-smi works on the node with driver VERSION, Pod NAME is ready    another pod of the GPU software
//	KMM replaced the AMD driver on the node without a reboot     and the node offers no amd.com/gpu
//	amdgpu of kernel VERSION                                     according to the kernel log, not the ROCm driver
//	offers none: no RESOURCE on the node, which NAMESPACE/NAME requests    of a plugin
//	offers none: no ResourceSlice of the node for CLASS, which NAMESPACE/NAME claims    of a DRA driver
//	foreign device: NAME of DRIVER in claim NAME, which has devices of DRIVER    in the error of another driver
//	selectors of RESOURCE: SELECTORS; not selected: NIC ADDRESS, NAME; needed by PODS    for RDMA
//	AMD GPU on the node, none offered                            the same, for an unknown reason
//	no GPU known: node NAME[; nodes with GPUs have KEY=VALUE]    the pod requests none
//	misplaced: no sign of RESOURCES on NODE; Pod NAME of DaemonSet NAME is ready on NODE
//	partitioned: NODE has KEY=VALUE, but Pod NAMESPACE/NAME, up for AGE, offers RESOURCE(, and tolerates amd-dcm)
//	ListAndWatch ended LINE                                      of a resource that the pod requests and that is 0
func (f *Facts) compared(pod *corev1.Pod) []signatures.Line {
	var all []signatures.Line
	nodes := []*Node{f.Node(pod.Spec.NodeName)}
	compares := []func(*corev1.Pod, *Node) (source, text string){
		f.lostList, f.RefusedStrategy, f.withoutCDI, f.againstCDI, f.otherRoot, f.unansweredBy,
		f.refusedEnv, f.turnedOff, f.profiles, f.volumes, f.fullVolume, f.killedAtLimit, f.runsElsewhere,
		f.hangsOnlyHere, f.worksAsRoot, f.defaultLost, f.heldByConsole, f.staleOSTree,
		f.probedElsewhere, f.loopbackOnly, f.otherContainersGPU, f.nodesDNS, f.covered, f.modelOutside,
		f.meshed, f.NamesPeers, f.overReserved, f.otherContainersToken, f.readOnlyRoot, f.withoutClass, f.withoutNRI,
		f.movedPlugins, f.withoutOperator, f.mixedAtBoot, f.fillsDisk, f.perWorker,
		f.kserveDefaults, f.withoutSidecar, f.unreadEnv,
		f.heldVolume, f.waitsForBinding, f.unexpanded, f.defaultLimit, f.OtherDomain, f.otherKubelet, f.driverElsewhere,
		f.switchedOff, f.missingFile, f.mountedTwice, f.refusedByPeer, f.movedPort, f.silent, f.withoutDeviceshare,
		f.LeftOver, f.smiWorks, f.lostAMD, f.offersNone, f.foreignDevice, f.ofKernel, f.unselected, f.keptFile,
		f.unmounted, f.countedByPeer, f.npusOfNode, f.withoutGPU, f.misplaced, f.unserved, f.otherFamily,
		f.unpublished, f.overridden,
	}
	if nodes[0] == nil {
		all = slices.Concat(f.unadvertised(pod), f.keptOff(pod), f.leftTaint(pod), f.largeVGPUs(pod),
			f.refusedWebhook(pod), f.stalePlugin(pod))
		nodes, compares = Once(f, endedLists).nodes, compares[:1] // lostList
	}
	for _, n := range nodes {
		for _, compare := range compares {
			if source, text := compare(pod, n); text != "" {
				all = append(all, signatures.Line{
					Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{Source: source, Text: text},
				})
			}
		}
	}
	return all
}

// AcceptsMounts is the toolkit setting that lets containers get GPUs through volume mounts.
const AcceptsMounts = "accept-nvidia-visible-devices-as-volume-mounts"

// RefusedStrategy reports a toolkit that does not accept the way in which the device plugin passes GPUs to the pod.
func (f *Facts) RefusedStrategy(pod *corev1.Pod, n *Node) (source, text string) {
	if len(GPURequests(pod)) == 0 {
		return "", ""
	}
	strategy, _, known := DeviceStrategy(f, n)
	key := AcceptsEnv
	if strategy == "volume-mounts" {
		key = AcceptsMounts
	}
	refused, _ := n.toolkitRefuses(key)
	if !known || !refused ||
		strategy != "volume-mounts" && (strategy != "envvar" || PrivilegedForToolkit(pod)) {
		return "", ""
	}
	return "DEVICE_LIST_STRATEGY of the device plugin and " + variableOf(key) + " of the toolkit on " +
			n.Object().String(),
		"conflict: " + strategy + " refused (" + key + " = false)"
}

// againstCDI reports, for a pod that requests GPUs, a GPU operator with CDI whose settings let the device plugin pass
// GPUs in a variable instead. The runtime then searches a CDI specification for them that does not contain them.
func (f *Facts) againstCDI(pod *corev1.Pod, n *Node) (source, text string) {
	p, ok := ClusterPolicy(f)
	on, _, _ := unstructured.NestedBool(p.Object, "spec", "cdi", "enabled")
	env, _, _ := unstructured.NestedSlice(p.Object, "spec", "devicePlugin", "env")
	strategy, _, _ := DeviceStrategy(f, n)
	if !ok || !on || strategy != "envvar" || len(GPURequests(pod)) == 0 ||
		!slices.ContainsFunc(env, func(item any) bool {
			e, _ := item.(map[string]any)
			return e["name"] == "DEVICE_LIST_STRATEGY" && e["value"] == strategy
		}) {
		return "", ""
	}
	return "ClusterPolicy " + p.GetName() + " .spec.devicePlugin.env and .spec.cdi.enabled",
		"conflict: DEVICE_LIST_STRATEGY=envvar, CDI on"
}

// PrivilegedForToolkit reports whether the toolkit treats any of the pod's containers as privileged.
func PrivilegedForToolkit(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		s := c.SecurityContext
		return s != nil && (Yes(s.Privileged) ||
			s.Capabilities != nil && slices.Contains(s.Capabilities.Add, "SYS_ADMIN"))
	})
}

// withoutCDI reports, for a pod with claimed devices, a GPU operator that disables CDI. containerd 1 also disables CDI
// by default.
func (f *Facts) withoutCDI(pod *corev1.Pod, n *Node) (source, text string) {
	p, ok := ClusterPolicy(f)
	if !ok || !strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "containerd://1.") {
		return "", ""
	}
	on, set, _ := unstructured.NestedBool(p.Object, "spec", "cdi", "enabled")
	devices := 0
	for _, wanted := range pod.Spec.ResourceClaims {
		if claim := ClaimOf(f, pod, wanted); claim != nil && claim.Status.Allocation != nil {
			for _, d := range claim.Status.Allocation.Devices.Results {
				if isNVIDIAs(d.Driver) {
					devices++
				}
			}
		}
	}
	if on || !set || devices == 0 || n.View != nil && n.View.Runtime != nil && n.View.Runtime.CDI != nil {
		return "", ""
	}
	return "ClusterPolicy " + p.GetName() + " .spec.cdi.enabled, and the claims of " + PodObject(pod).String(),
		fmt.Sprintf("conflict: claims %d, CDI off", devices)
}

// otherRoot reports a DRA driver pod on the node if one of its containers has no driver root and another one has a
// driver root other than /.
func (f *Facts) otherRoot(_ *corev1.Pod, n *Node) (source, text string) {
	for _, driver := range Current(n, DRADriver) {
		root, lacks := "", ""
		for c := range Containers(driver) {
			own := strings.Join(slices.Concat(
				EnvOf(c.Env, "DRIVER_INSTALL_DIR"), EnvOf(c.Env, "NVIDIA_DRIVER_ROOT"), EnvOf(c.Env, "DRIVER_ROOT"),
			), "")
			if own == "" || own == "/" {
				lacks = c.Name
			} else {
				root = own
			}
		}
		if root != "" && lacks != "" {
			return PodObject(driver).String() + ", environment of container " + lacks + " and of the others",
				"conflict: driver root / not " + root
		}
	}
	return "", ""
}

// unansweredBy reports a connection from the pod to a Service that times out although the Service's pods are ready on
// other nodes and no NetworkPolicy applies. In this case, packets are dropped between the nodes.
func (f *Facts) unansweredBy(pod *corev1.Pod, n *Node) (source, text string) {
	for _, u := range f.UnreachedPods() {
		if u.Pod != pod || u.Names || f.Missing("api/networkpolicies") != "" {
			continue
		}
		for _, ref := range u.Asks {
			server := f.readyElsewhere(ref, n)
			if server == nil || ref.Port == 0 || f.policed(pod.Namespace, ref.Namespace) {
				continue
			}
			there := server.Spec.NodeName + groupOf(f.Node(server.Spec.NodeName))
			return fmt.Sprintf("%s is ready on node %s; this pod is on node %s", PodObject(server), there,
					n.Name+groupOf(n)),
				fmt.Sprintf("unanswered: %s/%s:%d", ref.Namespace, ref.Name, ref.Port)
		}
	}
	return "", ""
}

// policed reports whether one of the namespaces contains a NetworkPolicy.
func (f *Facts) policed(namespaces ...string) bool {
	for i := range f.NetworkPolicies {
		if slices.Contains(namespaces, f.NetworkPolicies[i].Namespace) {
			return true
		}
	}
	return false
}

// readyElsewhere returns a pod behind a Service if all of the Service's pods are ready and none is on the node, and nil
// otherwise.
func (f *Facts) readyElsewhere(ref ServiceRef, n *Node) (server *corev1.Pod) {
	for i := range f.Services {
		s := &f.Services[i]
		if s.Namespace != ref.Namespace || s.Name != ref.Name || len(s.Spec.Selector) == 0 {
			continue
		}
		behind := labels.SelectorFromSet(s.Spec.Selector)
		for j := range f.Snapshot.Pods {
			pod := &f.Snapshot.Pods[j]
			if pod.Namespace != ref.Namespace || Ended(pod) || !behind.Matches(labels.Set(pod.Labels)) {
				continue
			}
			if !RunsReady(pod) || pod.Spec.NodeName == n.Name {
				return nil
			}
			server = pod
		}
	}
	return server
}

// groupOf returns the name of a node's node group, in parentheses, or "".
func groupOf(n *Node) string {
	if n != nil {
		for _, key := range []string{
			"eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool",
			"karpenter.sh/nodepool",
		} {
			if group := n.Labels[key]; group != "" {
				return " (" + group + ")"
			}
		}
	}
	return ""
}

// EnvOf returns the literal values of an environment variable, without values from valueFrom.
func EnvOf(env []corev1.EnvVar, name string) []string {
	var all []string
	for _, e := range env {
		if e.Name == name && e.ValueFrom == nil {
			all = append(all, e.Value)
		}
	}
	return all
}

// DeviceStrategy returns the strategy with which the node's device plugin passes GPUs to containers: envvar,
// volume-mounts, cdi-annotations or cdi-cri, or several of them, separated by commas. known is false if the node has no
// NVIDIA device plugin, or if a configuration file may set the strategy.
func DeviceStrategy(f *Facts, n *Node) (strategy string, source finding.Evidence, known bool) {
	for _, pod := range Current(n, DevicePlugin) {
		for _, c := range pod.Spec.Containers {
			// The device plugin's image also contains feature discovery.
			if !strings.Contains(c.Image, "device-plugin") || strings.Contains(c.Image, "gke") ||
				strings.Contains(pod.Labels["app"]+pod.Name+c.Name, "feature-discovery") {
				continue
			}
			place := "container " + c.Name
			if values := EnvOf(c.Env, "DEVICE_LIST_STRATEGY"); len(values) > 0 {
				return values[0],
					finding.FieldEvidence(PodObject(pod), place+" .env", "DEVICE_LIST_STRATEGY=%s", values[0]),
					true
			}
			for _, arg := range slices.Concat(c.Command, c.Args) {
				if value, ok := strings.CutPrefix(arg, "--device-list-strategy="); ok {
					return value, finding.FieldEvidence(PodObject(pod), place+" .args", "%s", arg), true
				}
			}
			byFile := len(EnvOf(c.Env, "CONFIG_FILE")) > 0 ||
				slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--config-file") })
			return "envvar",
				finding.FieldEvidence(PodObject(pod), place+" .env",
					"DEVICE_LIST_STRATEGY is not set and defaults to envvar"),
				!byFile
		}
	}
	return "", finding.Evidence{}, false
}
