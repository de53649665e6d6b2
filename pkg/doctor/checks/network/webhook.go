package network

import (
	"fmt"
	"regexp"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// ofWebhook is the kind (Finding.As) of findings about webhooks. Such findings explain only why pods cannot be created.
const ofWebhook = "webhook"

// silentWebhook matches the API server's message about a webhook that does not respond: its name, and the name and
// namespace of its Service.
var silentWebhook = regexp.MustCompile(`failed calling webhook "([^"]+)".*` +
	`Post "?https://([a-z0-9][-a-z0-9]*)\.([a-z0-9][-a-z0-9]*)\.svc\b.*(?:deadline exceeded|i/o timeout|Client\.Timeout|TLS handshake timeout)`)

// checkWebhooks reports NetworkPolicies that keep the API server from an admission webhook, so that pods cannot be
// created. To policies, the API server is not a pod: it connects from a node's address or from outside the cluster.
func checkWebhooks(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/events") || f.HasDaemonSet("flannel") && !enforcesPolicies(f) {
		return
	}
	for _, x := range f.Refusals() {
		m := silentWebhook.FindStringSubmatch(x.Event.Message)
		if m == nil {
			continue
		}
		ref := facts.ServiceRef{Namespace: m[3], Name: m[2]}
		service := service(f, ref)
		if service == nil {
			continue
		}
		for _, w := range behind(f, service, ref, facts.End{Outside: true}) {
			if let, by := f.Admits(networkingv1.PolicyTypeIngress, w.Connection); let == facts.Never {
				r.Add(unreachable(x, m[1], w, by))
				break
			}
		}
	}
}

// unreachable returns the finding about a webhook that the API server cannot reach because of policies.
func unreachable(x facts.Refusal, webhook string, w wanted, by []*networkingv1.NetworkPolicy) finding.Finding {
	policy := finding.Object{Kind: "NetworkPolicy", Namespace: by[0].Namespace, Name: by[0].Name}
	return finding.Finding{
		Title: fmt.Sprintf("the NetworkPolicy %s/%s keeps the API server from the admission webhook %s, so pods are "+
			"rejected", policy.Namespace, policy.Name, webhook),
		Object: x.Owner, Subject: policy, Confidence: finding.Likely, As: ofWebhook,
		Evidence: []finding.Evidence{
			facts.Quote(x.Event),
			finding.FieldEvidence(policy, ".spec.ingress", "no rule admits connections from outside of the cluster's pods"),
		},
		Fix: finding.Fix{
			// Anyone who can create events can write the message, so a rule for everybody is not the first advice.
			Text: fmt.Sprintf("Check that a webhook configuration really names %s. Then let the API server reach it: add "+
				"an ingress rule for its pods, for %s %d only, from the addresses of the control plane (ipBlock; "+
				"selectors of pods and namespaces never match the API server). Only if these addresses are unknown, omit "+
				"from: all clients can then reach this port.", w.name, w.Protocol, w.Connection.Port),
			Commands: []string{
				"kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
				shell.Command("kubectl -n %s edit networkpolicy %s", policy.Namespace, policy.Name),
			},
		},
	}
}
