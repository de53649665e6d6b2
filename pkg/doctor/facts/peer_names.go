package facts

import (
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/redact"
)

// namesOfPods matches names with at least two labels, such as HOSTNAME.SUBDOMAIN. The third group is the rest of the
// name.
var namesOfPods = regexp.MustCompile(`\b([a-z0-9][-a-z0-9]*)\.([a-z0-9][-a-z0-9]*)((?:\.[a-z0-9][-a-z0-9]*)*)`)

var (
	// nameUnknown contains the messages that programs log if a DNS server responds that a name does not exist.
	nameUnknown = []string{
		"ame or service not known", "host not found", "no such host", "ame does not resolve", "nodename nor servname",
	}
	// outside matches name resolution errors about public internet names.
	outside = regexp.MustCompile(`(?i)(?:resolve|host:?|lookup|host=) ?'?[a-z0-9.-]+\.(?:co|com|io|org|ai|net)\b`)
)

// NamesPeers reports a DNS name that was not found although it is meant for a pod in the same namespace, as in
// distributed jobs. The name is from the failing pod's log, command or environment. DNS resolves HOSTNAME.SUBDOMAIN to
// a pod if a headless Service has the name of the subdomain.
//
//	name: no pod has the DNS name NAME: REASON
//	name: NAME is correct, but the program exited NUMBER s after its pod was created
func (f *Facts) NamesPeers(pod *corev1.Pod, _ *Node) (source, text string) {
	said, found := f.GrepLogs(pod, nameUnknown...)
	if !found || outside.MatchString(said.Text) || f.Missing("api/services") != "" {
		return "", ""
	}
	hosts := Once(f, podsByHostname)
	for c := range Containers(pod) {
		all := append([]string{said.Text}, wordsOf(c)...)
		for _, e := range c.Env {
			all = append(all, e.Value)
		}
		source = PodObject(pod).String() + ", container " + c.Name + " .command, .args, .env and log, and the Services"
		for _, m := range namesOfPods.FindAllStringSubmatch(strings.Join(all, " "), -1) {
			peer := hosts[pod.Namespace+"/"+m[1]]
			if peer == nil || m[3] != "" && !strings.HasPrefix(m[3]+".", "."+pod.Namespace+".") {
				continue
			}
			if why := f.unnamed(peer, m[2]); why != "" {
				return source, "name: no pod has the DNS name " + m[1] + "." + m[2] + ": " + why
			}
			if after := endedAfter(pod, c.Name); after > 0 {
				return source, "name: " + m[1] + "." + m[2] + " is correct, but the program exited " + after.String() +
					" after its pod was created"
			}
		}
	}
	return "", ""
}

var (
	belowDefault = regexp.MustCompile(`\b[a-z0-9][-a-z0-9.]*\.svc\.cluster\.local\b`)
	zonesServed  = regexp.MustCompile(`(?m)^\s*kubernetes[ \t]+([^\s{]+)`)
)

// OtherDomain reports a container that uses a name in cluster.local although CoreDNS serves another domain.
func (f *Facts) OtherDomain(pod *corev1.Pod, _ *Node) (source, text string) {
	domain := ""
	for i := range f.ConfigMaps {
		served := f.ConfigMaps[i].Data["Corefile"]
		if m := zonesServed.FindStringSubmatch(served); m != nil && !strings.Contains(served, "cluster.local") &&
			f.ConfigMaps[i].Namespace == "kube-system" {
			domain = m[1]
		}
	}
	if domain == "" || strings.HasSuffix(domain, ".arpa") {
		return "", ""
	}
	for c := range Containers(pod) {
		all := wordsOf(c)
		for _, e := range c.Env {
			all = append(all, e.Value)
		}
		if name := belowDefault.FindString(strings.Join(all, " ")); name != "" {
			source = PodObject(pod).String() + ", container " + c.Name +
				" .args and .env, and ConfigMap kube-system/coredns"
			return source, "conflict: uses " + name + ", but the DNS domain of the cluster is " + domain
		}
	}
	return "", ""
}

