package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The limits of a connection (RFC 9113).
const (
	frameLimit   = 16 << 10   // size of a frame, unless the peer allows more
	windowStart  = 64<<10 - 1 // initial window of a stream and of the connection
	windowLimit  = 1<<31 - 1
	headerLimit  = 64 << 10 // total size of a received message's header fields
	streamLimit  = 100      // number of streams that a client may have open at the same time
	writeTimeout = 10 * time.Second
)

// connection is an HTTP/2 connection of a client or a server. On every stream, the client sends one request and the
// server one response, which is collected until it ends. Only a server's response may be sent in parts.
type connection struct {
	conn   net.Conn
	framer *http2.Framer
	// accept is called in a new goroutine for each request. It is nil on a client.
	accept func(*stream)

	writing sync.Mutex // held to write to the connection
	block   bytes.Buffer
	encoder *hpack.Encoder // writes to block

	mu      sync.Mutex
	changed *sync.Cond // signals changes to everything below, and to the streams
	streams map[uint32]*stream
	last    uint32 // newest stream
	first   int64  // window of a new stream
	window  int64  // number of bytes that may be sent before the peer allows more
	leaving bool   // no new streams are accepted
	err     error  // reason why the connection has ended
}

// stream is a call.
type stream struct {
	*connection
	id uint32
	// ctx ends when the peer resets the stream, the connection ends, or the call ends.
	ctx    context.Context
	cancel context.CancelCauseFunc
	window int64

	// After the channel ended is closed, the received data is complete.
	ended  chan struct{}
	header map[string]string // includes the trailer; names are in lower case
	body   bytes.Buffer
}

func newConnection(conn net.Conn, accept func(*stream)) *connection {
	c := &connection{
		conn: conn, accept: accept, streams: map[uint32]*stream{}, first: windowStart, window: windowStart,
	}
	c.changed = sync.NewCond(&c.mu)
	c.encoder = hpack.NewEncoder(&c.block)
	c.encoder.SetMaxDynamicTableSize(0) // so that the peer's limit does not matter
	c.framer = http2.NewFramer(conn, conn)
	c.framer.SetMaxReadFrameSize(frameLimit)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = headerLimit
	return c
}

// start opens the connection. The peer may send frames immediately.
func (c *connection) start() error {
	return c.write(func() error {
		if c.accept != nil {
			return c.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: streamLimit})
		}
		if _, err := io.WriteString(c.conn, http2.ClientPreface); err != nil {
			return err
		}
		return c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	})
}

// write calls a function that writes frames. If it fails, the connection ends.
func (c *connection) write(frames func() error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	err := frames()
	if err != nil {
		c.close(fmt.Errorf("write to the connection: %w", err))
	}
	return err
}

// close ends the connection and all its streams.
func (c *connection) close(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = cause
	}
	for _, s := range c.streams {
		s.cancel(c.err)
	}
	c.changed.Broadcast()
	_ = c.conn.Close()
}

// isOpen reports whether the connection accepts calls.
func (c *connection) isOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.leaving
}

// leave accepts no more streams, and waits until the open ones have ended or ctx ends.
func (c *connection) leave(ctx context.Context) {
	c.mu.Lock()
	c.leaving = true
	last := c.last
	c.mu.Unlock()
	_ = c.write(func() error { return c.framer.WriteGoAway(last, http2.ErrCodeNo, nil) })
	defer c.wakeWith(ctx)()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.streams) > 0 && c.err == nil && ctx.Err() == nil {
		c.changed.Wait()
	}
}

// wakeWith ensures that goroutines waiting for a change are woken when ctx ends. The returned function cancels this.
func (c *connection) wakeWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
}

// receive handles frames until the connection ends.
func (c *connection) receive() {
	for {
		frame, err := c.framer.ReadFrame()
		var one http2.StreamError
		if errors.As(err, &one) {
			c.reset(one.StreamID, one.Code, fmt.Errorf("the peer violated the HTTP/2 protocol: %w", one))
			continue
		}
		if err == nil {
			err = c.handle(frame)
		}
		if err != nil {
			c.close(fmt.Errorf("the connection ended: %w", err))
			return
		}
	}
}

func (c *connection) handle(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return c.fields(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if window, ok := f.Value(http2.SettingInitialWindowSize); ok {
			if err := c.resize(int64(window)); err != nil {
				return err
			}
		}
		return c.write(c.framer.WriteSettingsAck)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return c.write(func() error { return c.framer.WritePing(true, f.Data) })
	case *http2.WindowUpdateFrame:
		return c.widen(f.StreamID, int64(f.Increment))
	case *http2.RSTStreamFrame:
		c.abandon(f.StreamID, fmt.Errorf("the peer reset the stream (%v)", f.ErrCode))
	case *http2.GoAwayFrame:
		c.goneAway(f)
	}
	return nil
}

// fields receives a header or a trailer.
func (c *connection) fields(f *http2.MetaHeadersFrame) error {
	if f.Truncated {
		return fmt.Errorf("header fields larger than %d bytes", headerLimit)
	}
	c.mu.Lock()
	s := c.streams[f.StreamID]
	refused := false
	if s == nil && c.accept != nil && f.StreamID > c.last {
		if f.StreamID%2 == 0 {
			c.mu.Unlock()
			return fmt.Errorf("invalid stream ID %d for a client", f.StreamID)
		}
		c.last = f.StreamID
		if refused = c.leaving || len(c.streams) >= streamLimit; !refused {
			s = c.add(context.Background(), f.StreamID)
		}
	}
	c.mu.Unlock()
	if refused {
		c.reset(f.StreamID, http2.ErrCodeRefusedStream, nil)
	}
	if s == nil || s.isEnded() {
		return nil // the stream was reset or is rejected
	}
	for _, field := range f.Fields {
		s.header[field.Name] = field.Value
	}
	if f.StreamEnded() {
		s.end()
	}
	return nil
}

