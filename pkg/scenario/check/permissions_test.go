package check

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// A preflight that knows these refuses before anything is broken; a kind that is not there yet needs nothing.
func TestPermissions(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for want, c := range map[string]scenario.Check{
		"[get configmaps in namespace a]": {
			Object: &scenario.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: "a"},
		},
		"[list pods]": {Objects: &scenario.Selector{APIVersion: "v1", Kind: "Pod"}},
		"[]": {
			Objects: &scenario.Selector{APIVersion: "nowhere.dev/v1", Kind: "Thing"},
		},
		"[list events in namespace a]":                       {Events: &scenario.Ref{Namespace: "a"}},
		"[get services/proxy in namespace a]":                {HTTP: &scenario.HTTP{Namespace: "a", Service: "s:80"}},
		"[create subjectaccessreviews.authorization.k8s.io]": {Can: &scenario.Can{}},
		"[get pods in namespace a list pods in namespace a get pods/log in namespace a]": {
			Logs: &scenario.Logs{Namespace: "a"},
		},
	} {
		if got := fmt.Sprint(w.Permissions([]scenario.Check{c, c})); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
	all := fmt.Sprint(
		w.Permissions(
			[]scenario.Check{urlCheck("true"), probeCheck(0, "true"), {Exec: &scenario.Exec{Namespace: "b"}}},
		),
	)
	for _, part := range []string{
		"create pods in", "delete pods in", "create pods/exec in", "list nodes", "list events in", "get pods/log in",
		"deletecollection events",
	} {
		if !strings.Contains(all, part) {
			t.Errorf("%s lacks %s", all, part)
		}
	}
}
