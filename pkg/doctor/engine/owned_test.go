package engine

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestFixesSayWhoManagesTheObject verifies that a fix does not contain a change that a controller reverts: it names the
// object's manager and omits the command.
func TestFixesSayWhoManagesTheObject(t *testing.T) {
	t.Parallel()
	yes := true
	policy := func(annotations, labels map[string]string) snapshot.Snapshot {
		p := unstructured.Unstructured{Object: map[string]any{}}
		p.SetName("cluster-policy")
		p.SetAnnotations(annotations)
		p.SetLabels(labels)
		return snapshot.Snapshot{ClusterPolicies: []unstructured.Unstructured{p}}
	}
	daemonSet := func(meta metav1.ObjectMeta) snapshot.Snapshot {
		meta.Namespace, meta.Name = "gpu", "plugin"
		return snapshot.Snapshot{DaemonSets: []appsv1.DaemonSet{{ObjectMeta: meta}}}
	}
	const patch, edit = "kubectl patch clusterpolicy cluster-policy --type merge -p '{}'", "kubectl -n gpu edit daemonset plugin"
	for name, test := range map[string]struct {
		snapshot snapshot.Snapshot
		command  string
		says     string
		kept     bool
	}{
		"Argo CD": {
			policy(map[string]string{
				"argocd.argoproj.io/tracking-id": "addons:nvidia.com/ClusterPolicy:/cluster-policy",
			}, nil),
			patch, "Argo CD manages the clusterpolicy (application addons)", false,
		},
		"Flux": {
			policy(nil, map[string]string{"kustomize.toolkit.fluxcd.io/name": "infra"}), patch,
			"Flux manages the clusterpolicy (Kustomization infra)", false,
		},
		"Helm": {
			daemonSet(metav1.ObjectMeta{Annotations: map[string]string{"meta.helm.sh/release-name": "nvdp"}}), edit,
			"belongs to the Helm release nvdp", true,
		},
		"an operator": {
			daemonSet(metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{
				Kind: "ClusterPolicy", Name: "cluster-policy", Controller: &yes,
			}}}), edit, "ClusterPolicy cluster-policy owns the daemonset", false,
		},
		"a quota of Kubeflow": {
			snapshot.Snapshot{ResourceQuotas: []corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{
				Namespace: "team", Name: "q",
				OwnerReferences: []metav1.OwnerReference{{Kind: "Profile", Name: "team", Controller: &yes}},
			}}}}, "kubectl -n team patch resourcequota q --type merge -p '{}'", "Profile team owns the resourcequota",
			false,
		},
		"nobody":                      {policy(nil, nil), patch, "", true},
		"an object that is not there": {snapshot.Snapshot{}, patch, "", true},
		"a command that only reads": {
			policy(nil, map[string]string{"kustomize.toolkit.fluxcd.io/name": "infra"}),
			"kubectl get clusterpolicy cluster-policy -o yaml", "", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := Result{Findings: []finding.Finding{{
				Fix: finding.Fix{Text: "Change it.", Commands: []string{test.command}},
			}}}
			r.owned(facts.New(&test.snapshot))
			fix := r.Findings[0].Fix
			if test.says == "" && fix.Text != "Change it." || !strings.Contains(fix.Text, test.says) {
				t.Errorf("the fix is %q, want %q in it", fix.Text, test.says)
			}
			if slices.Contains(fix.Commands, test.command) != test.kept {
				t.Errorf("the commands are %q", fix.Commands)
			}
		})
	}
}
