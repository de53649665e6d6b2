package fault

import (
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// checkNamespaces rejects targets in protected namespaces, because the cluster, the GPUs, or this tool depends on the
// workloads there. No flag overrides this check.
func checkNamespaces(plan Plan, ledgerNamespace string) []error {
	var seen []string
	var problems []error
	for _, change := range plan.Changes {
		namespace := change.Target.Namespace
		if change.Target.Kind == "Namespace" {
			namespace = change.Target.Name
		}
		err := CheckNamespace(change.Target, namespace, ledgerNamespace)
		if err == nil || slices.Contains(seen, namespace) {
			continue
		}
		seen = append(seen, namespace)
		problems = append(problems, err)
	}
	return problems
}

// CheckNamespace returns an error if the target is in a protected namespace. Preflight calls it. Faults that inspect a
// target before preflight can call it earlier.
func CheckNamespace(target ledger.Target, namespace, ledgerNamespace string) error {
	if why, protected := protectedBecause(namespace, ledgerNamespace); protected {
		return fmt.Errorf("%s: namespace %s is protected, because %s", target, namespace, why)
	}
	return nil
}

// protectedBecause reports whether a namespace is protected, and returns the reason.
func protectedBecause(namespace, ledgerNamespace string) (why string, protected bool) {
	switch namespace {
	case "":
		return "", false
	case ledgerNamespace, ledger.DefaultNamespace:
		return "it contains the records for undoing faults", true
	case "kube-system":
		return "the cluster's DNS, network and control plane run there", true
	case "kube-public":
		return "clients use it to find the cluster", true
	case "kube-node-lease":
		return "it contains the heartbeats of the nodes", true
	case "gpu-operator", "nvidia-gpu-operator":
		return "the GPU drivers and device plugins for all nodes run there", true
	case "nvsentinel":
		return "NVSentinel's reactions are to be observed", true
	}
	return "", false
}
