package cri

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// Constants of HTTP/2 (RFC 9113, sections 6 and 11), as far as sequential unary calls need them.
const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	kindData, kindHeaders, kindReset, kindSettings        = 0x0, 0x1, 0x3, 0x4
	kindPing, kindGoAway, kindWindowUpdate, kindContinued = 0x6, 0x7, 0x8, 0x9

	flagAck, flagEndStream, flagEndHeaders, flagPadded, flagPriority = 0x1, 0x1, 0x4, 0x8, 0x20

	settingPush, settingWindow = 0x2, 0x4

	frameHeader = 9
	// maxFrame is the default size limit of a frame.
	maxFrame = 16 << 10
	// window is the flow-control window of a stream and of the connection. It exceeds the size limit of a response.
	window = 1 << 30
	// maxHeaders is the size limit of the headers of a response.
	maxHeaders = 64 << 10
)

var errNoHTTP2 = errors.New("what listens there speaks no gRPC (it is not HTTP/2)")

// frame is an HTTP/2 frame.
type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

func (f frame) has(flag byte) bool { return f.flags&flag != 0 }

// wire is an HTTP/2 connection. It is not safe for concurrent use.
type wire struct {
	in      *bufio.Reader
	out     io.Writer
	headers *hpack.Decoder
	stream  uint32 // the last opened stream
}

func newWire(conn io.ReadWriter) *wire {
	headers := hpack.NewDecoder(4096, nil) // the default size of the table
	headers.SetMaxStringLength(maxHeaders)
	return &wire{in: bufio.NewReaderSize(conn, maxFrame), out: conn, headers: headers}
}

// open starts the connection, without server push and with a flow-control window that never blocks.
func (w *wire) open() error {
	settings := binary.BigEndian.AppendUint16(nil, settingPush)
	settings = binary.BigEndian.AppendUint32(settings, 0)
	settings = binary.BigEndian.AppendUint16(settings, settingWindow)
	settings = binary.BigEndian.AppendUint32(settings, window)
	begin := append([]byte(preface), encode(frame{kind: kindSettings, payload: settings})...)
	begin = append(begin, encode(frame{kind: kindWindowUpdate, payload: binary.BigEndian.AppendUint32(nil, window)})...)
	_, err := w.out.Write(begin)
	return err
}

func encode(f frame) []byte {
	raw := make([]byte, 0, frameHeader+len(f.payload))
	size := len(f.payload)
	raw = append(raw, byte(size>>16), byte(size>>8), byte(size), f.kind, f.flags)
	return append(binary.BigEndian.AppendUint32(raw, f.stream), f.payload...)
}

// ask sends a request on a new stream. The body must fit in one frame.
func (w *wire) ask(fields []hpack.HeaderField, body []byte) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0) // works with any table size of the server
	for _, field := range fields {
		if err := encoder.WriteField(field); err != nil {
			return err
		}
	}
	w.stream += 2 // clients use odd stream IDs
	if w.stream == 2 {
		w.stream = 1
	}
	raw := encode(frame{kind: kindHeaders, flags: flagEndHeaders, stream: w.stream, payload: block.Bytes()})
	_, err := w.out.Write(
		append(raw, encode(frame{kind: kindData, flags: flagEndStream, stream: w.stream, payload: body})...),
	)
	return err
}

// response is the response on a stream. Its header includes the trailer. Names are in lower case.
type response struct {
	header map[string]string
	body   []byte
}

// answer reads frames until the stream of the last request ends, and acknowledges settings and pings.
func (w *wire) answer(maxBody int) (*response, error) {
	res := &response{header: map[string]string{}}
	for {
		f, err := w.read()
		if err != nil {
			return nil, err
		}
		switch f.kind {
		case kindSettings, kindPing:
			err = w.acknowledge(f)
		case kindGoAway:
			err = w.goneAway(f)
		case kindReset:
			if f.stream == w.stream && len(f.payload) == 4 {
				err = fmt.Errorf("the stream was reset (HTTP/2 code %d)", binary.BigEndian.Uint32(f.payload))
			}
		case kindHeaders:
			err = w.fields(f, res)
		case kindData:
			if f.payload, err = unpadded(f); err == nil && f.stream == w.stream {
				res.body = append(res.body, f.payload...)
			}
			if len(res.body) > maxBody {
				err = fmt.Errorf("the answer is larger than %d bytes", maxBody-prefix)
			}
		}
		if err != nil {
			return nil, err
		}
		if f.stream == w.stream && (f.kind == kindHeaders || f.kind == kindData) && f.has(flagEndStream) {
			return res, nil
		}
	}
}

func (w *wire) read() (frame, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(w.in, head[:]); err != nil {
		return frame{}, fmt.Errorf("the connection ended: %w", err)
	}
	size := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	if size > maxFrame {
		return frame{}, errNoHTTP2
	}
	f := frame{
		kind: head[3], flags: head[4], stream: binary.BigEndian.Uint32(head[5:]) &^ (1 << 31),
		payload: make([]byte, size),
	}
	if _, err := io.ReadFull(w.in, f.payload); err != nil {
		return frame{}, fmt.Errorf("the connection ended: %w", err)
	}
	return f, nil
}

func (w *wire) acknowledge(f frame) error {
	if f.has(flagAck) {
		return nil
	}
	ack := frame{kind: f.kind, flags: flagAck}
	if f.kind == kindPing {
		ack.payload = f.payload
	}
	_, err := w.out.Write(encode(ack))
	return err
}

// goneAway returns an error if the server will not process the request. The frame has the last stream that the server
// processes.
func (w *wire) goneAway(f frame) error {
	if len(f.payload) < 8 {
		return errNoHTTP2
	}
	if last := binary.BigEndian.Uint32(f.payload) &^ (1 << 31); last >= w.stream {
		return nil
	}
	why := strings.TrimRight(" "+string(f.payload[8:]), " ")
	return fmt.Errorf("the server goes away (HTTP/2 code %d%s)", binary.BigEndian.Uint32(f.payload[4:]), why)
}

// fields reads a header block. It decodes the headers of every stream, because the compression state belongs to the
// connection.
func (w *wire) fields(f frame, res *response) error {
	block, err := unpadded(f)
	if err != nil {
		return err
	}
	if f.has(flagPriority) {
		if len(block) < 5 {
			return errNoHTTP2
		}
		block = block[5:]
	}
	for whole := f.has(flagEndHeaders); !whole; {
		more, err := w.read()
		if err != nil {
			return err
		}
		block = append(block, more.payload...)
		if more.kind != kindContinued || more.stream != f.stream || len(block) > maxHeaders {
			return errNoHTTP2
		}
		whole = more.has(flagEndHeaders)
	}
	fields, err := w.headers.DecodeFull(block)
	if err != nil {
		return fmt.Errorf("the headers of the answer: %w", err)
	}
	if f.stream == w.stream {
		for _, field := range fields {
			res.header[field.Name] = field.Value
		}
	}
	return nil
}

// unpadded returns the payload without padding. The first byte is the length of the padding.
func unpadded(f frame) ([]byte, error) {
	if !f.has(flagPadded) {
		return f.payload, nil
	}
	if len(f.payload) == 0 || int(f.payload[0]) >= len(f.payload) {
		return nil, errNoHTTP2
	}
	return f.payload[1 : len(f.payload)-int(f.payload[0])], nil
}
