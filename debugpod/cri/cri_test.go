package cri_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
)

// message builds a protobuf message of strings and messages.
func message(numbersAndValues ...any) []byte {
	var raw []byte
	for i := 0; i < len(numbersAndValues); i += 2 {
		number := protowire.Number(numbersAndValues[i].(int))
		switch value := numbersAndValues[i+1].(type) {
		case string:
			raw = protowire.AppendString(protowire.AppendTag(raw, number, protowire.BytesType), value)
		case []byte:
			raw = protowire.AppendBytes(protowire.AppendTag(raw, number, protowire.BytesType), value)
		case bool:
			raw = protowire.AppendVarint(protowire.AppendTag(raw, number, protowire.VarintType),
				protowire.EncodeBool(value))
		}
	}
	return raw
}

func version() []byte { return message(1, "0.1.0", 2, "containerd", 3, "v2.3.7", 4, "v1") }

func status(ready bool, config string) []byte {
	conditions := message(
		1, message(1, "RuntimeReady", 2, ready, 3, "Starting", 4, "not yet"),
		1, message(1, "NetworkReady", 2, false, 3, "NetworkPluginNotReady"),
	)
	return message(
		1, conditions,
		2, message(1, "golang", 2, `"go1.26"`),
		2, message(1, "config", 2, config),
		3, message(1, "runc", 2, message(1, true)),
		3, message(1, "", 2, message(1, true)), // the default handler, without a name
		3, message(1, "nvidia"),
		4, message(1, true),
	)
}

// serve is a gRPC server: real frames of HTTP/2, over a socket. It fails the test when a request is not gRPC.
func serve(t *testing.T, socket string, handle http.HandlerFunc) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: &protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || len(body) < 5 || binary.BigEndian.Uint32(body[1:]) != uint32(len(body)-5) {
				t.Errorf("%s: the request's message is not framed: %x %v", r.URL, body, err)
			}
			want := map[string]string{"Version": "", "Status": "\x08\x01"}[filepath.Base(r.URL.Path)]
			if got := string(body[5:]); got != want {
				t.Errorf("%s: message %x, wanted %x", r.URL, got, want)
			}
			if r.Method != http.MethodPost || r.ProtoMajor != 2 || r.Header.Get("Te") != "trailers" ||
				r.Header.Get("Content-Type") != "application/grpc" {
				t.Errorf("this is no gRPC: %s %s %v", r.Method, r.Proto, r.Header)
			}
			w.Header().Set("Content-Type", "application/grpc")
			handle(w, r)
		})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

func socketIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // t.TempDir is too long for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func answer(w http.ResponseWriter, raw []byte) {
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	prefix := make([]byte, 5)
	binary.BigEndian.PutUint32(prefix[1:], uint32(len(raw)))
	_, _ = w.Write(append(prefix, raw...))
	w.Header().Set("Grpc-Status", "0")
}

// refuse is what a server answers without a message: all in the headers.
func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Grpc-Status", fmt.Sprint(code))
	w.Header().Set("Grpc-Message", text)
}

func containerd(ready bool, config string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/runtime.v1.RuntimeService/Version":
			answer(w, version())
		case "/runtime.v1.RuntimeService/Status":
			answer(w, status(ready, config))
		default:
			refuse(w, 12, "unknown method "+r.URL.Path)
		}
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	// Larger than a window of HTTP/2, so that flow control is at work.
	config := `{"containerd":{"runtimes":{}},"filler":"` + strings.Repeat("x", 1<<20) + `"}`
	socket := socketIn(t)
	serve(t, socket, containerd(true, config))
	got, err := cri.Ask(t.Context(), socket)
	want := &cri.Info{
		Name: "containerd", Version: "v2.3.7", Ready: true, Handlers: []string{"nvidia", "runc"},
		Config: []byte(config),
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %.2000s", err, diff)
	}
}

// Below /proc/1/root a path may be longer than an address of a socket can be.
func TestAskAtLongPath(t *testing.T) {
	t.Parallel()
	socket := socketIn(t)
	serve(t, socket, containerd(true, `{}`))
	long := filepath.Dir(socket) + strings.Repeat("/.", 100) + "/s"
	if info, err := cri.Ask(t.Context(), long); err != nil || info.Name != "containerd" {
		t.Errorf("%v %v", info, err)
	}
}

