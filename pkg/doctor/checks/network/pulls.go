package network

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// pullFailure classifies why an image cannot be pulled.
type pullFailure struct{ id, kind string }

// classifyPull returns the reason in the container runtime's message, and false if the message contains no known
// reason.
func classifyPull(message string) (pullFailure, bool) {
	lower := strings.ToLower(message)
	// Check this before "connection refused", which can also be an error from the DNS server.
	if kind := nameFailure(lower); kind != "" && !strings.Contains(lower, "proxyconnect") {
		return pullFailure{"net.dns", kind}, true
	}
	for _, known := range []struct {
		texts []string
		is    pullFailure
	}{
		// wl.exec-format reports a wrong platform, although containerd adds "not found" to the message.
		{[]string{"no match for platform", "no matching manifest for"}, pullFailure{"", "platform"}},
		{
			[]string{"invalidimagename", "invalid reference format", "couldn't parse image"},
			pullFailure{"img.not-found", "name"},
		},
		{
			[]string{"toomanyrequests", "429 too many requests", "pull rate limit"},
			pullFailure{"img.pull-auth", "limit"},
		},
		{[]string{"proxyconnect", "proxy error", "407 proxy authentication"}, pullFailure{"img.pull-network", "proxy"}},
		{
			[]string{
				"x509:", "certificate", "tls handshake timeout", "tls: ", "server gave http response to https client",
			},
			pullFailure{"img.pull-network", "tls"},
		},
		{[]string{
			"i/o timeout", "client.timeout exceeded", "context deadline exceeded", "timeout awaiting",
			"connection timed out", "no route to host", "network is unreachable",
		}, pullFailure{"img.pull-network", "timeout"}},
		{[]string{
			"connection refused", "connection reset", "unexpected eof", "broken pipe", "502 bad gateway",
			"503 service unavailable", "504 gateway",
		}, pullFailure{"img.pull-network", "refused"}},
		{[]string{
			"401 unauthorized", "403 forbidden", "insufficient_scope", "authorization failed", "unauthorized:",
			"unauthorized", "no basic auth credentials", "pull access denied", "denied:", "authentication required",
		}, pullFailure{"img.pull-auth", "auth"}},
		{
			[]string{"manifest unknown", "not found", "name unknown", "repository does not exist", "does not exist"},
			pullFailure{"img.not-found", "tag"},
		},
	} {
		if words.ContainsAny(lower, known.texts) {
			return known.is, true
		}
	}
	return pullFailure{}, false
}

// lookup matches the beginning of an error from Go's resolver: "lookup nvcr.io on 10.0.0.2:53: ...", or "lookup
// nvcr.io: ..." without a server.
var lookup = regexp.MustCompile(`\blookup (\S+?)(?: on \S+)?: (\S.*)`)

// nameFailure returns "no-name" if a lowercase message reports that a DNS name does not exist, "dns" if the name could
// not be resolved for another reason, and an empty string otherwise.
func nameFailure(lower string) string {
	said := lower
	if m := lookup.FindStringSubmatch(lower); m != nil {
		said = "lookup: " + m[2]
	}
	switch {
	case strings.Contains(said, "no such host"):
		return "no-name"
	case strings.HasPrefix(said, "lookup: "),
		words.ContainsAny(
			said, []string{"server misbehaving", "temporary failure in name resolution", "name resolution"},
		):
		return "dns"
	}
	return ""
}

// pulling is an image that a pod cannot pull.
type pulling struct {
	image    string
	failure  pullFailure
	known    bool
	evidence finding.Evidence
}

