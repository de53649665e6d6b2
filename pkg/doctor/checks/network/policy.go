package network

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func networkPolicyCheck() engine.Check {
	return engine.Check{
		ID: "net.policy", Layer: finding.LayerNetwork, From: []string{"api/pods", "api/networkpolicies", "logs"},
		Title: "a NetworkPolicy blocks a connection that a GPU pod is waiting for",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "log tails and commands of GPU pods and components that are stuck; FailedCreate events; NetworkPolicies, and the Services and pods that they connect to; labels of namespaces",
		Why: "Two conditions must be met. First, the pod is failing, or its container has been running for 20 s, and " +
			"the end of its log shows that a server does not respond. Second, the NetworkPolicies, as Kubernetes " +
			"defines them, deny egress or ingress that the pod needs: to DNS over UDP, to a Service that its log or " +
			"command names as NAME.NAMESPACE.svc, or to a public server that the message names by URL or address. " +
			"The finding names the closest rule and its incorrect field. All network plugins except flannel are " +
			"assumed to enforce policies. The check ignores policies of plugin-specific kinds, which may allow more, " +
			"and connections through a proxy. Plugins differ in whether ipBlock rules apply to pods: results that " +
			"depend on such a rule are unknown. In addition, if pods cannot be created because an admission webhook " +
			"does not respond, the policies must let the API server, which is not a pod, reach the webhook's pods.",
		Explains: []string{
			"net.dns", "wl.pod-failing", "wl.probe-failing", "wl.idle-holder", "op.init-chain", "op.operand-failing",
			"op.clusterpolicy", "dp.not-running", "dp.capacity-zero", "drv.headers",
			"drv.build-fail", "obs.*", "gfd.*", "nfd.*",
		},
		ExplainsAs: map[string][]string{ofWebhook: {"wl.forbidden"}},
		Doc:        "https://kubernetes.io/docs/concepts/services-networking/network-policies/",
		Sources: []string{
			"aws/aws-network-policy-agent#230", "kubernetes/website#38267", "projectcalico/calico#8049",
			"kubernetes/website#8295", "kubernetes/kubernetes#47797",
			"kubernetes/kubernetes#112467", "seed 001",
		},
		Run: checkPolicies,
	}
}

// wanted is the destination of a pod's connection: the cluster's DNS server, or a Service.
type wanted struct {
	facts.Connection
	dns      bool
	name     string // for display
	selector map[string]string
	port     int32 // port of the Service; 0 if unknown
}

func checkPolicies(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	if len(f.NetworkPolicies) > 0 {
		checkWebhooks(f, r)
	}
	pods := f.UnreachedPods()
	if len(pods) == 0 || r.Lacks(f, "api/networkpolicies") || r.Lacks(f, "api/namespaces") {
		return
	}
	for _, u := range pods {
		checkPolicy(f, r, u)
	}
}

// checkPolicy checks a pod's connections in the order in which the pod opens them, DNS first. It reports the first
// connection that policies deny.
func checkPolicy(f *facts.Facts, r *engine.Result, u facts.Unreached) {
	pod := facts.PodObject(u.Pod)
	dns := dnsServer(f, facts.EndOf(u.Pod))
	_, by := f.Admits(networkingv1.PolicyTypeEgress, dns.Connection)
	switch ofCluster := u.Pod.Spec.DNSPolicy != corev1.DNSDefault && u.Pod.Spec.DNSPolicy != corev1.DNSNone; {
	case u.Names && !ofCluster && len(by) > 0:
		r.Unknown(pod,
			"the pod uses a DNS server other than the cluster's, and NetworkPolicies (%s) may block access to it",
			policyNames(by))
		return
	case u.Names && ofCluster:
		reportDenied(f, r, u, dns)
		return
	case len(u.Asks) > 0 && ofCluster && reaches(f, dns) == facts.Never:
		reportDenied(f, r, u, dns)
		return
	}
	for _, ref := range u.Asks {
		service := service(f, ref)
		if service == nil {
			if why := f.Missing("api/services/" + ref.Namespace + "/" + ref.Name); why != "" {
				r.Unknown(pod, "Service %s/%s: %s", ref.Namespace, ref.Name, why)
				return
			}
			continue // the Service does not exist or was not collected
		}
		ways := behind(f, service, ref, facts.EndOf(u.Pod))
		if slices.ContainsFunc(ways, func(w wanted) bool { return reaches(f, w) == facts.Surely }) {
			continue // if the port is unknown, one allowed port suffices
		}
		for _, w := range ways {
			if reportDenied(f, r, u, w) {
				return
			}
		}
	}
	server, named := outside(f, u)
	if named && len(by) > 0 && reportDenied(f, r, u, server) {
		return
	}
	if len(by) > 0 && len(u.Asks) == 0 && !named {
		r.Unknown(pod,
			"NetworkPolicies restrict the pod's egress (%s) and may be the cause, but neither the pod's log nor its command names a server",
			policyNames(by))
		return
	}
	r.Pass(pod)
}

