package otlp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/outfile"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Report sends the trace of a result to the collector that OpenTelemetry's environment variables specify, and writes it
// to a file if one is specified. Failure to send a trace is only a warning, because it does not affect the result of
// the experiment.
func Report(
	ctx context.Context, talk io.Writer, r experiment.Result, file string, env func(string) string,
) error {
	c := read(env)
	if c.endpoint == nil && file == "" && env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" &&
		env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil
	}
	for _, warning := range c.warnings {
		printer.Talk(talk, "Warning: %s", warning)
	}
	body, err := json.Marshal(makeTrace(r, c.parent, c.resource))
	if err != nil {
		return err
	}
	if file != "" {
		err := outfile.Write(talk, "--otlp-file", file, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s\n", body)
			return err
		})
		if err != nil {
			return err
		}
	}
	if c.endpoint == nil {
		return nil
	}
	// Also send the trace after Ctrl-C, because it shows what happened until then.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	if err := c.send(ctx, body); err != nil {
		printer.Talk(talk, "Warning: the trace was not sent to %s: %v", c.endpoint.Host, err)
		return nil
	}
	printer.Talk(talk, "trace sent to %s", c.endpoint.Host)
	return nil
}

// firstPause is the pause before the first retry. It doubles after each retry.
const firstPause = time.Second

// send posts a trace, and retries as long as the collector requests it.
func (c *config) send(ctx context.Context, body []byte) error {
	client := &http.Client{ // does not send the headers to other hosts
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	for pause := firstPause; ; pause *= 2 {
		wait, err := c.post(ctx, client, body)
		if wait < 0 {
			return err
		}
		select {
		case <-time.After(max(wait, pause)):
		case <-ctx.Done():
			return err
		}
	}
}

// post posts a trace once. It returns the time to wait before a retry, or a negative value if it must not be retried.
func (c *config) post(ctx context.Context, client *http.Client, body []byte) (time.Duration, error) {
	const never = -1
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint.String(), bytes.NewReader(body))
	if err != nil {
		return never, errors.New("the endpoint is not a valid URL")
	}
	request.Header = c.headers.Clone()
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		var with *url.Error // contains the URL, which may include a token
		if errors.As(err, &with) {
			err = with.Err
		}
		return never, err
	}
	defer response.Body.Close()
	const most = 64 << 10
	said, _ := io.ReadAll(io.LimitReader(response.Body, most))
	switch code := response.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusBadGateway, code == http.StatusServiceUnavailable,
		code == http.StatusGatewayTimeout:
		seconds, _ := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 16)
		return time.Duration(seconds) * time.Second, errors.New(response.Status)
	case code < 200 || code > 299:
		return never, errors.New(strings.TrimSpace(response.Status + " " + brief(said)))
	}
	return never, rejected(said)
}

// rejected returns an error if the collector did not accept all spans.
func rejected(said []byte) error {
	var response struct {
		PartialSuccess struct {
			RejectedSpans any    `json:"rejectedSpans"` // a string, like all 64-bit integers, or a number
			ErrorMessage  string `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(said, &response) != nil {
		return nil // only the status matters
	}
	partial := response.PartialSuccess
	if n := partial.RejectedSpans; n == nil || fmt.Sprint(n) == "0" {
		return nil
	}
	return fmt.Errorf("the collector rejected %v of the spans: %s", partial.RejectedSpans,
		brief([]byte(partial.ErrorMessage)))
}

// brief shortens a server's response.
func brief(said []byte) string {
	const most = 200
	return printer.Clean(string(said[:min(len(said), most)]))
}

// sorted returns attributes sorted by key.
func sorted(all map[string]string) []attribute {
	var attributes []attribute
	for _, key := range slices.Sorted(maps.Keys(all)) {
		attributes = append(attributes, text(key, all[key]))
	}
	return attributes
}