// failedPulls returns the images that a pod currently cannot pull.
func failedPulls(f *facts.Facts, pod *corev1.Pod) []pulling {
	if pod.DeletionTimestamp != nil || facts.Ended(pod) {
		return nil
	}
	var all []pulling
	for c := range facts.Statuses(pod) {
		w := c.State.Waiting
		if w == nil || !slices.Contains([]string{
			"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "RegistryUnavailable", "ErrImageInspect",
		}, w.Reason) {
			continue
		}
		p := pulling{image: cmp.Or(facts.ImageOf(pod, c.Name), c.Image)}
		p.evidence = finding.Evidence{
			Source: facts.PodObject(pod).String() + ", container " + c.Name + " .state.waiting",
			Text:   words.Clip(w.Reason + ": " + w.Message),
		}
		p.failure, p.known = classifyPull(w.Reason + " " + w.Message)
		named := cmp.Or(quotedWord(w.Message), p.image) // the pod template may have changed since
		for _, e := range f.EventsOfPod(pod) {
			about := strings.Contains(e.Message, p.image) || strings.Contains(e.Message, named)
			if p.known || e.Reason != "Failed" || !strings.Contains(e.Message, "pull image") || !about {
				continue
			}
			if p.failure, p.known = classifyPull(e.Message); p.known {
				p.evidence = facts.Quote(e)
				p.evidence.Text = words.Clip(p.evidence.Text)
			}
		}
		all = append(all, p)
	}
	if len(all) > 0 || pod.Status.Phase != corev1.PodPending {
		return all
	}
	for _, e := range f.EventsOfPod(pod) { // the pause image may be the one that failed
		if e.Reason == "FailedCreatePodSandBox" && strings.Contains(e.Message, "sandbox image") &&
			strings.Contains(e.Message, "pull") {
			p := pulling{image: quotedWord(e.Message), evidence: facts.Quote(e)}
			p.evidence.Text = words.Clip(p.evidence.Text)
			p.failure, p.known = classifyPull(e.Message)
			return append(all, p)
		}
	}
	return all
}

// quotedWord returns the first string in double quotes.
func quotedWord(text string) string {
	_, rest, _ := strings.Cut(text, `"`)
	word, _, found := strings.Cut(rest, `"`)
	if !found || len(word) > 512 {
		return ""
	}
	return word
}

// registryOf returns the registry host of an image.
func registryOf(image string) string {
	host, _, found := strings.Cut(image, "/")
	if found && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return host
	}
	return "docker.io"
}

// ofNode is the kind (Finding.As) of findings about the pods that a node needs to become Ready. Other pods do not start
// before the node has a network.
const ofNode = "of the node's network"

func checkPulls(f *facts.Facts, r *engine.Result, id string) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		for _, p := range failedPulls(f, pod) {
			if !p.known && id == "img.pull-network" {
				why := "neither the pod's status nor an event shows why " + p.image + " cannot be pulled"
				if missing := f.Missing("api/events"); missing != "" {
					why += "; api/events: " + missing
				}
				r.Unknown(facts.PodObject(pod), "%s", why)
			}
			if p.failure.id != id {
				continue
			}
			severity := f.Concerns(pod)
			if severity == finding.Info && id != "img.pull-network" && id != "net.dns" {
				continue // the pod does not concern GPUs
			}
			title, fix := pullFix(f, pod, p)
			found := finding.Finding{
				Title: title, Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Severity: severity,
				Evidence: []finding.Evidence{p.evidence}, Fix: fix,
			}
			if n := f.Node(pod.Spec.NodeName); n != nil && n.IsGPUNode && pod.Spec.HostNetwork &&
				n.AwaitsNetwork() && f.Now.Sub(n.Ready().LastTransitionTime.Time) > facts.OperandGrace {
				found.Severity, found.As = finding.Error, ofNode
			}
			r.Add(found)
		}
	}
}