// podsByHostname returns the pods that set a hostname, by namespace and hostname.
func podsByHostname(f *Facts) map[string]*corev1.Pod {
	all := map[string]*corev1.Pod{}
	for i := range f.Snapshot.Pods {
		if pod := &f.Snapshot.Pods[i]; pod.Spec.Hostname != "" && pod.DeletionTimestamp == nil {
			all[pod.Namespace+"/"+pod.Spec.Hostname] = pod
		}
	}
	return all
}

// unnamed returns the reason why DNS does not resolve a pod's hostname in a subdomain, or "" if it does.
func (f *Facts) unnamed(peer *corev1.Pod, subdomain string) string {
	host, own := peer.Spec.Hostname, peer.Spec.Subdomain
	if strings.Contains(own, redact.Mark) {
		own = subdomain // redacted, because it looked like a secret
	}
	if own == "" {
		return "pod " + host + " has no subdomain"
	}
	if own != subdomain {
		return "pod " + host + " has the subdomain " + own + ", so its name is " + host + "." + own
	}
	at := slices.IndexFunc(f.Services, func(s corev1.Service) bool {
		return s.Namespace == peer.Namespace && s.Name == own
	})
	switch {
	case at < 0:
		return "namespace " + peer.Namespace + " has no Service " + own
	case f.Services[at].Spec.ClusterIP != corev1.ClusterIPNone:
		return "Service " + own + " is not headless (clusterIP: None)"
	}
	return ""
}

// soonAsked is the time after a pod's creation during which DNS may not know the pod's name yet. DNS also caches
// negative responses for a while.
const soonAsked = time.Minute

// endedAfter returns the time between a pod's creation and the failure of a container's first instance. It returns 0 if
// the container was restarted or failed later.
func endedAfter(pod *corev1.Pod, container string) time.Duration {
	for s := range Statuses(pod) {
		ended := s.State.Terminated
		if s.Name != container || s.RestartCount > 0 || ended == nil || ended.ExitCode == 0 {
			continue
		}
		if after := ended.FinishedAt.Sub(pod.CreationTimestamp.Time); after > 0 && after < soonAsked {
			return after.Round(time.Second)
		}
	}
	return 0
}

// unpublished reports a pod that waits for the DNS name of a pod that is not ready, if the headless Service publishes
// only ready pods. Either the pod waits for its own name, or the other pod is waiting, too.
func (f *Facts) unpublished(pod *corev1.Pod, _ *Node) (source, text string) {
	l, host, subdomain := f.awaits(pod)
	peer := Once(f, podsByHostname)[pod.Namespace+"/"+host]
	if peer == nil || peer.Spec.Subdomain != subdomain || RunsReady(peer) {
		return "", ""
	}
	if _, next, _ := f.awaits(peer); next == "" {
		return "", ""
	}
	for _, s := range f.Services {
		if s.Namespace == pod.Namespace && s.Name == subdomain && s.Spec.ClusterIP == corev1.ClusterIPNone &&
			!s.Spec.PublishNotReadyAddresses {
			return l + ", and Service " + s.Namespace + "/" + s.Name, "unpublished: " + host + "." + subdomain +
				", Service " + s.Name + " publishes only ready pods, and Pod " + peer.Name + " is not ready"
		}
	}
	return "", ""
}

// awaits returns the name, HOSTNAME.SUBDOMAIN, for which a pod that is not ready waits, according to the last line of
// its log.
func (f *Facts) awaits(pod *corev1.Pod) (source, host, subdomain string) {
	for _, l := range f.LogsOf(pod) {
		last := words.LastLine(l.Text)
		if l.Previous || RunsReady(pod) || !words.ContainsAny(last, nameUnknown) &&
			!words.ContainsAny(strings.ToLower(last), []string{"waiting", "retry", "not resolve", "not ready"}) {
			continue
		}
		for _, m := range namesOfPods.FindAllStringSubmatch(last, -1) {
			if Once(f, podsByHostname)[pod.Namespace+"/"+m[1]] != nil &&
				(m[3] == "" || strings.HasPrefix(m[3]+".", "."+pod.Namespace+".")) {
				return LogSource(l), m[1], m[2]
			}
		}
	}
	return "", "", ""
}