var (
	inURL   = regexp.MustCompile(`(http)(s?)://([a-z0-9][-.a-z0-9]*\.[a-z]{2,})(?::(\d{1,5}))?(?:[/"'\\ ]|$)`)
	inError = regexp.MustCompile(`()()(?:host='|[Cc]onnect(?:ing)? to (?:host )?)([a-z0-9][-.a-z0-9]*\.[a-z]{2,})` +
		`(?:', port=| port |:)(\d{1,5})`)
	ofPip  = regexp.MustCompile(`()HTTP(S)Connection .*Connection to ([a-z0-9][-.a-z0-9]*\.[a-z]{2,}) timed out()`)
	dialed = regexp.MustCompile(`(?:dial tcp|ETIMEDOUT) (\d[.\d]+):(\d{1,5})\b`)
	inside = regexp.MustCompile(`\.(?:svc|local|internal|lan|cluster|corp|intranet)$`)
)

// outside returns the connection to the public server that is named in the message about the failed connection, unless
// the pod has a proxy.
func outside(f *facts.Facts, u facts.Unreached) (w wanted, ok bool) {
	for c := range facts.Containers(u.Pod) {
		for _, e := range c.Env {
			name := strings.ToLower(e.Name)
			if strings.HasSuffix(name, "_proxy") && name != "no_proxy" && e.Value != "" {
				return w, false
			}
		}
	}
	w.Connection = facts.Connection{
		From: facts.EndOf(u.Pod), To: facts.End{Outside: true}, Protocol: corev1.ProtocolTCP,
	}
	port := ""
	for _, re := range []*regexp.Regexp{inURL, ofPip, inError} {
		if m := re.FindStringSubmatch(u.Said.Text); m != nil {
			w.name, port = m[3], cmp.Or(m[4], map[string]string{"s": "443", "S": "443"}[m[2]], "80")
		}
	}
	if m := dialed.FindStringSubmatch(u.Said.Text); m != nil {
		address, err := netip.ParseAddr(m[1])
		if err != nil || !address.IsGlobalUnicast() || address.IsPrivate() ||
			netip.MustParsePrefix("100.64.0.0/10").Contains(address) {
			return w, false // of a pod, a Service, a node or a proxy
		}
		w.name, port, w.To.Addresses = cmp.Or(w.name, m[1]), m[2], []netip.Addr{address}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	w.port, w.Connection.Port = int32(number), int32(number)
	ofCluster := slices.ContainsFunc(f.Namespaces, func(n corev1.Namespace) bool { // SERVICE.NAMESPACE
		return strings.HasSuffix(w.name, "."+n.Name)
	})
	return w, err == nil && !ofCluster && !inside.MatchString(w.name)
}

// reaches reports whether both the egress and the ingress policies allow the connection.
func reaches(f *facts.Facts, w wanted) facts.Answer {
	out, _ := f.Admits(networkingv1.PolicyTypeEgress, w.Connection)
	in, _ := f.Admits(networkingv1.PolicyTypeIngress, w.Connection)
	return min(out, in)
}

// reportDenied reports a connection that policies deny or may deny. It returns false if policies allow the connection.
func reportDenied(f *facts.Facts, r *engine.Result, u facts.Unreached, w wanted) bool {
	for _, d := range []networkingv1.PolicyType{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress} {
		let, by := f.Admits(d, w.Connection)
		switch {
		case let == facts.Surely:
			continue
		case let == facts.Perhaps:
			r.Unknown(facts.PodObject(u.Pod),
				"whether NetworkPolicies (%s) allow the pod to reach %s depends on the network plugin or on unknown labels",
				policyNames(by), w.name)
		case f.HasDaemonSet("flannel") && !enforcesPolicies(f):
			r.Unknown(facts.PodObject(u.Pod),
				"NetworkPolicies (%s) deny the pod access to %s, but the flannel network plugin does not enforce them",
				policyNames(by), w.name)
		default:
			r.Add(denied(f, u, w, d, by))
		}
		return true
	}
	return false
}

// enforcesPolicies reports whether the cluster has a DaemonSet that is known to enforce NetworkPolicies.
func enforcesPolicies(f *facts.Facts) bool {
	return slices.ContainsFunc([]string{
		"canal", "calico", "cilium", "kube-router", "antrea", "weave", "ovn", "network-policy", "npm", "romana",
	}, f.HasDaemonSet)
}

func policyNames(all []*networkingv1.NetworkPolicy) string {
	names := make([]string, 0, len(all))
	for _, p := range all {
		names = append(names, p.Name)
	}
	return words.Clip(words.Joined(names))
}

// nodeLocalDNS is the default address of the NodeLocal DNSCache.
var nodeLocalDNS = netip.MustParseAddr("169.254.20.10")

// dnsServer returns the connection to the cluster's DNS server over UDP, which resolvers use by default. If the
// snapshot does not contain the Service, it uses the conventional labels of DNS pods.
func dnsServer(f *facts.Facts, from facts.End) wanted {
	w := wanted{dns: true, name: "the DNS server", port: 53, selector: map[string]string{"k8s-app": "kube-dns"}}
	w.Connection = facts.Connection{
		From: from, To: facts.End{Namespace: "kube-system", Labels: w.selector, Partial: true},
		Protocol: corev1.ProtocolUDP,
		Port:     53,
	}
	for _, ref := range dnsServices() {
		service := service(f, ref)
		if service == nil {
			continue
		}
		for _, found := range behind(f, service, ref, from) {
			if found.Protocol == corev1.ProtocolUDP {
				found.dns, found.name = true, w.name
				found.To.Addresses = append(found.To.Addresses, nodeLocalDNS)
				return found
			}
		}
	}
	return w
}

// dnsServices returns the Services that commonly provide DNS in a cluster, including OpenShift's.
func dnsServices() []facts.ServiceRef {
	return []facts.ServiceRef{
		{Namespace: "kube-system", Name: "kube-dns", Port: 53},
		{Namespace: "openshift-dns", Name: "dns-default", Port: 53},
	}
}

// DNSServices returns the Services that commonly provide DNS in a cluster.
func DNSServices() []facts.ServiceRef { return dnsServices() }

func service(f *facts.Facts, ref facts.ServiceRef) *corev1.Service {
	for i := range f.Services {
		if s := &f.Services[i]; s.Namespace == ref.Namespace && s.Name == ref.Name {
			return s
		}
	}
	return nil
}

// behind returns the connections to a Service's pods, one for each requested port. It uses the first pod, because all
// of a Service's pods are alike. It omits ports whose target port is unknown, and returns nil if the Service has no
// selector.
func behind(f *facts.Facts, service *corev1.Service, ref facts.ServiceRef, from facts.End) []wanted {
	if len(service.Spec.Selector) == 0 {
		return nil
	}
	to := facts.End{Namespace: service.Namespace, Labels: service.Spec.Selector, Partial: true}
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Namespace == service.Namespace && !facts.Ended(pod) && pod.DeletionTimestamp == nil &&
			facts.Picks(&metav1.LabelSelector{MatchLabels: service.Spec.Selector}, pod.Labels, false) == facts.Surely {
			to = facts.EndOf(pod)
			break
		}
	}
	for _, ip := range service.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil && len(to.Addresses) > 0 {
			to.Addresses = append(to.Addresses, a)
		}
	}
	var all []wanted
	for _, p := range service.Spec.Ports {
		if ref.Port != 0 && p.Port != ref.Port {
			continue
		}
		w := wanted{
			name: "Service " + service.Namespace + "/" + service.Name, selector: service.Spec.Selector, port: p.Port,
		}
		w.Connection = facts.Connection{
			From: from, To: to, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Port: targetPort(p, to),
		}
		if w.Connection.Port != 0 {
			all = append(all, w)
		}
	}
	return all
}

// targetPort returns the pod port that a Service port targets, or 0 if no container port has that name.
func targetPort(p corev1.ServicePort, to facts.End) int32 {
	if p.TargetPort.Type == intstr.Int {
		return cmp.Or(p.TargetPort.IntVal, p.Port)
	}
	for _, of := range to.Ports {
		if of.Name == p.TargetPort.StrVal {
			return of.ContainerPort
		}
	}
	return 0
}
