package rbac

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

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
		"short": {
			"", []string{"xid", "--user", "alice"}, []string{"name: gpu-fault-xid\n", "name: alice"}, nil,
		},
		"several": {"", []string{"print", "--for", "list,xid", "--serviceaccount", "ci:runner"}, []string{
			"name: gpu-fault-xid\n", "name: gpu-fault-list\n",
			"kind: ServiceAccount\n    name: runner\n    namespace: ci",
		}, []string{"gpu-fault-doctor"}},
		"reads only": {
			"", []string{"print", "--for", "list,leftovers"}, []string{"- list\n"},
			[]string{"create", "delete", "patch", "update", "secrets"},
		},
		"without a ledger": {
			"", []string{"print", "--for", "leftovers"}, []string{"kind: ClusterRole\n"}, []string{"kind: Namespace\n"},
		},
		"roles alone": {
			"", []string{"print", "--for", "xid"}, []string{"kind: ClusterRole\n", "kind: Role\n"},
			[]string{"Binding", "research"},
		},
		"for people": {
			"", []string{"print", "--for", "xid", "--user", "alice", "--group", "sre,ops"},
			[]string{"kind: User\n    name: alice", "name: sre", "name: ops"}, []string{"research"},
		},
		"for pods": {"research", []string{"print", "--for", "xid"}, []string{inResearch}, []string{"Binding"}},
		"for people's pods": {
			"research", []string{"print", "--for", "xid", "--group", "sre"},
			[]string{inResearch, "kind: RoleBinding\n"}, nil,
		},
		"workloads of a namespace": {"research", []string{"print", "--for", "cuda", "--user", "bob"}, []string{
			"name: gpu-fault-cuda\n    namespace: research\n", "- deployments\n", "- pods/exec\n",
			"- dynamographdeployments\n", "kind: RoleBinding\n",
		}, []string{"secrets"}},
		"scenarios": {"", []string{"print", "--for", "scenario", "--group", "trainers"}, []string{
			"kind: ClusterRole\n", "name: trainers", "- serviceaccounts/token\n", "- escalate\n", "- networkpolicies\n",
			"- resourcequotas\n", "- runtimeclasses\n",
			"- subjectaccessreviews\n", "name: gpu-fault-scenario\n    namespace: gpu-fault\n", "- secrets\n",
		}, []string{"${", "accounts-"}},
		"doctor": {"", []string{"print", "--for", "doctor", "--user", "eve"}, []string{
			"kind: ClusterRole\n", "- runtimeclasses\n", "- clusterpolicies\n", "- resourceslices\n",
			"- networkpolicies\n", "- services\n", "- pods/log\n", "- pods/exec\n", "- create\n",
		}, []string{"secrets", "leases", "update", "jobs"}},
		"doctor without pods": {
			"", []string{"print", "--for", "doctor", "--api-only"}, []string{"- events\n", "- list\n"},
			[]string{"secrets", "create", "delete", "exec", "update"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			streams, _, out, _ := genericiooptions.NewTestIOStreams()
			connection := kube.NewConnection(streams)
			*connection.Namespace = test.namespace
			cmd := NewCommand(connection, streams)
			cmd.SetArgs(append(slices.Clone(test.args), "-o", "json"))
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			raw, err := yaml.JSONToYAML(out.Bytes()) // without the comments
			if err != nil {
				t.Fatal(err)
			}
			out = bytes.NewBuffer(raw)
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

// TestWhatRolesReach: who grants a role reads what its holder could do with it beyond the commands, on stderr and in
// the file. No role lets one create namespaces to have a ledger: the list holds it.
func TestWhatRolesReach(t *testing.T) {
	t.Parallel()
	for _, f := range Features() {
		for _, output := range []string{"yaml", "json"} {
			streams, _, out, talk := genericiooptions.NewTestIOStreams()
			connection := kube.NewConnection(streams)
			*connection.Namespace = "research"
			cmd := NewCommand(connection, streams)
			cmd.SetArgs([]string{"print", "--for", f.Name, "-o", output})
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(f.Reaches, ".") || !strings.Contains(talk.String(), f.Reaches) {
				t.Errorf("%s: stderr does not say what the role reaches: %s", f.Name, talk)
			}
			if is := strings.HasPrefix(out.String(), "# "+f.Name+": "+f.Reaches+"\n"); is != (output == "yaml") {
				t.Errorf("%s -o %s begins with the comment: %v\n%.300s", f.Name, output, is, out)
			}
			if f.Name != "scenario" && strings.Contains(out.String(), "serviceaccounts") && f.Name != "leftovers" {
				t.Errorf("the role of %s holds rights to create the ledger:\n%s", f.Name, out)
			}
		}
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
	for args, want := range map[[2]string]string{
		{"", "gpu-fault"}: "requires -n NAMESPACE", {"gpu-fault", "gpu-fault"}: "is protected",
		{"kube-system", "gpu-fault"}: "is protected",
		{"gpu-fault", "x"}:           "is protected", {"x", "x"}: "is protected",
	} {
		namespace, ledger := args[0], args[1]
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
		connection := kube.NewConnection(streams)
		*connection.Namespace, connection.LedgerNamespace = namespace, ledger
		cmd := NewCommand(connection, streams)
		cmd.SetArgs([]string{"print", "--for", "xid,cuda", "--user", "bob"})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-n %q --ledger-namespace %s: %v, want %q", namespace, ledger, err, want)
		}
	}
}

// Each feature says what it allows, in a line of the table that fits a terminal; completion offers the rest of a list,
// and none twice.
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

// A service account is NAMESPACE:NAME; an empty name is a variable that is not set, and would bind nobody, or with a
// wildcard everybody.
func TestSubjectsAreRefused(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--serviceaccount=runner": "must be NAMESPACE:NAME", "--serviceaccount=ci:": "must be NAMESPACE:NAME",
		"--serviceaccount=a:b:c": "must be NAMESPACE:NAME",
		"--user= ":               "is a variable unset?", "--group= ": "is a variable unset?",
	} {
		cmd := NewCommand(kube.NewConnection(genericiooptions.NewTestIOStreamsDiscard()),
			genericiooptions.NewTestIOStreamsDiscard())
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs([]string{"print", "--for", "xid", flag})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// The roles of the pods of a fleet have their own names: applying them must not take a feature away from users. The
// service account comes with them.
func TestRolesInCluster(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"print --for xid --in-cluster": "kind: ServiceAccount\n  metadata:\n    labels:\n" +
			"      app.kubernetes.io/managed-by: kubectl-gpu-fault\n    name: gpu-fault-fleet\n    namespace: gpu-fault\n",
		"print --for xid,list --in-cluster":          "--in-cluster cannot be used with --for list",
		"print --for xid --in-cluster --user alice":  "omit --user",
		"print --for xid --in-cluster --group a":     "omit --user",
		"print --for xid --in-cluster -o name":       "serviceaccount/gpu-fault-fleet",
		"print --for xid --in-cluster -o wide":       "gpu-fault-xid-in-cluster",
		"print --for xid --serviceaccount ci:runner": "name: gpu-fault-xid\n",
	} {
		var out bytes.Buffer
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
		cmd := NewCommand(kube.NewConnection(streams), streams)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(strings.Fields(args))
		text := out.String
		if err := cmd.Execute(); err != nil {
			text = err.Error
		}
		got := text()
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %q:\n%s", args, want, got)
		}
		if strings.Contains(args, "--in-cluster") && strings.Contains(got, "name: gpu-fault-xid\n") {
			t.Errorf("%s would replace the roles of users:\n%s", args, got)
		}
	}
}