func TestAskFailures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handle http.HandlerFunc
		want   string
		is     error
	}{
		"CRI not loaded": {
			func(w http.ResponseWriter, _ *http.Request) {
				refuse(w, 12, "unknown service runtime.v1.RuntimeService")
			},
			"query the container runtime: the CRI plugin is disabled or was not loaded (unknown service runtime.v1.RuntimeService)",
			cri.ErrNotLoaded,
		},
		"a method is missing": {
			func(w http.ResponseWriter, _ *http.Request) { refuse(w, 12, "unknown method Version") },
			"query the container runtime: Version: unknown method Version (gRPC code 12)", nil,
		},
		"escaped message": {
			func(w http.ResponseWriter, _ *http.Request) { refuse(w, 2, "100%25 broken%0A") },
			"100% broken\n (gRPC code 2)", nil,
		},
		"error after the message": {
			func(w http.ResponseWriter, _ *http.Request) {
				answer(w, version())
				refuse(w, 14, "going down")
			},
			"going down (gRPC code 14)", nil,
		},
		"broken off": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte{0, 0, 0, 0, 0}) },
			"the response is not a single complete message", nil,
		},
		"no gRPC": {
			func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
			"does not use gRPC (HTTP 404", nil,
		},
		"cut message": {
			func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte{0, 0, 0, 0, 9, 1})
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
			},
			"not a single complete message", nil,
		},
		"compressed": {
			func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte{1, 0, 0, 0, 0})
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
			},
			"compressed", nil,
		},
		"no protobuf": {
			func(w http.ResponseWriter, _ *http.Request) { answer(w, []byte{0xff}) },
			"container runtime's version", nil,
		},
		"too large": {
			func(w http.ResponseWriter, _ *http.Request) { answer(w, make([]byte, 17<<20)) },
			"larger than 16777216 bytes", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := socketIn(t)
			serve(t, socket, test.handle)
			info, err := cri.Ask(t.Context(), socket)
			if err == nil || !strings.Contains(err.Error(), test.want) ||
				errors.Is(err, cri.ErrNotLoaded) != (test.is != nil) {
				t.Errorf("%v, error %q; wanted %q", info, err, test.want)
			}
		})
	}
	if _, err := cri.Ask(t.Context(), "/no/such.sock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
}

// A hung runtime must not hang us: the context ends the wait.
func TestAskHonorsContext(t *testing.T) {
	t.Parallel()
	socket := socketIn(t)
	asked := make(chan struct{})
	serve(t, socket, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := cri.Ask(ctx, socket); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestWaitReady(t *testing.T) {
	t.Parallel()
	socket := socketIn(t)
	var asked atomic.Int32
	serve(t, socket, func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if n < 3 {
			refuse(w, 12, "unknown service runtime.v1.RuntimeService")
			return
		}
		containerd(n > 8, `{}`)(w, r)
	})
	info, err := cri.WaitReady(t.Context(), socket, time.Millisecond)
	if err != nil || !info.Ready || asked.Load() < 9 {
		t.Errorf("ready after %d calls: %+v %v", asked.Load(), info, err)
	}
}

// The error names what was wrong last, not that the wait has ended only.
func TestWaitReadyGivesUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handle http.HandlerFunc
		want   string
	}{
		"not ready": {containerd(false, `{}`), "containerd v2.3.7 responds, but is not ready: Starting: not yet"},
		"no service": {
			func(w http.ResponseWriter, _ *http.Request) { refuse(w, 12, "unknown service x") },
			"the CRI plugin is disabled",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := socketIn(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			var asked atomic.Int32
			serve(t, socket, func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1) == 5 {
					cancel(enough)
				}
				test.handle(w, r)
			})
			_, err := cri.WaitReady(ctx, socket, time.Millisecond)
			if !errors.Is(err, enough) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q, wanted %q", err, test.want)
			}
		})
	}
}
