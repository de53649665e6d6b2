package exercise

import (
	"testing"
)

// A binding that the candidate created is only deleted if everybody whom it binds is deleted with the exercise.
func TestBindsOnlyTheExercise(t *testing.T) {
	t.Parallel()
	e := &Exercise{Namespaces: []string{"team", "shared"}}
	stood := func(namespace string) bool { return namespace == "shared" }
	account := func(namespace string) map[string]any {
		return map[string]any{"kind": "ServiceAccount", "name": "trainer", "namespace": namespace}
	}
	user := func(name string) map[string]any { return map[string]any{"kind": "User", "name": name} }
	for name, test := range map[string]struct {
		kind     string
		subjects []any
		want     bool
	}{
		"the exercise's account":  {"ClusterRoleBinding", []any{account("team")}, true},
		"the same as a user":      {"ClusterRoleBinding", []any{user("system:serviceaccount:team:trainer")}, true},
		"another namespace's":     {"ClusterRoleBinding", []any{account("other")}, false},
		"one of two":              {"ClusterRoleBinding", []any{account("team"), account("other")}, false},
		"a namespace that stood":  {"ClusterRoleBinding", []any{account("shared")}, false},
		"a person":                {"ClusterRoleBinding", []any{user("jane")}, false},
		"nobody":                  {"ClusterRoleBinding", nil, false},
		"something else entirely": {"Thing", []any{account("team")}, false},
	} {
		version := "rbac.authorization.k8s.io/v1"
		if test.kind == "Thing" {
			version = "example.com/v1"
		}
		object := map[string]any{"apiVersion": version, "kind": test.kind, "subjects": test.subjects}
		if got := bindsOnly(e, stood, object); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
