package cri

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxResponse is how large an answer may be, in bytes: gRPC's own limit in the kubelet.
const maxResponse = 16 << 20

// Error is the runtime's own refusal of a call.
type Error struct {
	Method  string // Version, Status
	Code    int    // of gRPC: 12 is "unimplemented"
	Message string
}

func (e *Error) Error() string {
	if errors.Is(e, ErrNotLoaded) {
		return fmt.Sprintf("%v (%s)", ErrNotLoaded, e.Message)
	}
	return fmt.Sprintf("%s: %s (gRPC code %d)", e.Method, e.Message, e.Code)
}

// Is knows ErrNotLoaded. A server that lacks only a method says "unknown method".
func (e *Error) Is(target error) bool {
	const unimplemented = 12
	return target == ErrNotLoaded && e.Code == unimplemented && strings.HasPrefix(e.Message, "unknown service")
}

// client makes calls over one connection.
type client struct{ transport *http.Transport }

// dial does not connect yet. gRPC is HTTP/2 without TLS, and with prior knowledge: nobody upgrades.
func dial(socketPath string) client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return client{&http.Transport{
		Protocols:              &protocols,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialUnix(ctx, socketPath)
		},
	}}
}

// dialUnix connects also where the path is longer than the 107 bytes that an address holds, as below /proc/1/root it may become.
func dialUnix(ctx context.Context, socketPath string) (net.Conn, error) {
	var dialer net.Dialer
	const longest = 107
	if len(socketPath) <= longest {
		return dialer.DialContext(ctx, "unix", socketPath)
	}
	dir, err := os.Open(filepath.Dir(socketPath))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socketPath)))
}

func (c client) close() { c.transport.CloseIdleConnections() }

// call makes one call without streams, and returns the message of the answer.
func (c client) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/"+service+"/"+method, bytes.NewReader(frame(message)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", "kubectl-gpu-fault")
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "application/grpc") {
		return nil, fmt.Errorf("what listens there speaks no gRPC (HTTP %s)", res.Status)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponse+1))
	if err != nil {
		return nil, fmt.Errorf("%s: read the answer: %w", method, err)
	}
	if len(body) > maxResponse {
		return nil, fmt.Errorf("%s: the answer is larger than %d bytes", method, maxResponse)
	}
	// An answer without a message has its status in the headers.
	if err := status(method, res.Trailer, res.Header); err != nil {
		return nil, err
	}
	message, err = unframe(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return message, nil
}

// status is the call's outcome, which comes after the message.
func status(method string, places ...http.Header) error {
	for _, place := range places {
		text := place.Get("Grpc-Status")
		if text == "" {
			continue
		}
		code, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%s: %q is no status of gRPC", method, text)
		}
		if code == 0 {
			return nil
		}
		said := place.Get("Grpc-Message")
		if plain, err := url.PathUnescape(said); err == nil {
			said = plain
		}
		return &Error{Method: method, Code: code, Message: said}
	}
	return fmt.Errorf("%s: the answer broke off", method)
}

// A message is sent behind one byte, which is 1 when it is compressed, and its length in four bytes.
const prefix = 5

func frame(message []byte) []byte {
	framed := make([]byte, prefix, prefix+len(message))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(message)))
	return append(framed, message...)
}

// unframe returns the one message of an answer.
func unframe(body []byte) ([]byte, error) {
	switch {
	case len(body) < prefix:
		return nil, errors.New("the answer has no message")
	case body[0] != 0:
		return nil, errors.New("the answer is compressed, which was not asked for")
	case uint64(binary.BigEndian.Uint32(body[1:])) != uint64(len(body)-prefix):
		return nil, errors.New("the answer is not one whole message")
	}
	return body[prefix:], nil
}
