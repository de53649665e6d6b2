package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// ErrNoKubeconfig is the error for a missing or empty kubeconfig.
var ErrNoKubeconfig = errors.New("no kubeconfig found: set KUBECONFIG or pass --kubeconfig FILE")

// Explain returns an error of client-go with advice for the user. It returns unknown errors unchanged.
func Explain(err error) error {
	var (
		dial   *net.OpError
		reqErr *url.Error
	)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case clientcmd.IsEmptyConfig(err),
		strings.Contains(err.Error(), "invalid configuration: no configuration has been provided"):
		return ErrNoKubeconfig
	case clientcmd.IsContextNotFound(err), isMissing(err, "context"):
		return fmt.Errorf("%w: list the contexts with `kubectl config get-contexts`", err)
	case isMissing(err, "cluster"), isMissing(err, "auth info"):
		return fmt.Errorf("%w in the kubeconfig: see `kubectl config view` for --cluster and --user", err)
	case apierrors.IsUnauthorized(err):
		return errors.New("the API server rejected the credentials: log in again, or pass another --context")
	case errors.As(err, &reqErr) && errors.As(err, &dial):
		return fmt.Errorf("cannot reach the API server at %s (%w): check --context, and whether the cluster is running",
			host(reqErr.URL), dial.Err)
	case errors.As(err, &reqErr) && reqErr.Timeout():
		return fmt.Errorf("the API server at %s did not respond in time: check the network, or increase --request-timeout",
			host(reqErr.URL))
	default:
		return err
	}
}

// Explain is like the function Explain, and adds to a Forbidden error how to get the permissions.
func (c *Connection) Explain(err error) error {
	err = Explain(err)
	if !apierrors.IsForbidden(err) || len(c.Features) == 0 || strings.Contains(err.Error(), "gpu-fault rbac") {
		return err
	}
	for _, other := range otherRefusals {
		if strings.Contains(err.Error(), other) {
			return err
		}
	}
	user := ""
	if m := refusedUser.FindStringSubmatch(err.Error()); m != nil {
		user = m[1]
	}
	return fmt.Errorf("%w; %s", err, c.Grant(user))
}

// otherRefusals are parts of Forbidden errors that no role prevents.
var otherRefusals = []string{
	"exceeded quota", "violates PodSecurity", "admission webhook", "ValidatingAdmissionPolicy",
}

// refusedUser matches the user in the API server's message.
var refusedUser = regexp.MustCompile(`User "([^"]+)" cannot `)

// Grant returns advice on how a user gets the permissions that the command needs. An empty name means everybody whom
// the roles are printed for by default.
func (c *Connection) Grant(user string) string {
	words := append(fault.RolesFor(c.Features, user, ""), c.RoleFlags...)
	return "a cluster administrator can grant access: " +
		ledger.New(nil, c.LedgerNamespace).Command(words...) + " | kubectl apply -f -"
}

// SwapFeature replaces a feature of the command by another.
func (c *Connection) SwapFeature(old, feature string) {
	if i := slices.Index(c.Features, old); i >= 0 {
		c.Features[i] = feature
	}
}

// isMissing reports whether err is the untyped error of clientcmd for a name that is missing in the kubeconfig.
func isMissing(err error, what string) bool {
	text := err.Error()
	return strings.HasPrefix(text, what+" ") && strings.HasSuffix(text, "does not exist")
}

func host(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	return u.Host
}
