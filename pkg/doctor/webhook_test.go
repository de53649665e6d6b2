package doctor

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// A NetworkPolicy that admits only pods keeps the API server from a webhook; one that admits everybody does not.
func TestWebhookBehindPolicy(t *testing.T) {
	t.Parallel()
	event := `Error creating: Internal error occurred: failed calling webhook "x.gate.svc": failed to call webhook: ` +
		`Post "https://gate.gate.svc:443/mutate?timeout=10s": context deadline exceeded`
	for name, test := range map[string]struct {
		ingress string
		denied  bool
	}{
		"pods only":           {`[{"from": [{"podSelector": {}}]}]`, true},
		"nobody":              {`[]`, true},
		"all namespaces":      {`[{"from": [{"namespaceSelector": {}}]}]`, true},
		"everybody":           {`[{}]`, false},
		"the port":            {`[{"ports": [{"port": 9443}]}]`, false},
		"another port":        {`[{"ports": [{"port": 443}]}]`, true},
		"a block of the plan": {`[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]`, false}, // unknown, so not reported
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench().node("a", 2).event("ReplicaSet", "r", "FailedCreate", event)
			b.Services = append(b.Services, corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "gate", Name: "gate"},
				Spec: corev1.ServiceSpec{
					Selector: map[string]string{"app": "gate"},
					Ports:    []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromInt32(9443)}},
				},
			})
			var rules []networkingv1.NetworkPolicyIngressRule
			if err := json.Unmarshal([]byte(test.ingress), &rules); err != nil {
				t.Fatal(err)
			}
			b.NetworkPolicies = append(b.NetworkPolicies, networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "gate", Name: "gate"},
				Spec: networkingv1.NetworkPolicySpec{
					PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: rules,
				},
			})
			report := Examine(&b.Snapshot, Options{Checks: []string{"net.policy", "wl.forbidden"}})
			denied := false
			for _, f := range report.Items {
				denied = denied || f.ID == "net.policy" && f.Severity == finding.Error &&
					strings.Contains(f.Title, "gate/gate")
			}
			if denied != test.denied {
				t.Errorf("got denied %v: %+v", denied, report.Items)
			}
		})
	}
}
