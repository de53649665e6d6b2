package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// TestParsePeers holds that a peer is understood as it is documented, and that a mistake is explained before anything
// is changed.
func TestParsePeers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"any": "any", "dns": "dns", "10.1.2.3": "10.1.2.3/32", "fd00::1": "fd00::1/128", "10.0.0.0/8": "10.0.0.0/8",
		"pod/a": "pod /a", "pod/ml/a.b": "pod ml/a.b", "0.0.0.0/0": "0.0.0.0/0",

		"":                   "error: must be an IP address",
		"a":                  "error: must be an IP address",
		"10.0.0.5/8":         "error: use 10.0.0.0/8 or 10.0.0.5",
		"127.0.0.1":          "error: address of another host",
		"0.0.0.0":            "error: for any address, use any",
		"fe80::1%eth0":       "error: address of another host",
		"::ffff:10.0.0.1":    "error: address of another host",
		"::ffff:10.0.0.0/96": "error: must be an IP address",
		"10.0.0.0/33":        "error: must be an IP address",
		"pod/":               "error: must be pod/NAME or pod/NAMESPACE/NAME",
		"pod/a/b/c":          "error: must be pod/NAME",
		"pod/A":              "error: must be pod/NAME",
		"pod//a":             "error: must be pod/NAME",
		"svc/vllm":           "error: specify the pods",
		"--from":             "error: is a value missing?",
		"DNS":                "error: must be an IP address",
	} {
		all, err := parsePeers("to", []string{text})
		got := ""
		switch {
		case err != nil:
			got = "error: " + err.Error()
		case all[0].name != "":
			got = "pod " + all[0].namespace + "/" + all[0].name
		case all[0].network.IsValid():
			got = all[0].network.String()
		case all[0].dns:
			got = "dns"
		default:
			got = "any"
		}
		if isError := strings.HasPrefix(want, "error: "); got != want &&
			(!isError || err == nil || !strings.Contains(got, strings.TrimPrefix(want, "error: "))) {
			t.Errorf("%q is %s, wanted %s", text, got, want)
		}
	}
	var many []string
	for i := range maxPeers + 1 {
		many = append(many, fmt.Sprintf("10.0.0.%d", i+1))
	}
	for _, values := range [][]string{many, {"any", "10.0.0.1"}} {
		if _, err := parsePeers("to", values); err == nil {
			t.Errorf("%v was accepted", values)
		}
	}
	if all, err := parsePeers("to", []string{"dns", "dns"}); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// FuzzParsePeer holds that whatever is accepted as a peer becomes a rule that the helper accepts.
func FuzzParsePeer(f *testing.F) {
	for _, text := range []string{"any", "dns", "10.0.0.0/8", "fd00::1", "pod/a/b", "::/0", "1.2.3.4/00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePeer(text)
		if err != nil || p.name != "" {
			return
		}
		r := resolver{nodes: []corev1.Node{node("a", "10.0.0.1", "fd00::2")}}
		matches, err := r.matches(t.Context(), []peer{p}, false)
		if err != nil {
			t.Fatal(err)
		}
		pods := []api.PartitionedPod{{Name: "ml/a", UID: "u", Addresses: []netip.Addr{
			netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"),
		}}}
		if _, err := request(api.Partition{Pods: pods}, r.forNode(matches, "b")); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}

func node(name string, addresses ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// TestMatches holds that the rules for each peer select what the help says, and that packets are sent only to addresses
// of the peer that the node forwards.
func TestMatches(t *testing.T) {
	t.Parallel()
	own := node("own", "10.9.0.1")
	own.Spec.PodCIDRs = []string{"10.1.1.0/24"}
	other := node("other", "10.9.0.2")
	other.Spec.PodCIDRs = []string{"10.1.2.0/24"}
	client := fake.NewClientset(runningPod("ml", "b", "other", "10.1.2.5"))
	for name, tc := range map[string]struct {
		peers    []string
		received bool
		protocol string
		port     int
		want     []string
	}{
		"a pod": {peers: []string{"pod/b"}, want: []string{"10.1.2.5/32  0 0 [10.1.2.5]"}},
		"dns":   {peers: []string{"dns"}, want: []string{"any tcp 53 0 []", "any udp 53 0 []"}},
		"answers of dns": {
			peers: []string{"dns"}, received: true, protocol: "udp", want: []string{"any udp 0 53 []"},
		},
		"any": {
			peers: []string{"any"}, want: []string{"any  0 0 [10.9.0.2 10.1.2.1 192.0.2.1 2001:db8::1]"},
		},
		"a network of pods, and a port": {
			peers: []string{"10.1.0.0/16"}, port: 80, protocol: "tcp",
			want: []string{"10.1.0.0/16 tcp 80 0 [10.1.2.1 10.1.0.1 10.1.255.254]"},
		},
		"received": {
			peers: []string{"203.0.113.0/24"}, received: true, port: 80,
			want: []string{"203.0.113.0/24 tcp 80 0 []", "203.0.113.0/24 udp 80 0 []"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peers, err := parsePeers("to", tc.peers)
			if err != nil {
				t.Fatal(err)
			}
			r := resolver{client, "ml", tc.protocol, tc.port, []corev1.Node{own, other}, false}
			matches, err := r.matches(t.Context(), peers, tc.received)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range r.forNode(matches, "own") {
				peer := "any"
				if m.Peer.IsValid() {
					peer = m.Peer.String()
				}
				got = append(got,
					fmt.Sprintf("%s %s %d %d %v", peer, m.Protocol, m.DestinationPort, m.SourcePort, m.Probes))
			}
			if strings.Join(got, "; ") != strings.Join(tc.want, "; ") {
				t.Errorf("got %q, wanted %q", got, tc.want)
			}
		})
	}
}

func runningPod(namespace, name, node string, addresses ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: "uid-1", Labels: map[string]string{"app": "train"},
		},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "10.9.0.1"},
	}
	for _, a := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return pod
}

// TestPeerPods holds that a peer that cannot be cut off is refused with the reason.
func TestPeerPods(t *testing.T) {
	t.Parallel()
	host := runningPod("ml", "host", "n", "10.9.0.1")
	host.Spec.HostNetwork = true
	client := fake.NewClientset(host, runningPod("ml", "waits", "n"), runningPod("other", "b", "n", "10.1.0.9"))
	for text, want := range map[string]string{
		"pod/host": "specify the node's address 10.9.0.1", "pod/waits": "has no address",
		"pod/b": `not found in namespace "ml"`, "pod/other/b": "",
	} {
		p, err := parsePeer(text)
		if err == nil {
			_, err = p.find(t.Context(), client, "ml")
		}
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted %q", text, err, want)
		}
	}
}
