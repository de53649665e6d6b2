package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// The other side in these tests is net/http's HTTP/2, or frames that a test writes itself.

func socketIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rpc") // t.TempDir is too long for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func cleartext() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

// serveHTTP runs a server that is not ours, and returns a client of ours.
func serveHTTP(t *testing.T, handle http.HandlerFunc) (*Conn, *http.Server) {
	t.Helper()
	path := socketIn(t)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Protocols: cleartext(), Handler: handle}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	conn := NewConn(path)
	t.Cleanup(conn.Close)
	return conn, server
}

// serve runs a server of ours, and returns a client that is not ours.
func serve(t *testing.T, handle Handler) (*http.Transport, *Server, string) {
	t.Helper()
	path := socketIn(t)
	listener, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	server := Serve(listener, handle)
	t.Cleanup(server.Close)
	transport := &http.Transport{
		Protocols: cleartext(),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return transport, server, path
}

func request(ctx context.Context, t *testing.T, message string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/test.Service/Method",
		strings.NewReader(string(frame([]byte(message)))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	return req
}

func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("waited 10 s for this: %s", what)
	}
}

// Every call has its own response, also when there are more calls at the same time than the server allows.
func TestCallsAtTheSameTime(t *testing.T) {
	t.Parallel()
	conn, _ := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		message, err := read(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(frame(message))
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Go(func() {
			want := strings.Repeat(fmt.Sprint(i), i*2000) // some are larger than a window
			if got, err := conn.Call(t.Context(), "/test.Service/Echo", []byte(want)); string(got) != want {
				t.Errorf("%d: %d bytes came back as %d: %v", i, len(want), len(got), err)
			}
		})
	}
	calls.Wait()
}

// A response that is too large, broken off, without a status or not gRPC is an error that says so, and the next call on
// the same client works.
func TestBadResponses(t *testing.T) {
	t.Parallel()
	conn, _ := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		switch filepath.Base(r.URL.Path) {
		case "Large":
			_, _ = w.Write([]byte("\x00\x01\x00\x00\x01"))
			for part := make([]byte, 1<<20); ; {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
		case "BrokenOff":
			_, _ = w.Write([]byte("\x00\x00\x00\x00\x05abc"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "Half":
			_, _ = w.Write([]byte("\x00\x00\x00\x00\x05abc"))
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		case "NoStatus":
			_, _ = w.Write(frame(nil))
		case "Compressed":
			_, _ = w.Write([]byte("\x01\x00\x00\x00\x00"))
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		case "Page":
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		case "Header": // more than headerLimit
			w.Header().Set("X", strings.Repeat("x", 2*headerLimit))
		default:
			_, _ = w.Write(frame([]byte("good")))
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		}
	})
	for method, want := range map[string]string{
		"Large":      "larger than",
		"BrokenOff":  "reset the stream (INTERNAL_ERROR)",
		"Half":       errNotWhole.Error(),
		"NoStatus":   errNotWhole.Error(),
		"Compressed": "is compressed",
		"Page":       "does not use gRPC",
		"Header":     "the connection ended",
	} {
		_, err := conn.Call(t.Context(), "/test.Service/"+method, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), method+": ") {
			t.Errorf("%s: %v; wanted %q", method, err, want)
		}
		if got, err := conn.Call(t.Context(), "/test.Service/Good", nil); string(got) != "good" {
			t.Errorf("after %s: %q, %v", method, got, err)
		}
	}
}

// The server learns that a call was canceled; the caller gets the cause.
func TestCanceledCall(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan struct{})
	conn, _ := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go func() {
		<-begun
		cancel(why)
	}()
	if _, err := conn.Call(ctx, "/test.Service/Wait", nil); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	within(t, "the server notices the end of the call", ended)
}

