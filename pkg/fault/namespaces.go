package fault

import (
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// checkNamespaces refuses targets in namespaces whose workloads keep the cluster, or the GPUs, or this tool alive.
// There is no flag to allow them.
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

// CheckNamespace refuses a target in a protected namespace. Preflight does; it is for faults that ask much about a
// target before.
func CheckNamespace(target ledger.Target, namespace, ledgerNamespace string) error {
	if why, protected := protectedBecause(namespace, ledgerNamespace); protected {
		return fmt.Errorf("%s: namespace %s is protected, because %s", target, namespace, why)
	}
	return nil
}

// protectedBecause returns why a namespace is protected.
func protectedBecause(namespace, ledgerNamespace string) (why string, protected bool) {
	switch namespace {
	case "":
		return "", false
	case ledgerNamespace, ledger.DefaultNamespace:
		return "it holds the records that undo faults", true
	case "kube-system":
		return "the cluster's DNS, network and control plane run there", true
	case "kube-public":
		return "clients find the cluster by it", true
	case "kube-node-lease":
		return "nodes report there that they are alive", true
	case "gpu-operator", "nvidia-gpu-operator":
		return "GPU drivers and device plugins of all nodes run there", true
	case "nvsentinel":
		return "its reaction to faults is what is to be seen", true
	}
	return "", false
}
