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
	case clientcmd.IsEmptyConfig(err), strings.Contains(err.Error(), "invalid configuration: no configuration has been provided"):
		return ErrNoKubeconfig
	case clientcmd.IsContextNotFound(err), isMissing(err, "context"):
		return fmt.Errorf("%w: list the contexts with `kubectl config get-contexts`", err)
	case isMissing(err, "cluster"), isMissing(err, "auth info"):
		return fmt.Errorf("%w in the kubeconfig: see `kubectl config view` for --cluster and --user", err)
	case apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "gpu-fault rbac"):
		return fmt.Errorf("%w; whoever administers the cluster can allow it: kubectl gpu-fault rbac print --for FEATURE | kubectl apply -f -", err)
	case apierrors.IsUnauthorized(err):
		return errors.New("the API server does not accept these credentials: log in again, or choose another --context")
	case errors.As(err, &reqErr) && errors.As(err, &dial):
		return fmt.Errorf("the API server at %s cannot be reached (%w): check --context, and that the cluster runs", host(reqErr.URL), dial.Err)
	case errors.As(err, &reqErr) && reqErr.Timeout():
		return fmt.Errorf("the API server at %s did not answer in time: check the network, or raise --request-timeout", host(reqErr.URL))
	default:
		return err
	}
}

// ExplainFor is Explain for a command that a feature of `rbac print` allows; the feature may be followed by more flags.
func ExplainFor(feature string, err error) error {
	err = Explain(err)
	if !apierrors.IsForbidden(err) {
		return err
	}
	return &forFeature{err, feature}
}

// forFeature is an error of Explain's that names the feature.
type forFeature struct {
	error
	feature string
}

func (e *forFeature) Error() string {
	return strings.ReplaceAll(e.error.Error(), "--for FEATURE", "--for "+e.feature)
}

// Unwrap returns what Explain said.
func (e *forFeature) Unwrap() error { return e.error }

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
