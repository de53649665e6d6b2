package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

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
	if !apierrors.IsForbidden(err) || c.Feature == "" || strings.Contains(err.Error(), "gpu-fault rbac") {
		return err
	}
	for _, other := range otherRefusals {
		if strings.Contains(err.Error(), other) {
			return err
		}
	}
	return fmt.Errorf("%w; %s", err, c.Grant())
}

// otherRefusals are parts of Forbidden errors that no role prevents.
var otherRefusals = []string{
	"exceeded quota", "violates PodSecurity", "admission webhook", "ValidatingAdmissionPolicy",
}

// Grant returns advice on how to get the permissions that the command needs.
func (c *Connection) Grant() string {
	return "a cluster administrator can grant access: " +
		ledger.New(nil, c.LedgerNamespace).Command("rbac", "print", "--for", c.Feature) + " | kubectl apply -f -"
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
