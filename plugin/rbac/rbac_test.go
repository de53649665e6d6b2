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
		"roles alone":       {"", []string{"xid"}, []string{"kind: ClusterRole\n", "kind: Role\n"}, []string{"Binding", "research"}},
		"for people":        {"", []string{"xid", "--user", "alice", "--group", "sre,ops"}, []string{"kind: User\n    name: alice", "name: sre", "name: ops"}, []string{"research"}},
		"for pods":          {"research", []string{"xid"}, []string{inResearch}, []string{"Binding"}},
		"for people's pods": {"research", []string{"xid", "--group", "sre"}, []string{inResearch, "kind: RoleBinding\n"}, nil},
		"workloads of a namespace": {"research", []string{"cuda", "--user", "bob"}, []string{
			"name: gpu-fault-cuda\n    namespace: research\n", "- deployments\n", "- pods/exec\n", "- dynamographdeployments\n", "kind: RoleBinding\n",
		}, []string{"secrets"}},
		"workloads everywhere": {"", []string{"cuda"}, []string{"- deployments\n", "kind: ClusterRole\n"}, []string{"research", "secrets"}},
		"doctor": {"", []string{"doctor", "--user", "eve"}, []string{
			"kind: ClusterRole\n", "- runtimeclasses\n", "- clusterpolicies\n", "- resourceslices\n", "- pods/log\n", "- pods/exec\n", "- create\n",
		}, []string{"secrets", "leases", "update", "jobs"}},
		"doctor without pods": {"", []string{"doctor", "--api-only"}, []string{"- events\n", "- list\n"}, []string{"secrets", "create", "delete", "exec", "update"}},
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
