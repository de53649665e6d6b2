// Package rpc makes and serves gRPC calls over Unix sockets. It does not define services: messages are raw protobuf,
// which callers pass on unchanged or decode with Fields.
//
// The package is part of the helper, which is streamed to every node in use. The client embeds two builds of the
// helper.
// Therefore, it uses only frames and header compression from golang.org/x/net/http2, and handles streams and windows
// itself: the client and server in net/http would make the helper 1.8 MB larger (6.9 MB on amd64), and
// google.golang.org/grpc even more.
package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2/hpack"
)

// MaxMessage is the maximum size of a message in bytes, which is the same as in the kubelet.
const MaxMessage = 16 << 20

// Unimplemented is the gRPC code for a call to an unknown service or method.
const Unimplemented = 12

// unknown is the gRPC code for errors without a code.
const unknown = 2

const contentType = "application/grpc"

// Error is an error that a server returned for a call.
type Error struct {
	Method  string // without the service, such as Version
	Code    int    // gRPC code, such as Unimplemented
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (gRPC code %d)", e.Method, e.Message, e.Code)
}

// ErrNoServer means that the socket does not exist, or that nothing listens on it.
var ErrNoServer = errors.New("nothing is listening on the socket")

// Conn is a client of the server on a Unix socket. Its methods are safe for concurrent use.
type Conn struct {
	path string

	mu      sync.Mutex
	current *connection
}

// NewConn returns a client. It connects on the first call, and again on the next call after a connection has ended. The
// path may be longer than the 107 bytes that fit in a socket address, as is the case below /proc/1/root.
func NewConn(socketPath string) *Conn { return &Conn{path: socketPath} }

// connect returns a connection that accepts calls.
func (c *Conn) connect(ctx context.Context) (*connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.current.isOpen() {
		return c.current, nil
	}
	conn, err := dial(ctx, c.path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	c.current = newConnection(conn, nil)
	if err := c.current.start(); err != nil {
		return nil, err
	}
	go c.current.receive()
	return c.current, nil
}

func dial(ctx context.Context, socketPath string) (net.Conn, error) {
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

// Close closes the connection. Running calls fail.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		c.current.close(net.ErrClosed)
	}
}

// Call makes a unary call, for example to /runtime.v1.RuntimeService/Version, and returns the message in the response.
// The error wraps an *Error if the server returned one, and ErrNoServer if nothing listens on the socket.
func (c *Conn) Call(ctx context.Context, method string, message []byte) ([]byte, error) {
	name := filepath.Base(method)
	reply, err := c.call(ctx, method, message)
	var known *Error
	switch {
	case err == nil:
		return reply, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &known):
		known.Method = name
		return nil, known
	}
	return nil, fmt.Errorf("%s: %w", name, err)
}

func (c *Conn) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	s, err := conn.open(ctx, requestFields(method), frame(message))
	if err != nil {
		return nil, err
	}
	select {
	case <-s.ended:
	case <-s.ctx.Done(): // a server may also reset a stream after the complete response
	}
	whole := s.isEnded()
	s.over(whole)
	if !whole {
		return nil, context.Cause(s.ctx)
	}
	return response(s.header, s.body.Bytes())
}

func requestFields(method string) []hpack.HeaderField {
	return []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "localhost"},
		{Name: "content-type", Value: contentType},
		{Name: "user-agent", Value: "kubectl-gpu-fault"},
		{Name: "te", Value: "trailers"},
	}
}

// response returns the message in a response whose header and trailer are in one map.
func response(header map[string]string, body []byte) ([]byte, error) {
	if header[":status"] != "200" || !strings.HasPrefix(header["content-type"], contentType) {
		return nil, fmt.Errorf("the server on the socket does not use gRPC (HTTP %s)", header[":status"])
	}
	if err := asError(header); err != nil {
		return nil, err
	}
	rest := bytes.NewReader(body)
	reply, err := read(rest)
	switch {
	case errors.Is(err, io.EOF), err == nil && (rest.Len() > 0 || header[statusField] == ""):
		return nil, errNotWhole
	case err != nil:
		return nil, err
	}
	return reply, nil
}

// The fields in a trailer that contain the status of a call.
const (
	statusField  = "grpc-status"
	messageField = "grpc-message"
)

// asError returns the error in a header or a trailer, or nil if there is none.
func asError(header map[string]string) error {
	code := header[statusField]
	if code == "" || code == "0" {
		return nil
	}
	number, err := strconv.Atoi(code)
	if err != nil {
		number = unknown
	}
	message := header[messageField]
	if text, err := url.PathUnescape(message); err == nil {
		message = text
	}
	return &Error{Code: number, Message: message}
}

// prefixLength is the length of the prefix of each message: a compression flag and the length (see "gRPC over HTTP2" in
// the gRPC documentation).
const prefixLength = 5

func frame(message []byte) []byte {
	framed := make([]byte, prefixLength, prefixLength+len(message))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(message)))
	return append(framed, message...)
}

var errNotWhole = errors.New("the response is not a single complete message")

// read reads a message. The error is io.EOF if there is none.
func read(from io.Reader) ([]byte, error) {
	var prefix [prefixLength]byte
	switch _, err := io.ReadFull(from, prefix[:]); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errNotWhole
	case err != nil:
		return nil, err
	case prefix[0] != 0:
		return nil, errors.New("the message is compressed, although compression was not requested")
	}
	size := binary.BigEndian.Uint32(prefix[1:])
	if size > MaxMessage {
		return nil, fmt.Errorf("the message is larger than %d bytes", MaxMessage)
	}
	var message bytes.Buffer
	n, err := io.Copy(&message, io.LimitReader(from, int64(size)))
	if err == nil && n < int64(size) {
		err = errNotWhole
	}
	return message.Bytes(), err
}
