package fault_test

import (
	"slices"
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

// A permission for all namespaces that replaces a required one is required: without it, the user cannot do the other.
func TestLeast(t *testing.T) {
	t.Parallel()
	list := func(namespace string, optional bool) fault.Permission {
		return fault.Permission{Verb: "list", Resource: "pods", Namespace: namespace, Optional: optional}
	}
	for name, test := range map[string]struct{ in, want []fault.Permission }{
		"required":      {[]fault.Permission{list("", true), list("a", false)}, []fault.Permission{list("", false)}},
		"both":          {[]fault.Permission{list("", true), list("a", true)}, []fault.Permission{list("", true)}},
		"only optional": {[]fault.Permission{list("", false), list("a", true)}, []fault.Permission{list("", false)}},
		"no wide one": {
			[]fault.Permission{list("a", true), list("b", false)},
			[]fault.Permission{list("a", true), list("b", false)},
		},
	} {
		if got := fault.Least(test.in); !slices.Equal(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