// A server that shuts down finishes a running call. The next call connects again.
func TestServerThatRestarts(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	conn, server := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-goOn
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(frame([]byte("done")))
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})
	down := make(chan struct{})
	server.RegisterOnShutdown(func() { close(goOn) })
	go func() {
		<-begun
		_ = server.Shutdown(t.Context())
		close(down)
	}()
	if got, err := conn.Call(t.Context(), "/test.Service/Finish", nil); string(got) != "done" {
		t.Errorf("%q, %v", got, err)
	}
	within(t, "the server is down", down)
	if _, err := conn.Call(t.Context(), "/test.Service/Finish", nil); !errors.Is(err, ErrNoServer) {
		t.Errorf("without a server: %v", err)
	}
	listener, err := net.Listen("unix", conn.path)
	if err != nil {
		t.Fatal(err)
	}
	again := Serve(listener, func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		return send([]byte("again"))
	})
	defer again.Close()
	if got, err := conn.Call(t.Context(), "/test.Service/Finish", nil); string(got) != "again" {
		t.Errorf("%q, %v", got, err)
	}
}

// What listens may be no HTTP/2 server at all.
func TestOtherServers(t *testing.T) {
	t.Parallel()
	for _, says := range []string{"", "HTTP/1.1 400 Bad Request\r\n\r\n", strings.Repeat("\xff", 100)} {
		path := socketIn(t)
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer func() { _ = listener.Close() }()
			if conn, err := listener.Accept(); err == nil {
				_, _ = io.WriteString(conn, says)
				_, _ = io.ReadFull(conn, make([]byte, 24))
				_ = conn.Close()
			}
		}()
		conn := NewConn(path)
		if _, err := conn.Call(t.Context(), "/test.Service/Method", nil); err == nil {
			t.Errorf("%q was a response", says)
		}
		conn.Close()
	}
}

// The messages of a stream arrive one by one, also if they are larger than the windows, and the handler learns that the
// client has left.
func TestStreamOfMessages(t *testing.T) {
	t.Parallel()
	left := make(chan struct{})
	transport, _, _ := serve(t, func(
		ctx context.Context, _ string, message []byte, send func([]byte) error,
	) error {
		defer close(left)
		for range 3 {
			if err := send(message); err != nil {
				t.Error(err)
			}
		}
		<-ctx.Done()
		if err := send(message); err == nil {
			t.Error("a message was sent to nobody")
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	want := strings.Repeat("x", MaxMessage)
	res, err := transport.RoundTrip(request(ctx, t, want))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := read(res.Body); string(got) != want {
			t.Fatalf("%d bytes arrived as %d: %v", len(want), len(got), err)
		}
	}
	cancel()
	_ = res.Body.Close()
	within(t, "the handler notices that the client has left", left)
}

// A shutdown finishes the running calls, and takes no new ones.
func TestShutdown(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	transport, server, path := serve(t, func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		close(begun)
		<-goOn
		return send([]byte("done"))
	})
	down := make(chan struct{})
	go func() {
		<-begun
		go func() { // when the listener is closed
			for {
				conn, err := net.Dial("unix", path)
				if err != nil {
					close(goOn)
					return
				}
				_ = conn.Close()
			}
		}()
		server.Shutdown(t.Context())
		close(down)
	}()
	res, err := transport.RoundTrip(request(t.Context(), t, ""))
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(res.Body)
	if string(got) != "done" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%v, %v", err, res.Trailer)
	}
	within(t, "the server is down", down)
}

// A client that is not gRPC gets an HTTP error.
func TestOtherClients(t *testing.T) {
	t.Parallel()
	transport, _, _ := serve(t, func(context.Context, string, []byte, func([]byte) error) error {
		t.Error("the handler was called")
		return nil
	})
	req := request(t.Context(), t, "")
	req.Header.Set("Content-Type", "text/plain")
	res, err := transport.RoundTrip(req)
	if err != nil || res.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("%+v, %v", res, err)
	}
}