func pullFix(f *facts.Facts, pod *corev1.Pod, p pulling) (string, finding.Fix) {
	registry := registryOf(p.image)
	try := []string{shell.OnHost(pod.Spec.NodeName, "sudo crictl pull %s", p.image)}
	curl := []string{shell.OnHost(pod.Spec.NodeName, "curl -sSI %s", "https://"+registry+"/v2/")}
	host, port, _ := strings.Cut(registry, ":")
	if m := lookup.FindStringSubmatch(p.evidence.Text); m != nil {
		host = m[1] // may be the registry's token server or a mirror
	}
	resolve := []string{
		shell.OnHost(pod.Spec.NodeName, "cat /etc/resolv.conf"),
		shell.OnHost(pod.Spec.NodeName, "getent hosts %s", host),
	}
	switch p.failure.kind {
	case "dns":
		return "the node cannot resolve the name of the image's registry: the node's DNS server fails or does not respond",
			finding.Fix{
				Text: "Fix DNS on the nodes (/etc/resolv.conf, systemd-resolved): the message names the server that they query for " +
					host + ".",
				Commands: resolve,
			}
	case "no-name":
		return "the node cannot resolve the name of the image's registry: the node's DNS server does not know the name",
			finding.Fix{
				Text: "Correct the image's name, " + p.image + ", or add " + host +
					" to the nodes' DNS server.",
				Commands: append(resolve, facts.EditCommands(pod)...),
			}
	case "tls":
		if strings.Contains(p.evidence.Text, "HTTP response to HTTPS client") {
			return "the image's registry serves HTTP, but the node's runtime uses HTTPS", finding.Fix{
				Text: "Serve " + registry + " over TLS, or configure it as an HTTP registry in the container runtime " +
					"of each node (containerd: a hosts.toml below the registry config_path; k3s and RKE2: " +
					"registries.yaml).",
				Commands: curl,
			}
		}
		return "the TLS connection to the image's registry fails", finding.Fix{
			Text: "Trust the certificate authority of " + registry +
				" on the nodes (a TLS-inspecting proxy has its own), and check the nodes' clocks and MTU.",
			Commands: curl,
		}
	case "proxy":
		return "the proxy between the node and the image's registry fails", finding.Fix{
			Text:     "Correct HTTPS_PROXY and NO_PROXY in the container runtime's unit on the nodes, then restart the unit.",
			Commands: curl,
		}
	case "timeout":
		if strings.Contains(p.evidence.Text, "context deadline exceeded") && !words.ContainsAny(p.evidence.Text,
			[]string{"dial ", "Head ", "Get ", "i/o timeout", "awaiting", "request canceled"}) {
			return "the pull of the image did not finish in time", finding.Fix{
				Text: "Pull the image on the node by hand to see whether the pull is slow or fails: GPU images are " +
					"large. Check the network's bandwidth, the disk, and the runtime's journal, or use a registry or " +
					"mirror near the node.",
				Commands: try,
			}
		}
		return "the node cannot reach the image's registry: the connection times out", finding.Fix{
			Text: "Allow the nodes to reach " + registry +
				" on TCP " + cmp.Or(port, "443") + " (firewall rule, NAT gateway, security group, or HTTPS_PROXY in " +
				"the container runtime's unit), or use an internal mirror. The node pulls images, so " +
				"NetworkPolicies do not matter.",
			Commands: curl,
		}
	case "refused":
		return "the image's registry refuses or drops the connection", finding.Fix{
			Text: "Check whether " + registry + " is up and reachable on its port from the nodes.", Commands: curl,
		}
	case "limit":
		return "the image's registry rejects the pull because of a rate limit", finding.Fix{
			Text: "Log in with a pull secret, or pull through a mirror of " + registry + ". The registry adds up the " +
				"pulls without a login from all nodes behind the same address; the limit is lifted after some hours.",
			Commands: secretCommands(pod, registry),
		}
	case "auth":
		const other = " Some registries report the same error if the image does not exist."
		fix := finding.Fix{
			Text: "Add a pull secret for " + registry + " to the pod's service account, and recreate the " +
				"pod." + other,
			Commands: secretCommands(pod, registry),
		}
		switch named := pod.Spec.ImagePullSecrets; {
		case len(named) > 0:
			fix.Text = "The pod uses the pull secret " + words.Clip(named[0].Name) + ": check that it exists in the " +
				"pod's namespace and contains valid credentials for " + registry + "." + other
			fix.Commands = []string{shell.Command("kubectl -n %s get secret %s", pod.Namespace, named[0].Name)}
		case strings.Contains(registry, ".dkr.ecr."):
			fix.Text = "Nodes pull from " + registry + " with their IAM role: attach the policy " +
				"AmazonEC2ContainerRegistryReadOnly to the role; for a repository in another account, also allow the " +
				"role in the repository's policy. ECR passwords in pull secrets expire after 12 hours." + other
			fix.Commands = nil
		case strings.HasSuffix(registry, ".azurecr.io"):
			fix.Text = "On AKS, let the nodes' identity pull from the registry (az aks update --attach-acr). " +
				"Otherwise, add a pull secret to the pod's service account, and recreate the pod." + other
		}
		if n := f.Node(pod.Spec.NodeName); n != nil && n.Distribution == facts.GKE &&
			(strings.HasSuffix(registry, "gcr.io") || strings.HasSuffix(registry, ".pkg.dev")) {
			fix = finding.Fix{
				Text: "On GKE, nodes pull from " + registry + " as the service account of their node pool. Grant the " +
					"account roles/artifactregistry.reader in the image's project, and give the node pool the scope " +
					"devstorage.read_only or cloud-platform: node pools that node auto-provisioning creates have " +
					"only the default scopes. A pull secret also works. Some registries report the same error if the " +
					"image does not exist.",
				Commands: []string{"gcloud container node-pools list", "gcloud container clusters list"},
			}
		}
		return "the image's registry denies access: no valid credentials for the image", fix
	case "name":
		if fix, ok := operandFix(f, pod, p.image); ok && strings.HasPrefix(fix.Text, setByPolicy) {
			return "the image reference is not valid: the ClusterPolicy sets it incompletely or incorrectly", fix
		}
		return "the image reference is not valid", finding.Fix{
			Text: "Correct the image's name: " + p.image + ".", Commands: facts.EditCommands(pod),
		}
	}
	if fix, ok := operandFix(f, pod, p.image); ok {
		return "the registry no longer has, or never had, an image that the GPU operator uses", fix
	}
	return "the image does not exist in its registry", finding.Fix{
		Text:     "Correct the name or tag of the image: " + p.image + ".",
		Commands: append(try, facts.EditCommands(pod)...),
	}
}

