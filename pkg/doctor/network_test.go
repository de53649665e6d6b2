package doctor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// kernel marks a node as read, with these lines in its kernel log.
func (b *bench) kernel(name string, lines ...string) *bench {
	return b.kernelAt(name, time.Minute, lines...)
}

func (b *bench) kernelAt(name string, ago time.Duration, lines ...string) *bench {
	host := &api.Diagnosis{}
	for i, l := range lines {
		host.KernelLog = append(host.KernelLog,
			api.KernelRecord{Sequence: uint64(i), Text: l, Time: benchNow().Add(-ago)})
	}
	b.Hosts[name] = host
	return b
}

const (
	ufwDNS   = "[UFW BLOCK] IN=lxc6f1c0ad2 OUT=eno1 MAC=aa:bb SRC=10.1.0.25 DST=8.8.8.8 LEN=60 TOS=0x00 PREC=0x00 TTL=63 ID=1 DF PROTO=UDP SPT=41234 DPT=53 LEN=40"
	ufwNoise = "[UFW BLOCK] IN=eno1 OUT= MAC=aa:bb SRC=203.0.113.9 DST=192.18.132.31 LEN=40 PROTO=TCP SPT=40000 DPT=23 WINDOW=1024 SYN"
)

// TestNetworkChecks covers images that cannot be pulled, names that do not resolve, and packets that a firewall drops.
// Each is identified by its own messages, and reported only while it lasts.
func TestNetworkChecks(t *testing.T) {
	t.Parallel()
	pull := func(text string) *bench {
		return newBench().node("a", 2).pod("p", "a", 1, cannotPull("ErrImagePull", text))
	}
	plain := func(text string) *bench {
		return newBench().node("a", 2).pod("p", "a", 0, cannotPull("ErrImagePull", text))
	}
	const timeout = `failed to pull and unpack image "nvcr.io/nvidia/cuda:12": failed to do request: Head "https://nvcr.io/v2/nvidia/cuda/manifests/12": dial tcp 18.1.2.3:443: i/o timeout`
	runBench(t, map[string]benchCase{
		"timeout": {pull(timeout), "img.pull-network error, wl.pod-failing error", "TCP 443"},
		"DNS": {
			pull(`dial tcp: lookup nvcr.io on 127.0.0.53:53: server misbehaving`),
			"net.dns error, wl.pod-failing error", "getent hosts nvcr.io",
		},
		"DNS server refuses": {pull(
			`failed to do request: Head "https://r.example/v2/x/manifests/1": dial tcp: lookup r.example on [::1]:53: read udp [::1]:4711->[::1]:53: read: connection refused`,
		),
			"net.dns error, wl.pod-failing error", "DNS server fails or does not respond"},
		"DNS server is slow": {
			pull(`dial tcp: lookup r.example on 10.0.0.2:53: read udp 10.0.0.9:1->10.0.0.2:53: i/o timeout`),
			"net.dns error, wl.pod-failing error", "ssh a getent hosts r.example",
		},
		"no such name": {
			pull(`dial tcp: lookup r.example: no such host`), "net.dns error, wl.pod-failing error",
			"does not know the name",
		},
		"the proxy's name": {
			pull(`proxyconnect tcp: dial tcp: lookup proxy.example on 10.0.0.2:53: no such host`),
			"img.pull-network error, wl.pod-failing error", "HTTPS_PROXY",
		},
		"refused": {
			pull(`dial tcp 1.2.3.4:443: connect: connection refused`), "img.pull-network error, wl.pod-failing error",
			"refuses or drops",
		},
		"TLS": {
			pull(`x509: certificate signed by unknown authority`), "img.pull-network error, wl.pod-failing error",
			"certificate authority",
		},
		"auth": {
			pull(
				`pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed`,
			),
			"img.pull-auth error, wl.pod-failing error", "imagePullSecrets",
		},
		"auth, with a secret in the pod": {
			newBench().node("a", 2).pod("p", "a", 1, func(p *corev1.Pod) {
				p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}}
			}, cannotPull("ErrImagePull", `pull access denied: authorization failed`)),
			"img.pull-auth error, wl.pod-failing error", "kubectl -n team get secret mine",
		},
		"auth, ECR": {
			newBench().node("a", 2).pod("p", "a", 1, func(p *corev1.Pod) {
				p.Spec.Containers[0].Image = "1.dkr.ecr.eu-west-1.amazonaws.com/x:1"
			}, cannotPull("ErrImagePull", `no basic auth credentials`)),
			"img.pull-auth error, wl.pod-failing error", "IAM role",
		},
		"slow": {
			pull(`rpc error: code = DeadlineExceeded desc = context deadline exceeded`),
			"img.pull-network error, wl.pod-failing error", "did not finish in time",
		},
		"HTTP": {
			pull(`Head "https://r.example:5000/v2/x": http: server gave HTTP response to HTTPS client`),
			"img.pull-network error, wl.pod-failing error", "serves HTTP",
		},
		"no DNS on the node": {newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error"), func(p *corev1.Pod) {
			p.Spec.HostNetwork = true
		}).log("p", "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
			"net.dns error, wl.pod-failing error", "ClusterFirstWithHostNet"},
		"limit": {
			pull(`429 Too Many Requests - toomanyrequests: You have reached your pull rate limit.`),
			"img.pull-auth error, wl.pod-failing error", "mirror",
		},
		"no tag": {
			pull(`rpc error: code = NotFound desc = failed to resolve reference "x/y:z": x/y:z: not found`),
			"img.not-found error, wl.pod-failing error", "",
		},
		"platform": {
			pull(`no match for platform in manifest sha256:1: not found`), "wl.exec-format error, wl.pod-failing error",
			"",
		},
		"old kubelet, event": {newBench().node("a",
			2).pod("p", "a", 1, cannotPull("ImagePullBackOff", `Back-off pulling image "train:1"`)).
			event("Pod", "p", "Failed", `Failed to pull image "train:1": rpc error: dial tcp 1.2.3.4:443: i/o timeout`),
			"img.pull-network error, wl.pod-failing error", "event Failed of Pod team/p"},
		"no event left": {
			newBench().node("a",
				2).pod("p", "a", 1, cannotPull("ImagePullBackOff", `Back-off pulling image "train:1"`)),
			"img.pull-network unknown, wl.pod-failing error", "",
		},
		"pause image": {newBench().node("a", 2).pod("p", "a", 1, cannotPull("ContainerCreating", "")).
			event(
				"Pod", "p", "FailedCreatePodSandBox",
				`failed to get sandbox image "registry.k8s.io/pause:3.9": failed to pull image: dial tcp 1.2.3.4:443: i/o timeout`,
			), "img.pull-network error, wl.pod-failing error", "registry.k8s.io"},
		"an app of somebody": {plain(timeout), "img.pull-network info", ""},
		"an app's wrong tag": {plain(`x: not found`), "", ""},
		"pulled since": {newBench().node("a", 2).pod("p", "a", 1).event("Pod", "p", "Failed",
			`Failed to pull image "train:1": i/o timeout`), "", ""},
		"no DNS in the pod": {newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error")).log(
			"p",
			"curl: (6) Could not resolve host: x\nsocket.gaierror: [Errno -3] Temporary failure in name resolution",
		), "net.dns error, wl.pod-failing error", "networkpolicies"},
		"firewall and DNS": {
			newBench().node("a", 2).pod("p", "a", 1,
				crashing(1, "Error")).log("p", "Temporary failure in name resolution").kernel("a", ufwDNS),
			"net.dns error, net.egress-blocked error, wl.idle-holder unknown, wl.pod-failing error",
			"sudo ufw route allow in on lxc+ out on eno1",
		},
		"firewall, nobody suffers": {
			newBench().node("a", 2).kernel("a", ufwDNS), "net.egress-blocked warning",
			"sudo ufw route allow from 10.0.0.0/8",
		},
		"the node's own packets": {
			pull(timeout).kernel("a",
				"[UFW BLOCK] IN= OUT=eno1 SRC=192.18.132.31 DST=18.1.2.3 LEN=60 PROTO=TCP SPT=41234 DPT=443 SYN"),
			"img.pull-network error, net.egress-blocked error, wl.idle-holder unknown, wl.pod-failing error",
			"sudo ufw allow out on eno1 to any port 443 proto tcp",
		},
		"old lines, pods fail": {
			newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error")).log("p",
				"Temporary failure in name resolution").kernelAt("a", 5*time.Hour, ufwDNS),
			"net.dns error, net.egress-blocked error, wl.idle-holder unknown, wl.pod-failing error", "",
		},
		"old lines": {newBench().node("a", 2).kernelAt("a", 5*time.Hour, ufwDNS), "", ""},
		"an image that is a trap": {newBench().node("a", 2).pod("p", "a", 1,
			func(p *corev1.Pod) { p.Spec.Containers[0].Image = "x;reboot" },
			cannotPull("InvalidImageName", `couldn't parse image reference`)),
			"img.not-found error, wl.pod-failing error", ""},
		"the internet's noise": {newBench().node("a", 2).kernel("a", ufwNoise), "", ""},
	})
}
