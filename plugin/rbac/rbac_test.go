package rbac

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	const inResearch = "name: gpu-fault-xid\n    namespace: research\n"
	for name, test := range map[string]struct {
		namespace string
		args      []string
		has, not  []string
	}{
		"short":             {"", []string{"xid", "--user", "alice"}, []string{"name: gpu-fault-xid\n", "name: alice"}, nil},
		"several":           {"", []string{"print", "--for", "list,xid", "--serviceaccount", "ci:runner"}, []string{"name: gpu-fault-xid\n", "name: gpu-fault-list\n", "kind: ServiceAccount\n    name: runner\n    namespace: ci"}, []string{"gpu-fault-doctor"}},
		"reads only":        {"", []string{"print", "--for", "list,leftovers"}, []string{"- list\n"}, []string{"create", "delete", "patch", "update", "secrets"}},
		"without a ledger":  {"", []string{"print", "--for", "leftovers"}, []string{"kind: ClusterRole\n"}, []string{"kind: Namespace\n"}},
		"roles alone":       {"", []string{"print", "--for", "xid"}, []string{"kind: ClusterRole\n", "kind: Role\n"}, []string{"Binding", "research"}},
		"for people":        {"", []string{"print", "--for", "xid", "--user", "alice", "--group", "sre,ops"}, []string{"kind: User\n    name: alice", "name: sre", "name: ops"}, []string{"research"}},
		"for pods":          {"research", []string{"print", "--for", "xid"}, []string{inResearch}, []string{"Binding"}},
		"for people's pods": {"research", []string{"print", "--for", "xid", "--group", "sre"}, []string{inResearch, "kind: RoleBinding\n"}, nil},
		"workloads of a namespace": {"research", []string{"print", "--for", "cuda", "--user", "bob"}, []string{
			"name: gpu-fault-cuda\n    namespace: research\n", "- deployments\n", "- pods/exec\n", "- dynamographdeployments\n", "kind: RoleBinding\n",
		}, []string{"secrets"}},
		"scenarios": {"", []string{"print", "--for", "scenario", "--group", "trainers"}, []string{
			"kind: ClusterRole\n", "name: trainers", "- serviceaccounts/token\n", "- escalate\n", "- networkpolicies\n", "- resourcequotas\n", "- runtimeclasses\n",
			"- subjectaccessreviews\n", "name: gpu-fault-scenario\n    namespace: gpu-fault\n", "- secrets\n",
		}, []string{"${", "accounts-"}},
		"doctor": {"", []string{"print", "--for", "doctor", "--user", "eve"}, []string{
			"kind: ClusterRole\n", "- runtimeclasses\n", "- clusterpolicies\n", "- resourceslices\n", "- networkpolicies\n", "- services\n", "- pods/log\n", "- pods/exec\n", "- create\n",
		}, []string{"secrets", "leases", "update", "jobs"}},
		"doctor without pods": {"", []string{"print", "--for", "doctor", "--api-only"}, []string{"- events\n", "- list\n"}, []string{"secrets", "create", "delete", "exec", "update"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
			connection := kube.NewConnection(streams)
			*connection.Namespace = test.namespace
			cmd := NewCommand(connection, streams)
			cmd.SetArgs(test.args)
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			for _, part := range test.has {
				if !strings.Contains(out.String(), part) {
					t.Errorf("lacks %q:\n%s", part, out.String())
				}
			}
			for _, part := range test.not {
				if strings.Contains(out.String(), part) {
					t.Errorf("has %q:\n%s", part, out.String())
				}
			}
		})
	}
}

// TestNamesAndTable: -o name and -o wide are for people who look before they apply.
func TestNamesAndTable(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{
		"name": "namespace/gpu-fault\nclusterrole.rbac.authorization.k8s.io/gpu-fault-xid\n",
		"wide": "ClusterRoleBinding",
	} {
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
		cmd := NewCommand(kube.NewConnection(streams), streams)
		cmd.SetArgs([]string{"print", "--for", "xid", "--user", "bob", "-o", output})
		if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("-o %s: %v, %q", output, err, out.String())
		}
	}
}

// TestCUDARolesAreForOneNamespace: rights on all workloads reach the ledger's namespace, whose pods are privileged,
// and so root on every node.
func TestCUDARolesAreForOneNamespace(t *testing.T) {
	t.Parallel()
	for namespace, want := range map[string]string{"": "requires -n NAMESPACE", "gpu-fault": "is protected", "kube-system": "is protected"} {
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
		connection := kube.NewConnection(streams)
		*connection.Namespace = namespace
		cmd := NewCommand(connection, streams)
		cmd.SetArgs([]string{"print", "--for", "xid,cuda", "--user", "bob"})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-n %q: %v, want %q", namespace, err, want)
		}
	}
}

// Each feature says what it allows, in a line of the table that fits a terminal; completion offers the rest of a list, and none twice.
func TestFeatures(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(table()) {
		if len(strings.TrimRight(line, "\n")) > 100 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	offered, _ := completeFeatures(nil, nil, "xid,li")
	if text := strings.Join(offered, "\n"); !strings.Contains(text, "xid,list\t") || strings.Contains(text, "xid,xid") {
		t.Errorf("%q", text)
	}
	if all, _ := completeFeatures(nil, nil, ""); len(all) != len(Features()) {
		t.Errorf("%q", all)
	}
}

// A service account is NAMESPACE:NAME; an empty name is a variable that is not set, and would bind nobody, or with a wildcard everybody.
func TestSubjectsAreRefused(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--serviceaccount=runner": "give NAMESPACE:NAME", "--serviceaccount=ci:": "give NAMESPACE:NAME", "--serviceaccount=a:b:c": "give NAMESPACE:NAME",
		"--user= ": "is a variable unset?", "--group= ": "is a variable unset?",
	} {
		cmd := NewCommand(kube.NewConnection(genericiooptions.NewTestIOStreamsDiscard()), genericiooptions.NewTestIOStreamsDiscard())
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs([]string{"print", "--for", "xid", flag})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