// The server sends no more than the client's windows allow, which a client may also make smaller, and refuses streams
// above its limit.
func TestWindowsAndLimits(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	c := newConnection(ours, (&Server{handle: func(
		_ context.Context, _ string, message []byte, send func([]byte) error,
	) error {
		return send(message)
	}}).answer)
	frames := make(chan http2.Frame, 1000)
	peer := newConnection(theirs, nil) // for its framer and encoder
	go func() {
		defer close(frames)
		for {
			f, err := peer.framer.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) { // its contents live until the next frame is read
			case *http2.DataFrame:
				frames <- &http2.DataFrame{FrameHeader: f.FrameHeader}
			case *http2.RSTStreamFrame, *http2.PingFrame:
				frames <- f
			}
		}
	}()
	go func() {
		_ = c.start()
		c.receive()
	}()
	defer c.close(io.EOF)
	fails := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// synced waits until the server has handled all that was sent, and returns how many bytes it has sent since.
	synced := func() (sent uint32) {
		t.Helper()
		fails(peer.framer.WritePing(false, [8]byte{1}))
		for f := range frames {
			switch f := f.(type) {
			case *http2.DataFrame:
				sent += f.Length
			case *http2.PingFrame:
				return sent
			}
		}
		t.Fatal("the connection has ended")
		return 0
	}
	settled := func(want uint32) {
		t.Helper()
		var got uint32
		for end := time.Now().Add(10 * time.Second); got < want && time.Now().Before(end); {
			got += synced()
		}
		if got += synced(); got != want {
			t.Fatalf("the server sent %d bytes, wanted %d", got, want)
		}
	}
	post := requestFields("/test.Service/Echo")
	fails(peer.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3}))
	fails(peer.writeFields(1, false, post))
	fails(peer.framer.WriteData(1, true, frame([]byte("a message"))))
	settled(3)
	fails(peer.framer.WriteWindowUpdate(1, 2))
	settled(2)
	fails(peer.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})) // the window is -2
	fails(peer.framer.WriteWindowUpdate(1, 2))
	settled(0)
	fails(peer.framer.WriteWindowUpdate(1, 1))
	settled(1)
	fails(peer.framer.WriteWindowUpdate(1, 100))
	settled(8)
	for i := range uint32(streamLimit) { // these do not end
		fails(peer.writeFields(3+2*i, false, post))
	}
	fails(peer.writeFields(1003, false, post))
	for f := range frames {
		if reset, ok := f.(*http2.RSTStreamFrame); ok {
			if reset.StreamID != 1003 || reset.ErrCode != http2.ErrCodeRefusedStream {
				t.Errorf("got %v", reset)
			}
			break
		}
	}
}

// FuzzConnection holds that no bytes of a peer make a client or a server panic or stay.
func FuzzConnection(f *testing.F) {
	for _, client := range []bool{true, false} {
		f.Add([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00"), client)
		f.Add([]byte("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff"), client)
		f.Add([]byte("\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88"+
			"\x00\x00\x05\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00"), client)
		f.Add([]byte("\x00\x00\x04\x08\x00\x00\x00\x00\x01\x7f\xff\xff\xff"+
			"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x00"), client)
		f.Add([]byte("\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), client)
	}
	f.Fuzz(func(t *testing.T, received []byte, client bool) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		go func() {
			_, _ = theirs.Write(received)
			_ = theirs.Close()
		}()
		var c *connection
		if client {
			c = newConnection(ours, nil)
			if c.start() == nil {
				_, _ = c.open(t.Context(), requestFields("/test.Service/Method"), frame(nil))
			}
		} else {
			c = newConnection(ours, (&Server{handle: func(
				_ context.Context, _ string, message []byte, send func([]byte) error,
			) error {
				return send(message)
			}}).answer)
			_ = c.start()
		}
		ended := make(chan struct{})
		go func() {
			c.receive()
			close(ended)
		}()
		within(t, "the connection ends", ended)
		c.mu.Lock()
		left := slices.Collect(maps.Values(c.streams))
		c.mu.Unlock()
		for _, s := range left {
			within(t, "its streams end", s.ctx.Done())
		}
	})
}
