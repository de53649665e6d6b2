package check

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// aliveTimeout is the maximum time for an API server to report its version.
const aliveTimeout = 5 * time.Second

// unreachable reports whether an error means that the API server is unreachable. If the server responds to other
// requests, the error has another cause, such as a kubelet or an aggregated API server.
func (c *Checker) unreachable(ctx context.Context, err error) bool {
	return fromConnection(err) && !c.alive(ctx)
}

// fromConnection reports whether an error may come from the connection or an overloaded server.
func fromConnection(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
			apierrors.IsServerTimeout(err) ||
			apierrors.IsTimeout(err) || apierrors.IsInternalError(err)
	}
	var network net.Error
	var address *url.Error
	return errors.As(err, &network) || errors.As(err, &address) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || utilnet.IsConnectionRefused(err) ||
		utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}

// alive reports whether the API server responds to a version request.
func (c *Checker) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	ping := c.ping
	if ping == nil {
		ping = func(ctx context.Context) error {
			return c.Client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
		}
	}
	err := ping(ctx)
	return err == nil || !fromConnection(err) // the server may also deny the request
}