// data receives part of a body, and lets the peer send the same amount again.
func (c *connection) data(f *http2.DataFrame) error {
	c.mu.Lock()
	s := c.streams[f.StreamID]
	c.mu.Unlock()
	size := f.Length // includes the padding
	open := s != nil && !s.isEnded()
	if open {
		s.body.Write(f.Data())
		switch {
		case s.body.Len() > prefixLength+MaxMessage:
			c.reset(s.id, http2.ErrCodeCancel, errTooLarge)
			open = false
		case f.StreamEnded():
			s.end()
			open = false
		}
	}
	if size == 0 {
		return nil
	}
	return c.write(func() error {
		if err := c.framer.WriteWindowUpdate(0, size); err != nil || !open {
			return err
		}
		return c.framer.WriteWindowUpdate(f.StreamID, size)
	})
}

// resize changes the windows of all streams, which may become negative.
func (c *connection) resize(first int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		if s.window += first - c.first; s.window > windowLimit {
			return errWindow
		}
	}
	c.first = first
	c.changed.Broadcast()
	return nil
}

func (c *connection) widen(id uint32, by int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	window := &c.window
	if id != 0 {
		s := c.streams[id]
		if s == nil {
			return nil
		}
		window = &s.window
	}
	if *window += by; *window > windowLimit {
		return errWindow
	}
	c.changed.Broadcast()
	return nil
}

var (
	errWindow   = errors.New("an HTTP/2 window is too large")
	errTooLarge = fmt.Errorf("the message is larger than %d bytes", MaxMessage)
	errGoesAway = errors.New("the server is closing the connection")
	errOver     = errors.New("the call has ended")
)

// goneAway fails the calls to which the server will not respond.
func (c *connection) goneAway(f *http2.GoAwayFrame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = true
	for id, s := range c.streams {
		if c.accept == nil && id > f.LastStreamID {
			s.cancel(fmt.Errorf("%w (%v)", errGoesAway, f.ErrCode))
		}
	}
	c.changed.Broadcast()
}

// add adds a stream. The caller holds mu.
func (c *connection) add(ctx context.Context, id uint32) *stream {
	s := &stream{connection: c, id: id, window: c.first, ended: make(chan struct{}), header: map[string]string{}}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	if c.err != nil {
		s.cancel(c.err)
	}
	c.streams[id] = s
	return s
}

// reset resets a stream.
func (c *connection) reset(id uint32, code http2.ErrCode, cause error) {
	c.abandon(id, cause)
	_ = c.write(func() error { return c.framer.WriteRSTStream(id, code) })
}

// abandon removes a stream.
func (c *connection) abandon(id uint32, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		s.cancel(cause)
		delete(c.streams, id)
	}
	c.changed.Broadcast()
}

func (s *stream) isEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// end marks the received data as complete.
func (s *stream) end() {
	close(s.ended)
	if s.accept != nil {
		go s.accept(s)
	}
}

// over removes a stream. If its response is not complete, the peer is notified that the response is no longer needed.
func (s *stream) over(complete bool) {
	if complete {
		s.abandon(s.id, errOver)
		return
	}
	s.reset(s.id, http2.ErrCodeCancel, errOver)
}

// open opens a stream with a request. The stream ends with ctx.
func (c *connection) open(ctx context.Context, fields []hpack.HeaderField, body []byte) (*stream, error) {
	var s *stream
	err := c.write(func() error { // streams must be opened in the order of their IDs
		c.mu.Lock()
		switch {
		case c.err != nil:
			c.mu.Unlock()
			return c.err
		case c.last == 0:
			c.last = 1
		default:
			c.last += 2
		}
		s = c.add(ctx, c.last)
		c.mu.Unlock()
		return c.writeFields(s.id, false, fields)
	})
	if err != nil {
		return nil, err
	}
	if err := s.send(body, true); err != nil && !s.isEnded() { // a server may respond before it has read everything
		s.over(false)
		return nil, err
	}
	return s, nil
}

// writeFields writes a header or a trailer. The caller holds c.writing.
func (c *connection) writeFields(id uint32, end bool, fields []hpack.HeaderField) error {
	c.block.Reset()
	for _, field := range fields {
		if err := c.encoder.WriteField(field); err != nil {
			return err
		}
	}
	return c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: end,
	})
}

// send sends part of the body as fast as the peer's windows allow.
func (s *stream) send(body []byte, end bool) error {
	defer s.wakeWith(s.ctx)()
	for first := true; first || len(body) > 0; first = false {
		n, err := s.reserve(len(body))
		if err != nil {
			return err
		}
		part := body[:n]
		body = body[n:]
		err = s.write(func() error {
			if s.ctx.Err() != nil {
				return nil // no frame may follow a reset
			}
			return s.framer.WriteData(s.id, end && len(body) == 0, part)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// reserve waits until at least one of the bytes may be sent, and returns how many may be sent.
func (s *stream) reserve(bytes int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.ctx.Err() != nil {
			return 0, context.Cause(s.ctx)
		}
		n := int(min(int64(bytes), frameLimit, s.window, s.connection.window))
		if n > 0 || bytes == 0 {
			s.window -= int64(n)
			s.connection.window -= int64(n)
			return n, nil
		}
		s.changed.Wait()
	}
}
