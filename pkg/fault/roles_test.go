package fault_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
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
	if diff := cmp.Diff(wantRoles, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := fault.Roles("r", fault.BasePermissions("faults"), nil); len(got) != 3 {
		t.Errorf("without subjects: %d objects", len(got))
	}
}

const wantRoles = `---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  labels:
    app.kubernetes.io/managed-by: kubectl-gpu-fault
  name: gpu-fault-xid
rules:
- apiGroups:
  - ""
  resources:
  - namespaces
  verbs:
  - create
  - get
- apiGroups:
  - ""
  resources:
  - nodes
  verbs:
  - get
  - list
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  labels:
    app.kubernetes.io/managed-by: kubectl-gpu-fault
  name: gpu-fault-xid
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: gpu-fault-xid
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: sre
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  labels:
    app.kubernetes.io/managed-by: kubectl-gpu-fault
  name: gpu-fault-xid
  namespace: default
rules:
- apiGroups:
  - ""
  resources:
  - events
  verbs:
  - create
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  labels:
    app.kubernetes.io/managed-by: kubectl-gpu-fault
  name: gpu-fault-xid
  namespace: default
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: gpu-fault-xid
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: sre
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  labels:
    app.kubernetes.io/managed-by: kubectl-gpu-fault
  name: gpu-fault-xid
  namespace: faults
rules:
- apiGroups:
  - ""
  resources:
  - configmaps
  verbs:
  - create
  - delete
  - get
  - list
  - update
- apiGroups:
  - ""
  resources:
  - pods
  verbs:
  - create
  - delete
  - list
- apiGroups:
  - ""
  resources:
  - serviceaccounts
  verbs:
  - get
- apiGroups:
  - coordination.k8s.io
  resources:
  - leases
  verbs:
  - create
  - delete
  - get
  - list
  - update
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  labels:
    app.kubernetes.io/managed-by: kubectl-gpu-fault
  name: gpu-fault-xid
  namespace: faults
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: gpu-fault-xid
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: sre
`
