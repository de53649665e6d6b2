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

// Explain adds advice for the user to a client-go error. It returns unknown errors unchanged.
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
		return fmt.Errorf("%w: to list the contexts, run `kubectl config get-contexts`", err)
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

// Explain is like the function Explain, but also adds advice on getting permissions if the error is Forbidden.
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

// otherRefusals contains strings that occur in Forbidden errors with causes other than missing roles.
var otherRefusals = []string{
	"exceeded quota", "violates PodSecurity", "admission webhook", "ValidatingAdmissionPolicy",
}

// refusedUser matches the user in the API server's message.
var refusedUser = regexp.MustCompile(`User "([^"]+)" cannot `)

// Grant returns advice on granting a user the permissions that the command needs. If user is empty, the roles are for
// the default subjects of `rbac print`.
func (c *Connection) Grant(user string) string {
	words := append(fault.RolesFor(c.Features, user, ""), c.RoleFlags...)
	return "a cluster administrator can grant access: " +
		ledger.New(nil, c.LedgerNamespace).Command(words...) + " | kubectl apply -f -"
}

// SwapFeature replaces one of the command's features with another.
func (c *Connection) SwapFeature(old, feature string) {
	if i := slices.Index(c.Features, old); i >= 0 {
		c.Features[i] = feature
	}
}

// isMissing reports whether err is clientcmd's untyped error for a name that is missing from the kubeconfig.
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
