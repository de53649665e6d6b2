package fault_test

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

func TestRoles(t *testing.T) {
	objects := fault.Roles("gpu-fault-xid", fault.Permissions(fault.BasePermissions("faults"), []fault.Permission{
		{Verb: "create", Resource: "pods", Namespace: "faults"}, {Verb: "get", Resource: "nodes"},
	}), []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "sre"}})
	got := ""
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got += "---\n" + string(text)
	}
	golden.Compare(t, "roles.yaml", got)
	if got := fault.Roles("r", fault.BasePermissions("faults"), nil); len(got) != 3 {
		t.Errorf("without subjects: %d objects", len(got))
	}
}
