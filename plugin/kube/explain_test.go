package kube

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
)

// People must read what to do, not what client-go calls it.
func TestExplainSaysWhatToDo(t *testing.T) {
	t.Parallel()
	refused := &url.Error{
		Op: "Get", URL: "https://10.0.0.1:6443/api?timeout=2s",
		Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"no kubeconfig": {clientcmd.ErrEmptyConfig, "no kubeconfig found"},
		"API away": {
			fmt.Errorf("list: %w", refused), "cannot reach the API server at 10.0.0.1:6443 (connection refused)",
		},
		"ours": {errors.New("node x has no GPU 7"), "node x has no GPU 7"},
	} {
		if got := Explain(test.err); !strings.Contains(got.Error(), test.want) {
			t.Errorf("%s: %q lacks %q", name, got, test.want)
		}
	}
}

// TestRolesDoNotHelpAgainstQuotas: who is told to ask for roles must lack permissions.
func TestRolesDoNotHelpAgainstQuotas(t *testing.T) {
	t.Parallel()
	c := &Connection{Features: []string{"xid", "nvml"}}
	for text, helps := range map[string]bool{
		`User "bob" cannot create resource "pods"`:                      true,
		"exceeded quota: small, requested: pods=1, used: pods=1":        false,
		`violates PodSecurity "restricted:latest": privileged`:          false,
		`admission webhook "policy.example.com" denied the request: no`: false,
	} {
		err := c.Explain(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New(text)))
		if got := strings.Contains(err.Error(), "rbac print --for xid,nvml"); got != helps {
			t.Errorf("%v: roles are offered: %t, want %t", err, got, helps)
		}
		if helps && !strings.Contains(err.Error(), "--for xid,nvml --user bob ") {
			t.Errorf("the roles are not for the user who lacks them: %v", err)
		}
	}
}
