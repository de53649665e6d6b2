package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Handler answers a call with any number of messages. It returns an *Error to choose the gRPC code. The context ends
// when the client cancels the call or disconnects.
type Handler func(ctx context.Context, method string, message []byte, send func([]byte) error) error

// NewServer returns a server that passes all calls to a handler. Its Serve method starts it.
func NewServer(handle Handler) *http.Server {
	return &http.Server{
		Protocols: cleartext(), ReadHeaderTimeout: time.Minute,
		// The handler knows when a stream ends, so errors of connections need no log.
		ErrorLog: nil,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.Header.Get("Content-Type"), contentType) {
				http.Error(w, "this server uses only gRPC", http.StatusUnsupportedMediaType)
				return
			}
			w.Header().Set("Content-Type", contentType)
			finish(w, answer(w, r, handle))
		}),
	}
}

func answer(w http.ResponseWriter, r *http.Request, handle Handler) error {
	message, err := read(r.Body)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	return handle(r.Context(), r.URL.Path, message, func(reply []byte) error {
		if _, err := w.Write(frame(reply)); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	})
}

// finish sends the status of a call as the trailer.
func finish(w http.ResponseWriter, err error) {
	code, message := 0, ""
	var known *Error
	switch {
	case errors.As(err, &known):
		code, message = known.Code, known.Message
	case err != nil:
		code, message = unknown, err.Error()
	}
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", fmt.Sprint(code))
	if message != "" {
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", url.PathEscape(message))
	}
}

// Listen listens on a new Unix socket. It is an error if the path exists.
func Listen(path string) (net.Listener, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// A socket that the kubelet has removed, and another process has created again, is not ours to remove.
	listener.SetUnlinkOnClose(false)
	return listener, nil
}
