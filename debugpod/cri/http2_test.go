package cri

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// said is a server whose words are known beforehand, and what it hears.
type said struct {
	io.Reader
	heard bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) { return s.heard.Write(p) }

// What servers may do, and Go's own does not in TestAsk: each word is from the framer of golang.org/x/net.
func TestAnswer(t *testing.T) {
	t.Parallel()
	block := func(fields ...string) []byte {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for i := 0; i < len(fields); i += 2 {
			if err := e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	headers := func(f *http2.Framer, end bool) error {
		return f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 1, BlockFragment: block(":status", "200"), EndHeaders: true, EndStream: end,
		})
	}
	for name, test := range map[string]struct {
		server func(*http2.Framer) []error
		want   string // the body
		err    string
	}{
		"headers in pieces, filled up, with a priority": {server: func(f *http2.Framer) []error {
			all := block(":status", "200", "grpc-status", "0")
			return []error{
				f.WriteHeaders(http2.HeadersFrameParam{
					StreamID: 1, BlockFragment: all[:1], PadLength: 9, Priority: http2.PriorityParam{Weight: 1},
				}),
				f.WriteContinuation(1, false, all[1:3]), f.WriteContinuation(1, true, all[3:]),
				f.WriteDataPadded(1, true, []byte("x"), make([]byte, 7)),
			}
		}, want: "x"},
		"settings, ping, another stream, unknown frames between": {server: func(f *http2.Framer) []error {
			return []error{
				f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}),
				f.WritePing(false, [8]byte{1}), headers(f, false),
				f.WriteRawFrame(0xbe, 0, 1, []byte("?")), f.WriteData(3, true, []byte("not ours")),
				f.WriteWindowUpdate(0, 1), f.WriteData(1, true, []byte("x")),
			}
		}, want: "x"},
		"goes away after our answer": {
			server: func(f *http2.Framer) []error { return []error{f.WriteGoAway(1, 0, nil), headers(f, true)} },
		},
		"goes away before our answer": {
			server: func(f *http2.Framer) []error { return []error{f.WriteGoAway(0, 11, []byte("calm"))} },
			err:    "goes away (HTTP/2 code 11 calm)",
		},
		"reset": {
			server: func(f *http2.Framer) []error { return []error{f.WriteRSTStream(1, 8)} },
			err:    "reset (HTTP/2 code 8)",
		},
		"ends": {
			server: func(f *http2.Framer) []error { return []error{headers(f, false)} },
			err:    "the connection ended: EOF",
		},
		"too much": {
			server: func(f *http2.Framer) []error { return []error{f.WriteData(1, false, make([]byte, 101))} },
			err:    "larger than",
		},
		"padding longer than its frame": {server: func(f *http2.Framer) []error {
			return []error{f.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1})}
		}, err: "not HTTP/2"},
		"headers without end": {server: func(f *http2.Framer) []error {
			all := []error{f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1})}
			for range 5 {
				all = append(all, f.WriteContinuation(1, false, make([]byte, maxFrame)))
			}
			return all
		}, err: "not HTTP/2"},
		"damaged headers": {server: func(f *http2.Framer) []error {
			return []error{
				f.WriteHeaders(
					http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff}, EndHeaders: true},
				),
			}
		}, err: "the headers of the answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var words bytes.Buffer
			for _, err := range test.server(http2.NewFramer(&words, nil)) {
				if err != nil {
					t.Fatal(err)
				}
			}
			w := newWire(&said{Reader: &words})
			w.stream = 1
			res, err := w.answer(100)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, wanted %q", err, test.err)
				}
				return
			}
			if err != nil || string(res.body) != test.want || res.header[":status"] != "200" {
				t.Errorf("%+v %v", res, err)
			}
		})
	}
}

// HTTP/1 is what a proxy or a wrong socket speaks.
func TestAnswerOfHTTP1(t *testing.T) {
	t.Parallel()
	w := newWire(&said{Reader: strings.NewReader("HTTP/1.1 400 Bad Request\r\n\r\n")})
	if _, err := w.answer(100); err == nil || !strings.Contains(err.Error(), "it is not HTTP/2") {
		t.Errorf("error %v", err)
	}
}

// Whatever listens at the socket: no panic, an end, and no more kept than was allowed.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add(append(encode(frame{
		kind: kindHeaders, flags: flagEndHeaders | flagPadded | flagPriority, stream: 1,
		payload: []byte("\x01\x00\x00\x00\x00\x01\x88x"),
	}),
		encode(frame{kind: kindData, flags: flagEndStream, stream: 1, payload: []byte("x")})...))
	f.Fuzz(func(t *testing.T, words []byte) {
		w := newWire(&said{Reader: bytes.NewReader(words)})
		w.stream = 1
		if res, err := w.answer(100); err == nil && len(res.body) > 100 {
			t.Errorf("%d bytes were kept", len(res.body))
		}
	})
}
