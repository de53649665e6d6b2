// Package rpc makes and serves gRPC calls over Unix sockets. It knows no services: messages are raw protobuf, which
// callers pass on unchanged or decode with Fields.
//
// The package is part of the helper, which is streamed to every node in use, and of which the client embeds two builds.
// net/http provides HTTP/2 and adds 1.1 MB to a compressed helper; google.golang.org/grpc adds 2.1 MB (measured on
// amd64 with the helper's own compression).
package rpc

import (
	"bytes"
	"cmp"
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
	"sync"
)

// MaxMessage is the size limit of a message in bytes, the same as in the kubelet.
const MaxMessage = 16 << 20

// Unimplemented is the gRPC code of a call to an unknown service or method.
const Unimplemented = 12

// unknown is the gRPC code of errors without one.
const unknown = 2

const contentType = "application/grpc"

// Error is an error that a server returned for a call.
type Error struct {
	Method  string // without its service, such as Version
	Code    int    // gRPC code, such as Unimplemented
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (gRPC code %d)", e.Method, e.Message, e.Code)
}

// ErrNoServer means that the socket does not exist, or that nothing listens on it.
var ErrNoServer = errors.New("nothing listens on the socket")

// Conn is a client of the server on a Unix socket. Its methods are safe for concurrent use.
type Conn struct {
	http *http.Transport

	mu    sync.Mutex
	conns []net.Conn
}

// NewConn returns a client. It connects at the first call. The path may be longer than the 107 bytes of a socket
// address, as below /proc/1/root.
func NewConn(socketPath string) *Conn {
	c := &Conn{}
	c.http = &http.Transport{
		Protocols:          cleartext(),
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx, socketPath)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNoServer, err)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.conns = append(c.conns, conn)
			return conn, nil
		},
	}
	return c
}

// cleartext returns what gRPC uses: HTTP/2 without TLS and with prior knowledge.
func cleartext() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
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
	c.http.CloseIdleConnections() // this keeps a connection whose last call was canceled
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// Call makes a unary call, such as of /runtime.v1.RuntimeService/Version, and returns the message of the response. The
// error wraps an *Error if the server returned one, and ErrNoServer if nothing listens on the socket.
func (c *Conn) Call(ctx context.Context, method string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, trailer, err := c.send(ctx, method, message)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	name := filepath.Base(method)
	reply, err := read(body)
	if err == nil {
		// The trailer arrives with the end of the body. Anything but the end is a second message.
		if _, err = read(body); errors.Is(err, io.EOF) {
			return reply, ended(name, trailer())
		}
		err = cmp.Or(err, errNotWhole)
	}
	if errors.Is(err, io.EOF) {
		err = cmp.Or(ended(name, trailer()), errNotWhole)
	}
	return nil, failed(ctx, name, err)
}

// failed returns an error for a call that broke off, or the cause of the context's end.
func failed(ctx context.Context, method string, err error) error {
	var known *Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &known): // it names the method itself
		return err
	}
	return fmt.Errorf("%s: %w", method, err)
}

// send sends a request, and returns the body of the response, and a function that returns its status once the body is
// read.
func (c *Conn) send(ctx context.Context, method string, message []byte) (io.ReadCloser, func() http.Header, error) {
	name := filepath.Base(method)
	body := bytes.NewReader(frame(message))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, body)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	req.Header = http.Header{
		"Content-Type": {contentType}, "Te": {"trailers"}, "User-Agent": {"kubectl-gpu-fault"},
	}
	res, err := c.http.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), contentType) {
		_ = res.Body.Close()
		return nil, nil, fmt.Errorf("the server on the socket does not use gRPC (HTTP %d)", res.StatusCode)
	}
	if err := asError(name, res.Header); err != nil { // an error without a message has its status in the header
		_ = res.Body.Close()
		return nil, nil, err
	}
	return res.Body, func() http.Header { return res.Trailer }, nil
}

// ended returns the error in the trailer. A response without a trailer is incomplete.
func ended(method string, trailer http.Header) error {
	if trailer.Get("Grpc-Status") == "" {
		return errNotWhole
	}
	return asError(method, trailer)
}

// asError returns the error in a header or trailer; nil if there is none.
func asError(method string, header http.Header) error {
	code := header.Get("Grpc-Status")
	if code == "" || code == "0" {
		return nil
	}
	number, err := strconv.Atoi(code)
	if err != nil {
		number = unknown
	}
	message := header.Get("Grpc-Message")
	if text, err := url.PathUnescape(message); err == nil {
		message = text
	}
	return &Error{Method: method, Code: number, Message: message}
}

// prefixLength is the length of the prefix of each message: a flag for compression and the length (see "gRPC over
// HTTP2" in the documentation of gRPC).
const prefixLength = 5

func frame(message []byte) []byte {
	framed := make([]byte, prefixLength, prefixLength+len(message))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(message)))
	return append(framed, message...)
}

var errNotWhole = errors.New("the response is not one whole message")

// read reads a message. The error is io.EOF if there is none.
func read(from io.Reader) ([]byte, error) {
	var prefix [prefixLength]byte
	switch _, err := io.ReadFull(from, prefix[:]); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errNotWhole
	case err != nil:
		return nil, err
	case prefix[0] != 0:
		return nil, errors.New("the message is compressed, which was not requested")
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
