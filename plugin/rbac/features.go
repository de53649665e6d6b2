package rbac

import (
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/dcgm"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/fixes"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/leftover"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/device"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/expect"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/network"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/runtime"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/xid"
)

// Feature is a part of the tool to which users can be granted access.
type Feature struct {
	Name string
	// Allows describes what users with the roles can do.
	Allows string
	// Reaches describes what users could do with the permissions in addition to running the commands.
	Reaches string
	// Permissions returns the permissions of the roles. Before a change, the commands check the same permissions with
	// the API server.
	Permissions func(Scope) ([]fault.Permission, error)
}

// Scope is the scope of the granted features.
type Scope struct {
	// Ledger is the namespace of records, locks and debug pods.
	Ledger string
	// Workloads is the namespace of the workloads. Empty means none.
	Workloads string
	// APIOnly excludes the permissions for the pods with which doctor reads nodes.
	APIOnly bool
}

// check returns an error if the permissions for a feature would exceed its description in this scope.
func (s Scope) check(chosen []Feature) error {
	i := slices.IndexFunc(chosen, func(f Feature) bool { return f.Name == "cuda" || f.Name == "real-xid" })
	if i < 0 {
		return nil
	}
	if s.Workloads == "" {
		return fmt.Errorf("--for %s requires -n NAMESPACE, the namespace of the workloads: users who can change workloads in all namespaces can start "+
			"privileged pods in some of them", chosen[i].Name)
	}
	if err := fault.CheckNamespace(
		ledger.Target{Kind: "Namespace", Name: s.Workloads}, s.Workloads, s.Ledger,
	); err != nil {
		return fmt.Errorf("-n %s: %w", s.Workloads, err)
	}
	return nil
}

const (
	rootOnNodes  = "Has root access to every node, through a new privileged pod or by exec into a debug pod, and therefore to every Secret and workload."
	writesLedger = "Can rewrite the records of all runs, take their locks, and delete the pods in the ledger namespace."
)

// Features returns all features.
func Features() []Feature {
	return []Feature{
		{"xid", "write XIDs to kernel logs with privileged pods: root on every node",
			rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), xid.Permissions(s.Ledger), podsOf(s)), nil
			}},
		{"runtime", "break and show containerd's configuration with privileged pods: root on every node",
			rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), runtime.Permissions(s.Ledger), podsOf(s)), nil
			}},
		{"device", "list devices and make them unhealthy with privileged pods: root on every node",
			rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), device.Permissions(s.Ledger), podsOf(s)), nil
			}},
		{"network", "cut pods off from their peers with privileged pods: root on every node",
			rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), network.Permissions(s.Ledger)), nil
			}},
		{"chaos-mesh", "network --via chaos-mesh: cut pods off with an installed Chaos Mesh",
			"Can make Chaos Mesh cut off any pod, and delete any NetworkChaos. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), network.ChaosMeshPermissions()), nil
			}},
		{"taint", "taint devices of DRA drivers",
			"Can delete any DeviceTaintRule, and evict every pod that holds a device of a DRA driver. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), device.TaintPermissions()), nil
			}},
		{"cuda", "make workloads' CUDA calls fail: change workloads and exec into their pods",
			"Can run any code in the namespace's pods, by exec or by changing workloads, and therefore read every Secret and use every service account " +
				"in the namespace. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), cuda.Permissions(s.Workloads)), nil
			}},
		{"nvml", "xid --layers nvml,dcgm, in addition to xid: replace pods of DaemonSets",
			"Can create privileged pods in any namespace that admits them, and exec into every pod. " + rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), cuda.DaemonPermissions(),
					dcgm.Permissions()), nil
			}},
		{"real-xid", "xid --real, in addition to xid: start pods with GPUs in a namespace",
			"Can run any code in the namespace, and therefore read every Secret and use every service account in it. " +
				rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), xid.Permissions(s.Ledger),
					xid.RealPermissions(s.Workloads)), nil
			}},
		{"scenario", "run scenarios: almost an administrator, with root on every node",
			"Can read all Secrets and grant any permissions, and therefore do anything in the cluster. " + rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return scenario.Permissions(s.Ledger)
			}},
		{"doctor", "read the cluster (not Secrets), inspect nodes with privileged pods: root on every node",
			"Can read the ConfigMaps and logs in all namespaces, which may contain credentials. Without --api-only: " +
				rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return doctor.Permissions(s.Ledger, s.APIOnly), nil
			}},
		{"fix", "doctor --fix, in addition to doctor: restart device plugins, create RuntimeClasses",
			"Can delete any pod in any namespace, and create any RuntimeClass. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), fixes.AllPermissions()), nil
			}},
		{"list", "read the ledger: which faults are in place, who started them, and when they end",
			"Can read all ConfigMaps in the ledger namespace, including which user ran which command.",
			func(s Scope) ([]fault.Permission, error) {
				return append(fault.ReadPermissions(s.Ledger), fault.Permission{Verb: "get", Resource: "namespaces"}),
					nil
			}},
		{"watch", "watch how the cluster reacts to a fault, with --expect, run and watch",
			"Can read all pods, nodes and Events, and the ledger, including which user ran which command.",
			func(s Scope) ([]fault.Permission, error) {
				return append(expect.Permissions(),
					fault.Permission{Verb: "get", Resource: "configmaps", Namespace: s.Ledger},
					fault.Permission{Verb: "get", Resource: "namespaces"}), nil
			}},
		{"remediation", "cordon and drain nodes, for run --simulate-remediation",
			"Can change every node, including its labels and taints, and evict every pod. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return experiment.RemediationPermissions(s.Ledger), nil
			}},
		{"revert", "close the runs of all users; undoing a change also requires the feature for the fault",
			"Can stop the faults of all users, through their Jobs and pods. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return fault.RevertPermissions(s.Ledger), nil
			}},
		{"leftovers", "find leftovers; --nodes also requires xid, and --clean requires an administrator",
			"Can read all ConfigMaps, workloads and roles in all namespaces, including credentials in their values.",
			func(Scope) ([]fault.Permission, error) {
				return leftover.Permissions(), nil
			}},
	}
}

// podsOf returns the permissions that --pod needs in the namespace specified with -n.
func podsOf(s Scope) []fault.Permission {
	if s.Workloads == "" {
		return nil
	}
	return []fault.Permission{{Verb: "get", Resource: "pods", Namespace: s.Workloads}}
}
