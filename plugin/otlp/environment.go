package otlp

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
)

// defaultTimeout is OpenTelemetry's.
const defaultTimeout = 10 * time.Second

// parent is the span that TRACEPARENT identifies. The zero value means that there is none.
type parent struct {
	trace, span string
	sampled     bool
}

// config is the configuration from OpenTelemetry's environment variables.
type config struct {
	endpoint *url.URL // nil if nothing is sent
	headers  http.Header
	timeout  time.Duration
	parent   parent
	resource []attribute
	warnings []string
}

// read reads the environment. Invalid values cause a warning, as OpenTelemetry's specification requires.
func read(env func(string) string) config {
	c := config{timeout: defaultTimeout, headers: http.Header{}}
	get := func(name string) string { // the variable for traces takes precedence
		return cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_"+name), env("OTEL_EXPORTER_OTLP_"+name))
	}
	c.parent = c.readParent(env("TRACEPARENT"))
	c.resource = c.readResource(env)
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none" {
		return c
	}
	c.endpoint = c.readEndpoint(env)
	if c.endpoint == nil {
		return c
	}
	c.endpoint = c.supported(get("PROTOCOL"))
	for key, value := range c.pairs("OTEL_EXPORTER_OTLP_HEADERS", get("HEADERS")) {
		c.headers.Set(key, value)
	}
	c.timeout = c.readTimeout(get("TIMEOUT"))
	if c.parent.trace != "" && !c.parent.sampled {
		c.warn("the trace is not sent: according to TRACEPARENT, it is not sampled")
		c.endpoint = nil
	}
	return c
}

// supported returns the endpoint, or nil if it does not support JSON.
func (c *config) supported(protocol string) *url.URL {
	switch protocol {
	case "", "http/json":
	case "http/protobuf": // collectors accept both at the same URL
		c.warn("OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf is not supported; sending http/json")
	default:
		c.warn(
			"the trace is not sent: OTEL_EXPORTER_OTLP_PROTOCOL=%s is not supported; specify http/json and the corresponding endpoint",
			protocol,
		)
		return nil
	}
	return c.endpoint
}

func (c *config) readTimeout(text string) time.Duration {
	const most = 600_000
	if text == "" {
		return defaultTimeout
	}
	ms, err := strconv.Atoi(text)
	if err != nil || ms < 1 || ms > most {
		c.warn("invalid value %q for OTEL_EXPORTER_OTLP_TIMEOUT: must be milliseconds from 1 to %d; using %d", text, most,
			defaultTimeout.Milliseconds())
		return defaultTimeout
	}
	return time.Duration(ms) * time.Millisecond
}

func (c *config) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// readEndpoint returns the URL for traces. The general endpoint is a base URL to which the path for traces is appended.
func (c *config) readEndpoint(env func(string) string) *url.URL {
	name, path := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""
	text := env(name)
	if text == "" {
		name, path = "OTEL_EXPORTER_OTLP_ENDPOINT", "v1/traces"
		text = env(name)
	}
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		c.warn("invalid value for %s: must be a URL such as http://localhost:4318", name) // the URL may contain a password, so it is not shown
		return nil
	}
	if path != "" {
		u = u.JoinPath(path)
	}
	return u
}

// pairs parses KEY=VALUE,KEY=VALUE with percent-encoded values.
func (c *config) pairs(name, text string) map[string]string {
	all := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		key, value, found := strings.Cut(item, "=")
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !found || key == "" || err != nil {
			c.warn("invalid value for %s: must be KEY=VALUE,KEY=VALUE with percent-encoded values", name)
			continue
		}
		all[key] = decoded
	}
	return all
}

func (c *config) readResource(env func(string) string) []attribute {
	given := c.pairs("OTEL_RESOURCE_ATTRIBUTES", env("OTEL_RESOURCE_ATTRIBUTES"))
	given["service.name"] = cmp.Or(env("OTEL_SERVICE_NAME"), given["service.name"], "kubectl-gpu-fault")
	given["service.version"] = cmp.Or(given["service.version"], build.Get().Version)
	return sorted(given)
}

// readParent parses a W3C traceparent: VERSION-TRACE-SPAN-FLAGS.
func (c *config) readParent(header string) parent {
	if header == "" {
		return parent{}
	}
	parts := strings.Split(header, "-")
	if len(parts) < 4 || len(parts) > 4 && parts[0] == "00" || parts[0] == "ff" || !isHex(parts[0], 1) ||
		!isID(parts[1], 16) || !isID(parts[2], 8) || !isHex(parts[3], 1) {
		c.warn("ignoring the invalid value of TRACEPARENT")
		return parent{}
	}
	flags, _ := hex.DecodeString(parts[3])
	return parent{trace: parts[1], span: parts[2], sampled: flags[0]&1 == 1}
}

// isHex reports whether a string consists of n bytes in lower-case hexadecimal.
func isHex(s string, n int) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == n && s == strings.ToLower(s)
}

// isID reports whether a string is an ID of n bytes that are not all zero.
func isID(s string, n int) bool { return isHex(s, n) && strings.Trim(s, "0") != "" }
