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

// ErrNoKubeconfig says that there is no cluster to talk to.
var ErrNoKubeconfig = errors.New("no kubeconfig found: set KUBECONFIG, or give --kubeconfig FILE")

// Explain turns what client-go says into what the user can do. An error that it does not know comes back as it is.
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
		return errors.New("the API server does not accept these credentials: log in again, or choose another --context")
	case errors.As(err, &reqErr) && errors.As(err, &dial):
		return fmt.Errorf("the API server at %s cannot be reached (%w): check --context, and that the cluster runs",
			host(reqErr.URL), dial.Err)
	case errors.As(err, &reqErr) && reqErr.Timeout():
		return fmt.Errorf("the API server at %s did not answer in time: check the network, or raise --request-timeout",
			host(reqErr.URL))
	default:
		return err
	}
}

// Explain returns the function Explain, and adds to the API server's refusal how to get the rights.
func (c *Connection) Explain(err error) error {
	err = Explain(err)
	if !apierrors.IsForbidden(err) || c.Feature == "" || strings.Contains(err.Error(), "gpu-fault rbac") {
		return err
	}
	return fmt.Errorf("%w; %s", err, c.Grant())
}

// Grant returns how a user gets the rights that the command takes.
func (c *Connection) Grant() string {
	return "whoever administers the cluster can allow it: " +
		ledger.New(nil, c.LedgerNamespace).Command("rbac", "print", "--for", c.Feature) + " | kubectl apply -f -"
}

// isMissing knows the error that clientcmd has for a name that the kubeconfig lacks; it has no type.
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
