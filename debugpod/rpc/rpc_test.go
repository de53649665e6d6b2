package rpc

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

// A call and its answer, an error with any text, and a socket on which nobody listens.
func TestCallAndServe(t *testing.T) {
	t.Parallel()
	path := socketIn(t)
	listener, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	server := Serve(listener, func(_ context.Context, method string, message []byte, send func([]byte) error) error {
		switch method {
		case "/test.Service/Echo":
			return send(message)
		case "/test.Service/Twice":
			return errors.Join(send(message), send(message))
		}
		return &Error{Code: Unimplemented, Message: "unknown method: 100 %\n" + method}
	})
	t.Cleanup(server.Close)
	conn := NewConn(path)
	defer conn.Close()

	for _, text := range []string{"", "hello", strings.Repeat("x", 1<<20)} {
		if got, err := conn.Call(t.Context(), "/test.Service/Echo", []byte(text)); err != nil || string(got) != text {
			t.Errorf("%d bytes came back as %d: %v", len(text), len(got), err)
		}
	}
	if _, err := conn.Call(t.Context(), "/test.Service/Twice", nil); !errors.Is(err, errNotWhole) {
		t.Errorf("two messages: %v", err)
	}
	var known *Error
	_, err = conn.Call(t.Context(), "/test.Service/None", nil)
	if !errors.As(err, &known) || known.Code != Unimplemented || known.Method != "None" ||
		known.Message != "unknown method: 100 %\n/test.Service/None" {
		t.Errorf("%#v", err)
	}
	if _, err := Listen(path); !errors.Is(err, os.ErrExist) && !isInUse(err) {
		t.Errorf("the socket was taken twice: %v", err)
	}
	nobody := NewConn(path + "-nobody")
	defer nobody.Close()
	if _, err := nobody.Call(t.Context(), "/test.Service/Echo", nil); !errors.Is(err, ErrNoServer) ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a server: %v", err)
	}
}

func isInUse(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && strings.Contains(err.Error(), "in use")
}

// FuzzRead holds that only a whole message is read, and never more than it.
func FuzzRead(f *testing.F) {
	f.Add(frame([]byte("x")))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, body []byte) {
		rest := bytes.NewReader(body)
		message, err := read(rest)
		if err == nil && string(frame(message)) != string(body[:len(body)-rest.Len()]) {
			t.Errorf("%x was read as the message %x", body, message)
		}
	})
}

// FuzzFields holds that the fields of a message are the whole message.
func FuzzFields(f *testing.F) {
	f.Add(Text(Message(nil, 1, []byte("a")), 2, "b"))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, message []byte) {
		var all []byte
		if Fields(message, func(f Field) error { all = append(all, f.Raw...); return nil }) == nil &&
			!bytes.Equal(all, message) {
			t.Errorf("%x has the fields %x", message, all)
		}
	})
}
