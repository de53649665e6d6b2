package doctor

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// The last line of a pod's log: no DNS server responds, or a connection gets no response.
const (
	noNames  = "get: Get \"http://license.house.svc.cluster.local/\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)\n;; connection timed out; no servers could be reached\n"
	noAnswer = "get: Get \"http://license.house.svc.cluster.local/\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)\nName:\tlicense.house.svc.cluster.local\nAddress: 10.96.7.7\n"
)

// Messages about a public server that does not respond, from Ollama and huggingface_hub.
const (
	downloads = `level=INFO msg="request failed: Get \"https://registry.ollama.ai/v2/\": dial tcp 104.21.75.227:443: i/o timeout"`
	noHub     = "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api (Caused by ConnectTimeoutError())\nTimed out"
)

// Policies of a tenant, named as in practice, and of the Service that the tenant uses.
const (
	denyAll     = `{podSelector: {}, policyTypes: [Ingress, Egress]}`
	namesRight  = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}], ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]}]}`
	namesTCP    = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}], ports: [{protocol: TCP, port: 53}]}]}`
	toLicense   = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: house}}, podSelector: {matchLabels: {app: license}}}], ports: [{protocol: TCP, port: 8080}]}]}`
	toPort80    = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: house}}, podSelector: {matchLabels: {app: license}}}], ports: [{protocol: TCP, port: 80}]}]}`
	toName      = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {name: house}}, podSelector: {matchLabels: {app: license}}}], ports: [{protocol: TCP, port: 8080}]}]}`
	toNamedPort = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: house}}, podSelector: {matchLabels: {app: license}}}], ports: [{protocol: TCP, port: http}]}]}`
	toInternet  = `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{protocol: TCP, port: 8080}]}]}`
	fromTeam    = `{podSelector: {matchLabels: {app: license}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [atlas, team]}]}}], ports: [{protocol: TCP, port: 8080}]}]}`
	fromOthers  = `{podSelector: {matchLabels: {app: license}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [atlas, hydra]}]}}], ports: [{protocol: TCP, port: 8080}]}]}`
)

// asking returns a GPU pod in the namespace team whose init container connects to the Service license in the namespace
// house, with this text in its log.
func asking(words string) *bench {
	b := newBench().node("a", 2).pod("p", "a", 1, func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
		p.Spec.InitContainers = []corev1.Container{{
			Name:    "license",
			Command: []string{"sh", "-c", "until wget -q http://license.house.svc.cluster.local/; do sleep 1; done"},
		}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name:  "license",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: benchAgo(time.Minute)}},
		}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: inWaiting("PodInitializing", "")}}
	}).container("license", words)
	for _, name := range []string{"team", "house", "kube-system"} {
		b.Namespaces = append(b.Namespaces, corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}},
		})
	}
	service := func(namespace, name, label, value string, port corev1.ServicePort, pods int32) {
		b.Services = append(b.Services,
			corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{
				Selector: map[string]string{label: value}, Ports: []corev1.ServicePort{port},
				ClusterIPs: []string{"10.96.7.7"},
			}})
		b.Pods = append(b.Pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name + "-1",
				Labels: map[string]string{label: value, "pod-template-hash": "x"},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{
					Name:  "c",
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: pods, Protocol: port.Protocol}},
				},
			}},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: "10.1.0.9",
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	service("house", "license", "app", "license",
		corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http")}, 8080)
	service("kube-system", "kube-dns", "k8s-app", "kube-dns",
		corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(53)}, 53)
	return b
}

func (b *bench) policy(namespace, name, spec string) *bench {
	p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		panic(err)
	}
	b.NetworkPolicies = append(b.NetworkPolicies, p)
	return b
}

// tenant adds policies to the pod's namespace.
func (b *bench) tenant(specs ...string) *bench {
	for i, spec := range append([]string{denyAll}, specs...) {
		b.policy("team", []string{"default-deny", "names", "license"}[i], spec)
	}
	return b
}

func (b *bench) without(namespace, service string) *bench {
	var kept []corev1.Service
	for _, s := range b.Services {
		if s.Namespace != namespace || s.Name != service {
			kept = append(kept, s)
		}
	}
	b.Services = kept
	return b
}