// setByPolicy is the beginning of the fix for an image that the ClusterPolicy sets.
const setByPolicy = "The ClusterPolicy sets the image in "

// operandFix returns a fix that corrects an operand's image in the ClusterPolicy. The GPU operator reverts changes to
// its DaemonSets that are made in any other way.
func operandFix(f *facts.Facts, pod *corev1.Pod, image string) (finding.Fix, bool) {
	policy, ok := facts.ClusterPolicy(f)
	c := facts.ComponentOf(pod.Labels, &pod.Spec)
	near := false
	for _, part := range []facts.Component{facts.Toolkit, facts.Validator, facts.Driver} {
		for _, other := range f.Component(part) {
			near = near || other.Namespace == pod.Namespace
		}
	}
	if !ok || !near || c == facts.Operator || c == facts.NFD || !strings.HasPrefix(facts.OwnerOf(pod), "daemonset/") {
		return finding.Fix{}, false
	}
	_, version, _ := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	if _, digest, ok := strings.Cut(image, "@"); ok {
		version = digest
	}
	spec, _, _ := unstructured.NestedMap(policy.Object, "spec")
	if field := fieldWith(spec, ".spec", version); field != "" {
		return finding.Fix{
			Text: setByPolicy + field + ": correct the repository, image or version there (through the values of the " +
				"operator's chart; for the driver, use nvcr.io/nvidia, driver and a version), or remove all three, " +
				"so that the operator uses its release's defaults.",
			Commands: []string{shell.Command("kubectl get clusterpolicy %s -o yaml", policy.GetName())},
		}, true
	}
	fix := finding.Fix{
		Text: "No field of the ClusterPolicy sets the version of " + image + ", so the image is probably the default " +
			"in this release of the GPU operator (or an NVIDIADriver object sets it), and the operator reverts " +
			"changes to its DaemonSet. Upgrade the operator to a release whose images exist: NVIDIA removes old " +
			"images, such as CUDA images, from nvcr.io. A pull secret does not help.",
	}
	if h, ok := facts.ReleaseOf(f, facts.ChartOperator); ok {
		fix.Commands = []string{shell.Command("helm history %s -n %s", h.Name, h.Namespace)}
	} else if n := f.Node(pod.Spec.NodeName); n != nil && n.Distribution == facts.OpenShift {
		fix.Commands = []string{"oc get subscriptions.operators.coreos.com,installplans.operators.coreos.com -A"}
	}
	return fix, true
}

// fieldWith returns the path of the object in the ClusterPolicy that sets the version of an image, or "". In the
// image's tag, the operating system may follow the version.
func fieldWith(spec map[string]any, path, version string) string {
	if v, _ := spec["version"].(string); v != "" && strings.HasPrefix(version, v) {
		return path
	}
	for _, key := range words.SortedKeys(spec) {
		if below, ok := spec[key].(map[string]any); ok {
			if field := fieldWith(below, path+"."+key, version); field != "" {
				return field
			}
		}
	}
	return ""
}

func secretCommands(pod *corev1.Pod, registry string) []string {
	user := "USER"
	if registry == "nvcr.io" {
		user = "$oauthtoken"
	}
	if named := pod.Spec.ImagePullSecrets; len(named) > 0 { // the service account's secrets are not used
		return []string{shell.Command("kubectl -n %s get secret %s", pod.Namespace, named[0].Name)}
	}
	account := cmp.Or(pod.Spec.ServiceAccountName, "default")
	return []string{
		shell.Command(
			"kubectl -n %s create secret docker-registry regcred --docker-server=%s --docker-username=%s --docker-password=TOKEN",
			pod.Namespace,
			registry,
			user,
		),
		shell.Command("kubectl -n %s patch serviceaccount %s -p '{\"imagePullSecrets\":[{\"name\":\"regcred\"}]}'",
			pod.Namespace, account),
	}
}
