package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// defaultHTTPTimeout is the default timeout of a request.
const defaultHTTPTimeout = 5 * time.Second

func httpTimeout(h scenario.HTTP) time.Duration {
	if h.Timeout > 0 {
		return time.Duration(h.Timeout)
	}
	return defaultHTTPTimeout
}

// service sends a request to a Service through the API server's proxy.
func (c *Checker) service(ctx context.Context, h scenario.HTTP) (view, error) {
	if c.Config == nil {
		return view{}, errNoConfig
	}
	name, port, has := cutLast(h.Service)
	if !has || h.Namespace == "" {
		return view{},
			fmt.Errorf("invalid service %q in namespace %q: must be NAME:PORT or https:NAME:PORT, with a namespace",
				h.Service, h.Namespace)
	}
	config := rest.CopyConfig(c.Config)
	config.GroupVersion, config.APIPath, config.NegotiatedSerializer = &corev1.SchemeGroupVersion, "/api",
		scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return view{}, err
	}
	path, query, _ := strings.Cut(h.Path, "?")
	address := client.Get().Namespace(h.Namespace).Resource("services").Name(name + ":" +
		port).SubResource("proxy").Suffix(path).URL()
	address.RawQuery = query
	limited, cancel := context.WithTimeout(ctx, httpTimeout(h))
	defer cancel()
	request, err := http.NewRequestWithContext(limited, http.MethodGet, address.String(), nil)
	if err != nil {
		return view{}, err
	}
	response, err := client.Client.Do(request)
	if err != nil {
		// Either the Service or the API server does not respond; the caller determines which.
		if timedOut(err) && ctx.Err() == nil && c.alive(ctx) {
			return answer(0, "", fmt.Sprintf("no response within %s", httpTimeout(h))), nil
		}
		return view{}, fmt.Errorf("request service %s/%s: %w", h.Namespace, h.Service, err)
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxText))
	if err != nil && len(raw) == 0 {
		return answer(0, "", err.Error()), nil
	}
	return proxied(h, response.StatusCode, strings.ToValidUTF8(string(raw), "\uFFFD"))
}

// cutLast splits https:NAME:PORT before the port.
func cutLast(service string) (name, port string, has bool) {
	i := strings.LastIndex(service, ":")
	if i <= 0 || i == len(service)-1 {
		return service, "", false
	}
	return service[:i], service[i+1:], true
}

func timedOut(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}

// proxied distinguishes the Service's response from an API server error, which means that there was no response.
func proxied(h scenario.HTTP, status int, body string) (view, error) {
	var own metav1.Status
	isOwn := status >= 400 && json.Unmarshal([]byte(body), &own) == nil && own.Kind == "Status" &&
		own.APIVersion == "v1"
	switch {
	case isOwn && (status == http.StatusForbidden || status == http.StatusUnauthorized):
		return view{}, fmt.Errorf("request service %s/%s: %s", h.Namespace, h.Service, own.Message)
	case isOwn:
		return answer(0, "", own.Message), nil
	// Error from the API server's proxy, in plain text.
	case status >= 500 && strings.HasPrefix(body, "error trying to reach service:"):
		return answer(0, "", body), nil
	}
	return answer(int64(status), body, ""), nil
}

// answer returns the view of an HTTP response. Status 0 means that there was no response, for the given reason.
func answer(status int64, body, reason string) view {
	evidence := reason
	if status != 0 {
		evidence = strings.TrimSpace(fmt.Sprintf("status %d: %s", status, firstLine(body)))
	}
	return view{vars: expr.Vars{"status": status, "body": body}, evidence: evidence}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