// TestNetworkPolicies verifies that the ways in which policies prevent a pod from connecting are distinguished, with
// the field and the patch. Correct policies, and pods that wait for another reason, are not reported.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	crash := func(b *bench, words string) *bench {
		p := &b.Pods[0]
		p.Status.InitContainerStatuses[0].State = exitedWith(1, "Error")
		b.Logs[0].Text = words
		return b
	}
	young := func(b *bench) *bench {
		b.Pods[0].Status.InitContainerStatuses[0].State.Running.StartedAt = benchAgo(10 * time.Second)
		return b
	}
	second := func(b *bench) *bench {
		b.Logs[0].Text = "nc: timed out\nName: license.house.svc.cluster.local\n"
		b.Services[0].Spec.Ports = append(
			[]corev1.ServicePort{{Port: 9090, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(9090)}},
			b.Services[0].Spec.Ports...,
		)
		return b
	}
	foreign := func(b *bench) *bench {
		b.Pods[0].Spec.DNSPolicy = corev1.DNSDefault
		return b
	}
	proxied := func(b *bench) *bench {
		b.Pods[0].Spec.InitContainers[0].Env = []corev1.EnvVar{{Name: "https_proxy", Value: "http://proxy.corp:3128"}}
		return b
	}
	flannel := func(b *bench) *bench {
		b.DaemonSets = append(b.DaemonSets, daemonSetNamed("kube-flannel-ds"))
		return b
	}
	runBench(t, map[string]benchCase{
		"DNS by TCP alone": {asking(noNames).tenant(namesTCP, toLicense), "net.policy error",
			`kubectl -n team patch networkpolicy names --type json -p '[{"op":"add","path":"/spec/egress/0/ports/-","value":{"port":53,"protocol":"UDP"}}]'`},
		"DNS by TCP, wget's words": {
			asking("wget: bad address 'license.house.svc.cluster.local'").tenant(namesTCP, toLicense),
			"net.policy error", "allows DNS only over TCP 53",
		},
		"no DNS": {asking(noNames).tenant(), "net.policy error", "name: allow-dns\n"},
		"no DNS, it crashes": {
			crash(asking("").tenant(), "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
			"net.dns error, net.policy error, wl.pod-failing error", "",
		},
		"DNS pods of another label": {asking(noNames).tenant(
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: coredns}}}], ports: [{protocol: UDP, port: 53}]}]}`,
		),
			"net.policy error", "not to the DNS server's pods"},
		"DNS namespace by name": {asking(noNames).tenant(
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {name: kube-system}}}], ports: [{protocol: UDP, port: 53}]}]}`,
		),
			"net.policy error",
			`"path":"/spec/egress/0/to/0/namespaceSelector","value":{"matchLabels":{"kubernetes.io/metadata.name":"kube-system"}}`},
		"DNS Service not collected": {
			asking(noNames).without("kube-system", "kube-dns").tenant(namesTCP, toLicense), "net.policy error",
			"lookups use UDP",
		},

		"the Service's port": {asking(noAnswer).tenant(namesRight, toPort80), "net.policy error",
			`kubectl -n team patch networkpolicy license --type json -p '[{"op":"replace","path":"/spec/egress/0/ports/0/port","value":8080}]'`},
		"the Service's port, title": {
			asking(noAnswer).tenant(namesRight, toPort80), "net.policy error",
			"allows TCP 80, the port of the Service, but the Service's pods listen on TCP 8080",
		},
		"a label that is not there": {asking(noAnswer).tenant(namesRight, toName), "net.policy error",
			`kubectl -n team patch networkpolicy license --type json -p '[{"op":"replace","path":"/spec/egress/0/to/0/namespaceSelector","value":{"matchLabels":{"kubernetes.io/metadata.name":"house"}}}]'`},
		"the other side": {asking(noAnswer).tenant(namesRight, toLicense).policy("house", "clients", fromOthers),
			"net.policy error",
			`kubectl -n house patch networkpolicy clients --type json -p '[{"op":"add","path":"/spec/ingress/0/from/-","value":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"team"}}}}]'`},
		"the other side denies all": {
			asking(noAnswer).policy("house", "deny", denyAll), "net.policy error",
			"name: allow-from-team\n  namespace: house\n",
		},
		"no policy for it": {
			asking(noAnswer).tenant(namesRight), "net.policy error", "do not let it reach Service house/license",
		},
		"policies that select others": {
			asking(noAnswer).policy("team", "web", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]}`),
			"", "",
		},

		"all allowed": {
			asking(noAnswer).tenant(namesRight, toLicense).policy("house", "clients", fromTeam), "", "",
		},
		"all allowed, DNS is down": {asking(noNames).tenant(namesRight, toLicense), "", ""},
		"a port that it does not ask for is denied": {
			second(asking("")).unnamed().tenant(namesRight, toLicense), "", "",
		},
		"all allowed, by the port's name": {asking(noAnswer).tenant(namesRight, toNamedPort), "", ""},
		"a rule for all": {
			asking(noAnswer).tenant(`{podSelector: {}, egress: [{}], policyTypes: [Egress]}`), "", "",
		},
		"no policies": {asking(noAnswer), "", ""},
		"ingress alone is denied": {
			asking(noAnswer).policy("team", "deny", `{podSelector: {}}`), "", "",
		},
		"it says nothing of the kind": {asking("downloading 12 GiB, timeout=600").tenant(), "", ""},
		"it has just begun":           {young(asking(noNames).tenant()), "", ""},
		"it got on since": {
			asking(noNames + strings.Repeat("downloading\n", 100)).tenant(), "", "",
		},
		"refused, so nothing is dropped": {
			asking("Get \"http://license.house.svc/\": dial tcp 10.96.7.7:80: connect: connection refused").tenant(),
			"", "",
		},

		"DNS by addresses, and it resolves": {asking(noAnswer).tenant(
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{protocol: UDP, port: 53}]}]}`,
			toPort80,
		), "net.policy error", "the port of the Service"},
		"DNS by addresses": {asking(noNames).tenant(
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 169.254.20.10/32}}], ports: [{protocol: UDP, port: 53}]}]}`,
		), "net.policy unknown", ""},
		"addresses of others": {asking(noNames).tenant(
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{protocol: UDP, port: 53}]}]}`,
		), "net.policy error", ""},
		"a DNS server of its own": {foreign(asking(noNames).tenant()), "net.policy unknown", ""},

		"by addresses": {asking(noAnswer).tenant(namesRight, toInternet), "net.policy unknown", ""},
		"no Service is named": {
			crash(asking("").tenant(namesRight), "requests: Connection to huggingface.co timed out").unnamed(),
			"net.policy unknown, wl.pod-failing error", "",
		},
		"a public server, by its address": {asking(downloads).unnamed().tenant(namesRight),
			"net.policy error", "name: allow-registry.ollama.ai\n"},
		"a public server, by its name": {asking(noHub).unnamed().tenant(namesRight),
			"net.policy error", "do not let it reach huggingface.co"},
		"a public server, curl's words": {
			asking("curl: (28) Failed to connect to huggingface.co port 443 after 135000 ms: Could not connect").
				unnamed().tenant(namesRight), "net.policy error", "do not let it reach huggingface.co",
		},
		"a public server, pip's words": {
			asking("after connection broken by 'ConnectTimeoutError(<pip._vendor.urllib3.connection.HTTPSConnection " +
				"object at 0x7f>, 'Connection to pypi.org timed out. (connect timeout=15)')': /simple/torch/").
				unnamed().tenant(namesRight), "net.policy error", "- port: 443",
		},
		"a public server, Node's words": {
			asking("Error: connect ETIMEDOUT 104.21.75.227:443").unnamed().tenant(namesRight),
			"net.policy error", "name: allow-104.21.75.227\n",
		},
		"a public server, allowed": {asking(downloads).unnamed().tenant(namesRight,
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]}]}`,
		), "", ""},
		"a public server, another port allowed": {
			asking(downloads).unnamed().tenant(namesRight, toInternet), "net.policy error", "",
		},
		"a public server, perhaps allowed": {asking(noHub).unnamed().tenant(namesRight,
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 18.0.0.0/8}}]}]}`,
		), "net.policy unknown", ""},
		"a server of the company": {
			asking("dial tcp 10.20.0.7:443: i/o timeout").unnamed().tenant(namesRight), "net.policy unknown", "",
		},
		"a Service by its short name": {
			asking("Get \"http://license.house:80/\": i/o timeout").unnamed().tenant(namesRight),
			"net.policy unknown", "",
		},
		"through a proxy":      {proxied(asking(downloads).unnamed().tenant(namesRight)), "net.policy unknown", ""},
		"policies are missing": {asking(noAnswer).missing("api/networkpolicies"), "net.policy unknown", ""},
		"the Service is hidden": {
			asking(noAnswer).without("house", "license").tenant(namesRight).missing("api/services/house/license"),
			"net.policy unknown", "",
		},
		"flannel": {flannel(asking(noNames).tenant()), "net.policy unknown", ""},
	})
}

// unnamed removes the Service from the pod's command.
func (b *bench) unnamed() *bench {
	b.Pods[0].Spec.InitContainers[0].Command = []string{"python3", "download.py"}
	return b
}

// TestNetworkPolicyIsTheRoot verifies that all consequences are grouped under the policy, and the policy under the run
// of an exercise.
func TestNetworkPolicyIsTheRoot(t *testing.T) {
	t.Parallel()
	s := asking("[Errno -3] Temporary failure in name resolution").tenant(namesTCP, toLicense).Snapshot
	s.Pods[0].Status.InitContainerStatuses[0].State = exitedWith(1, "Error")
	if got := runtimeRoots(Examine(&s, Options{})); got != "net.policy" {
		t.Errorf("the roots are %s", got)
	}
	s.Runs = []snapshot.Run{{
		ID: "scenario-1", Fault: "scenario", Phase: "Proven", Created: benchNow(),
		Targets: []snapshot.Target{{Kind: "Namespace", Name: "team"}},
	}}
	if got := runtimeRoots(Examine(&s, Options{})); got != "fault.injected" {
		t.Errorf("with the run known the roots are %s", got)
	}
}

func daemonSetNamed(name string) appsv1.DaemonSet {
	return appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
}
