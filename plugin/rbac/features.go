package rbac

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/fixes"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/leftover"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/runtime"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/xid"
)

// Feature is something that a user can be allowed.
type Feature struct {
	Name string
	// Allows says what whoever has the roles can do.
	Allows string
	// Reaches says what the holder could do with the rights beyond what the commands do.
	Reaches string
	// Permissions are the rules of the roles. The commands ask the API server about the same ones before they change
	// anything: nobody writes them down a second time.
	Permissions func(Scope) ([]fault.Permission, error)
}

// Scope is where a feature is allowed.
type Scope struct {
	// Ledger is the namespace of records, locks and debug pods.
	Ledger string
	// Workloads is the namespace whose workloads are meant; empty is none.
	Workloads string
	// APIOnly leaves out of doctor the pods that read nodes.
	APIOnly bool
}

// check refuses features whose rights would reach further in the scope than their description says.
func (s Scope) check(chosen []Feature) error {
	if !slices.ContainsFunc(chosen, func(f Feature) bool { return f.Name == "cuda" }) {
		return nil
	}
	if s.Workloads == "" {
		return errors.New("--for cuda requires -n NAMESPACE, the namespace of the workloads: who may change workloads in all namespaces may start " +
			"privileged pods in some of them")
	}
	if err := fault.CheckNamespace(
		ledger.Target{Kind: "Namespace", Name: s.Workloads}, s.Workloads, s.Ledger,
	); err != nil {
		return fmt.Errorf("-n %s: %w", s.Workloads, err)
	}
	return nil
}

const (
	rootOnNodes  = "Is root on every node, by a privileged pod of their own or by exec into one of ours, and so reaches every Secret and every workload."
	writesLedger = "May rewrite the records of all runs, take their locks, and delete the pods of the ledger namespace."
)

// Features returns the table of all that can be allowed.
func Features() []Feature {
	return []Feature{
		{"xid", "write XIDs into kernel logs, by privileged pods: root on every node",
			rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), xid.Permissions(s.Ledger), podsOf(s)), nil
			}},
		{"runtime", "break and show containerd's configuration, by privileged pods: root on every node",
			rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), runtime.Permissions(s.Ledger), podsOf(s)), nil
			}},
		{"cuda", "make CUDA calls of workloads fail: change them, and exec into their pods",
			"Runs any code in the pods of the namespace, by exec and by changing workloads, and so reads every Secret and uses every service account " +
				"of the namespace. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), cuda.Permissions(s.Workloads)), nil
			}},
		{"scenario", "play the scenarios: nearly an administrator, root on every node",
			"Reads all Secrets and grants any rights, and so may do anything in the cluster. " + rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return scenario.Permissions(s.Ledger)
			}},
		{"doctor", "read the cluster, but no secrets, and nodes by privileged pods: root on every node",
			"Reads the ConfigMaps and the logs of all namespaces, which may hold credentials. Without --api-only: " +
				rootOnNodes,
			func(s Scope) ([]fault.Permission, error) {
				return doctor.Permissions(s.Ledger, s.APIOnly), nil
			}},
		{"fix", "doctor --fix, beyond doctor: restart device plugins, create RuntimeClasses",
			"Deletes any pod in any namespace, and creates any RuntimeClass. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return fault.Permissions(fault.BasePermissions(s.Ledger), fixes.AllPermissions()), nil
			}},
		{"list", "read the ledger: what is broken, by whom, until when",
			"Reads all ConfigMaps of the ledger namespace: who ran which command.",
			func(s Scope) ([]fault.Permission, error) {
				return append(fault.ReadPermissions(s.Ledger), fault.Permission{Verb: "get", Resource: "namespaces"}),
					nil
			}},
		{"revert", "close anybody's runs; what a fault changed is undone with its feature besides",
			"Ends the faults of all users, by their Jobs and pods. " + writesLedger,
			func(s Scope) ([]fault.Permission, error) {
				return fault.RevertPermissions(s.Ledger), nil
			}},
		{"leftovers", "look for leftovers; --nodes takes the rights of xid too, --clean an administrator",
			"Reads all ConfigMaps, workloads and roles of all namespaces, with credentials in their values.",
			func(Scope) ([]fault.Permission, error) {
				return leftover.Permissions(), nil
			}},
	}
}

// podsOf returns what --pod needs in the namespace of -n.
func podsOf(s Scope) []fault.Permission {
	if s.Workloads == "" {
		return nil
	}
	return []fault.Permission{{Verb: "get", Resource: "pods", Namespace: s.Workloads}}
}
