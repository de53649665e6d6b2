package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Handler responds to a call with any number of messages. It returns an *Error to set the gRPC code. The context ends
// when the client cancels the call or disconnects.
type Handler func(ctx context.Context, method string, message []byte, send func([]byte) error) error

// Server serves calls on a socket.
type Server struct {
	handle   Handler
	listener net.Listener

	mu    sync.Mutex
	conns map[*connection]bool
	ends  bool
}

// Listen listens on a new Unix socket. It returns an error if the path exists.
func Listen(path string) (net.Listener, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// Do not unlink the socket on close: if the kubelet removed it, another process may have recreated it.
	listener.SetUnlinkOnClose(false)
	return listener, nil
}

// Serve passes all calls on a socket to a handler until the server is closed.
func Serve(listener net.Listener, handle Handler) *Server {
	s := &Server{handle: handle, listener: listener, conns: map[*connection]bool{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // for example, too many open files
				time.Sleep(100 * time.Millisecond)
				continue
			}
			go s.serve(conn)
		}
	}()
	return s
}

// handshakeTimeout limits the time that a client may take to send the first line.
const handshakeTimeout = 10 * time.Second

func (s *Server) serve(conn net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	if _, err := io.ReadFull(conn, preface); err != nil || string(preface) != http2.ClientPreface {
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	c := newConnection(conn, s.answer)
	s.mu.Lock()
	s.conns[c] = true
	ends := s.ends
	s.mu.Unlock()
	if ends {
		c.close(net.ErrClosed)
	} else if c.start() == nil {
		c.receive()
	}
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// answer handles a call.
func (s *Server) answer(call *stream) {
	defer call.over(true)
	if !strings.HasPrefix(call.header["content-type"], contentType) {
		_ = call.write(func() error {
			return call.writeFields(call.id, true, []hpack.HeaderField{{Name: ":status", Value: "415"}})
		})
		return
	}
	err := call.write(func() error {
		return call.writeFields(call.id, false, []hpack.HeaderField{
			{Name: ":status", Value: "200"}, {Name: "content-type", Value: contentType},
		})
	})
	if err != nil {
		return
	}
	err = s.reply(call)
	_ = call.write(func() error {
		if call.ctx.Err() != nil {
			return nil
		}
		return call.writeFields(call.id, true, trailer(err))
	})
}

func (s *Server) reply(call *stream) error {
	message, err := read(&call.body)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	return s.handle(call.ctx, call.header[":path"], message, func(reply []byte) error {
		return call.send(frame(reply), false)
	})
}

// trailer returns the status of a call.
func trailer(err error) []hpack.HeaderField {
	const longest = 4 << 10 // a trailer must fit into a frame
	code, message := 0, ""
	var known *Error
	switch {
	case errors.As(err, &known):
		code, message = known.Code, known.Message
	case err != nil:
		code, message = unknown, err.Error()
	}
	fields := []hpack.HeaderField{{Name: statusField, Value: fmt.Sprint(code)}}
	if message != "" {
		message = url.PathEscape(message[:min(len(message), longest)])
		fields = append(fields, hpack.HeaderField{Name: messageField, Value: message})
	}
	return fields
}

// Close ends all calls.
func (s *Server) Close() {
	for _, c := range s.end() {
		c.close(net.ErrClosed)
	}
}

// Shutdown accepts no more calls, waits until the running ones have ended or ctx ends, and closes the server.
func (s *Server) Shutdown(ctx context.Context) {
	defer s.Close()
	for _, c := range s.end() {
		c.leave(ctx)
	}
}

// end stops listening, and returns the connections.
func (s *Server) end() []*connection {
	_ = s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = true
	var all []*connection
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}
