package cri

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
)

// maxResponse is the size limit of a response in bytes, the same as in the kubelet.
const maxResponse = 16 << 20

// Error is an error that the runtime returned for a call.
type Error struct {
	Method  string // Version or Status
	Code    int    // gRPC code, such as 12 for "unimplemented"
	Message string
}

func (e *Error) Error() string {
	if errors.Is(e, ErrNotLoaded) {
		return fmt.Sprintf("%v (%s)", ErrNotLoaded, e.Message)
	}
	return fmt.Sprintf("%s: %s (gRPC code %d)", e.Method, e.Message, e.Code)
}

// Is reports whether the error means ErrNotLoaded. A server that lacks only a method reports "unknown method" instead.
func (e *Error) Is(target error) bool {
	const unimplemented = 12
	return target == ErrNotLoaded && e.Code == unimplemented && strings.HasPrefix(e.Message, "unknown service")
}

// client makes sequential calls over one connection.
type client struct {
	conn net.Conn
	wire *wire
}

// dial connects to a socket. gRPC uses HTTP/2 without TLS and with prior knowledge, so no upgrade is needed.
func dial(ctx context.Context, socketPath string) (*client, error) {
	conn, err := dialUnix(ctx, socketPath)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, wire: newWire(conn)}, nil
}

// dialUnix connects to a Unix socket. It supports paths longer than the 107 bytes of a socket address, which can occur
// below /proc/1/root.
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

func (c *client) close() { _ = c.conn.Close() }

// call makes one unary call, and returns the message of the response. After an error, the connection is unusable.
func (c *client) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	res, err := c.exchange(method, message)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if code := res.header[":status"]; code != "200" ||
		!strings.HasPrefix(res.header["content-type"], "application/grpc") {
		return nil, fmt.Errorf("what listens there speaks no gRPC (HTTP %s)", code)
	}
	if err := status(method, res.header); err != nil {
		return nil, err
	}
	if message, err = unwrap(res.body); err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return message, nil
}

func (c *client) exchange(method string, message []byte) (*response, error) {
	if c.wire.stream == 0 {
		if err := c.wire.open(); err != nil {
			return nil, err
		}
	}
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "localhost"},
		{Name: ":path", Value: "/" + service + "/" + method},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		{Name: "user-agent", Value: "kubectl-gpu-fault"},
	}
	if err := c.wire.ask(fields, wrap(message)); err != nil {
		return nil, err
	}
	return c.wire.answer(maxResponse + prefix)
}

// status returns the error of a call, if any. The status follows the message; a response without a message has it in
// the headers.
func status(method string, header map[string]string) error {
	text, ok := header["grpc-status"]
	if !ok {
		return fmt.Errorf("%s: the answer broke off", method)
	}
	code, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%s: %q is no status of gRPC", method, text)
	}
	if code == 0 {
		return nil
	}
	said := header["grpc-message"]
	if plain, err := url.PathUnescape(said); err == nil {
		said = plain
	}
	return &Error{Method: method, Code: code, Message: said}
}

// Each message has a prefix: one byte that is 1 if the message is compressed, and the length in four bytes.
const prefix = 5

func wrap(message []byte) []byte {
	framed := make([]byte, prefix, prefix+len(message))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(message)))
	return append(framed, message...)
}

// unwrap returns the single message of a response.
func unwrap(body []byte) ([]byte, error) {
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
