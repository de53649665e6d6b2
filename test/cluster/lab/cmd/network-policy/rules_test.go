package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(namespace, name, node, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip},
	}
}

// What a policy means is in the rules, line by line: the API's own documentation says what must come out.
func TestRules(t *testing.T) {
	t.Parallel()
	udp, end := corev1.ProtocolUDP, int32(90)
	port := func(p intstr.IntOrString) *intstr.IntOrString { return &p }
	tests := map[string]struct {
		spec networkingv1.NetworkPolicySpec
		want []string
		not  []string
	}{
		"denies all egress": {
			networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"}},
			[]string{"-A NETWORK-POLICY -s 10.0.0.5 -j NP-OUT-10-0-0-5", "-A NP-OUT-10-0-0-5 -j DROP"},
			[]string{"NP-IN", "0x20000/0x20000 -j MARK"},
		},
		"one empty rule allows all": {
			networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{"Egress"}, Egress: []networkingv1.NetworkPolicyEgressRule{{}},
			},
			[]string{"-A NP-OUT-10-0-0-5 -j MARK --set-xmark 0x20000/0x20000"}, nil,
		},
		"the peers' named port": {
			networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"},
				Egress: []networkingv1.NetworkPolicyEgressRule{{
					To: []networkingv1.NetworkPolicyPeer{{
						NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "b"}},
						PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
					}},
					Ports: []networkingv1.NetworkPolicyPort{
						{Port: port(intstr.FromString("web"))},
						{Protocol: &udp, Port: port(intstr.FromInt32(80)), EndPort: &end},
					},
				}}},
			[]string{"-d 10.0.1.7 -p tcp --dport 8080 -j MARK", "-d 10.0.1.7 -p udp --dport 80:90 -j MARK"},
			[]string{"-d 10.0.1.8"},
		},
		"a block with exceptions": {
			networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From: []networkingv1.NetworkPolicyPeer{
						{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.0.1.0/24"}}},
					},
				}}},
			[]string{"-A NP-IN-10-0-0-5 -s 10.0.0.0/8 -m iprange ! --src-range 10.0.1.0-10.0.1.255 -j MARK"},
			[]string{"NP-OUT"},
		},
		"no namespace selector means its own namespace": {
			networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}},
				}}},
			[]string{"-s 10.0.0.5 -j MARK"}, []string{"-s 10.0.1.7"},
		},
		"other pods are not selected": {
			networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
				PolicyTypes: []networkingv1.PolicyType{"Egress"},
			},
			nil, []string{"NP-OUT"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := state{
				node: "node-a", cidr: "10.0.0.0/24",
				pods: []*corev1.Pod{
					pod("a", "client", "node-a", "10.0.0.5"), pod("b", "server", "node-b", "10.0.1.7"),
					pod("b", "other", "node-b", "10.0.1.8"),
				},
				policies: []*networkingv1.NetworkPolicy{
					{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: tt.spec},
				},
				namespaces: map[string]*corev1.Namespace{},
			}
			for _, n := range []string{"a", "b"} {
				s.namespaces[n] = &corev1.Namespace{
					ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"name": n}},
				}
			}
			rules := s.rules()
			for _, w := range tt.want {
				if !strings.Contains(rules, w) {
					t.Errorf("no %q in\n%s", w, rules)
				}
			}
			for _, n := range tt.not {
				if strings.Contains(rules, n) {
					t.Errorf("%q is in\n%s", n, rules)
				}
			}
		})
	}
}

// Without policies a cluster is as it was without the agent.
func TestNoPolicies(t *testing.T) {
	t.Parallel()
	s := state{node: "node-a", cidr: "10.0.0.0/24", pods: []*corev1.Pod{pod("a", "client", "node-a", "10.0.0.5")}}
	if rules := s.rules(); strings.Contains(rules, "DROP") {
		t.Errorf("packets are dropped:\n%s", rules)
	}
}
