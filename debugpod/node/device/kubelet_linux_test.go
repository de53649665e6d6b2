package device

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/checkpoint"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/rpc"
)

const resource = "nvidia.com/gpu"

// fakeKubelet treats device plugins as pkg/kubelet/cm/devicemanager of Kubernetes 1.36 does: it applies the messages of
// every stream of a resource, and when any of them ends, it disconnects the plugin that has registered last and takes
// all devices for unhealthy.
type fakeKubelet struct {
	t      *testing.T
	dir    string
	server *rpc.Server

	mu         sync.Mutex
	registered string // the socket of the client; empty if there is none
	closeConn  func()
	healthy    []string
	// missed are the devices of always that were not healthy at some moment.
	always, missed []string
	running        sync.WaitGroup
	closes         []func()
	// disconnects is how often it disconnects a plugin that has just sent its devices, as when it notices late that
	// another one has left.
	disconnects int
	// resources is its PodResourcesLister.
	resources *rpc.Server
}

func startKubelet(t *testing.T, dir string, always ...string) *fakeKubelet {
	t.Helper()
	k := &fakeKubelet{t: t, dir: dir, always: always}
	k.serve()
	if err := os.Mkdir(filepath.Join(dir, "pods"), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := rpc.Listen(filepath.Join(dir, podResources))
	if err != nil {
		t.Fatal(err)
	}
	k.resources = rpc.Serve(listener, k.list)
	t.Cleanup(k.resources.Close)
	t.Cleanup(k.stop)
	return k
}

// podResources is the socket of PodResourcesLister, in another directory than those of plugins.
const podResources = "pods/kubelet.sock"

// list answers GetAllocatableResources.
func (k *fakeKubelet) list(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	devices := rpc.Text(nil, 1, resource)
	for _, id := range k.healthy {
		devices = rpc.Text(devices, 2, id)
	}
	return send(rpc.Message(nil, 1, devices))
}

func (k *fakeKubelet) serve() {
	listener, err := rpc.Listen(filepath.Join(k.dir, kubeletSocket))
	if err != nil {
		k.t.Fatal(err)
	}
	k.server = rpc.Serve(listener, k.handle)
}

// stop ends the kubelet with all its connections.
func (k *fakeKubelet) stop() {
	k.server.Close()
	k.mu.Lock()
	k.registered = ""
	for _, end := range k.closes {
		end()
	}
	k.closes = nil
	k.mu.Unlock()
	k.running.Wait()
}

func (k *fakeKubelet) handle(_ context.Context, method string, message []byte, send func([]byte) error) error {
	if method != "/v1beta1.Registration/Register" {
		return &rpc.Error{Code: rpc.Unimplemented, Message: "unknown method " + method}
	}
	var endpoint, name string
	_ = rpc.Fields(message, func(f rpc.Field) error {
		switch f.Number {
		case 2:
			endpoint = string(f.Bytes)
		case 3:
			name = string(f.Bytes)
		}
		return nil
	})
	if name != resource {
		return errors.New("another resource: " + name)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(k.dir, endpoint))
	}
	transport := &http.Transport{Protocols: h2(), DialContext: dial}
	ctx, cancel := context.WithCancel(context.Background())
	k.mu.Lock()
	k.registered = endpoint
	k.closes = append(k.closes, cancel)
	k.mu.Unlock()
	conn := rpc.NewConn(filepath.Join(k.dir, endpoint))
	defer conn.Close()
	if _, err := conn.Call(ctx, "/v1beta1.DevicePlugin/GetDevicePluginOptions", nil); err != nil {
		k.mu.Lock()
		k.registered = ""
		k.mu.Unlock()
		return err
	}
	k.mu.Lock()
	k.closeConn = cancel
	k.mu.Unlock()
	k.running.Go(func() {
		k.receive(ctx, transport)
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.registered == "" {
			return
		}
		k.registered = ""
		k.closeConn()
		k.set(nil) // not in the checkpoint
	})
	return send(nil)
}

func h2() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

// receive applies the messages of a plugin until its stream ends.
func (k *fakeKubelet) receive(ctx context.Context, transport *http.Transport) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1beta1.DevicePlugin/ListAndWatch",
		strings.NewReader("\x00\x00\x00\x00\x00"))
	if err != nil {
		k.t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/grpc")
	res, err := transport.RoundTrip(req)
	if err != nil {
		return
	}
	defer func() { _ = res.Body.Close() }()
	for {
		var prefix [5]byte
		if _, err := io.ReadFull(res.Body, prefix[:]); err != nil {
			return
		}
		message := make([]byte, binary.BigEndian.Uint32(prefix[1:]))
		if _, err := io.ReadFull(res.Body, message); err != nil {
			return
		}
		var healthy []string
		_ = rpc.Fields(message, func(f rpc.Field) error {
			var id, health string
			_ = rpc.Fields(f.Bytes, func(f rpc.Field) error {
				switch f.Number {
				case 1:
					id = string(f.Bytes)
				case 2:
					health = string(f.Bytes)
				}
				return nil
			})
			if health == "Healthy" {
				healthy = append(healthy, id)
			}
			return nil
		})
		k.mu.Lock()
		k.set(healthy)
		k.writeCheckpoint()
		late := k.disconnects > 0
		if late {
			k.disconnects--
		}
		k.mu.Unlock()
		if late {
			return
		}
	}
}

func (k *fakeKubelet) set(healthy []string) {
	slices.Sort(healthy)
	k.healthy = healthy
	for _, id := range k.always {
		if !slices.Contains(healthy, id) && !slices.Contains(k.missed, id) {
			k.missed = append(k.missed, id)
		}
	}
}

func (k *fakeKubelet) writeCheckpoint() {
	raw, err := json.Marshal(map[string]any{"Data": map[string]any{
		"PodDeviceEntries": []any{map[string]any{
			"PodUID": "pod-1", "ResourceName": resource, "DeviceIDs": map[string]any{"-1": []string{"GPU-a"}},
		}},
		"RegisteredDevices": map[string]any{resource: k.healthy},
	}})
	if err == nil {
		err = os.WriteFile(filepath.Join(k.dir, ".new"), raw, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(k.dir, ".new"), filepath.Join(k.dir, checkpoint.Name))
	}
	if err != nil {
		k.t.Error(err)
	}
}

// sees waits until the kubelet takes exactly these devices for healthy.
func (k *fakeKubelet) sees(ids ...string) {
	k.t.Helper()
	eventually(k.t, "the kubelet sees "+strings.Join(ids, ", "), func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return slices.Equal(k.healthy, ids)
	})
}

func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within 20s: %s", what)
		}
	}
}

// fakePlugin is a device plugin. Like NVIDIA's, it sends its devices at the start of a stream and when one changes.
type fakePlugin struct {
	t      *testing.T
	dir    string
	server *rpc.Server

	mu      sync.Mutex
	health  map[string]bool
	changed chan struct{}
}

const pluginSocket = "nvidia-gpu.sock"

func startPlugin(t *testing.T, dir string, ids ...string) *fakePlugin {
	t.Helper()
	p := &fakePlugin{t: t, dir: dir, health: map[string]bool{}}
	for _, id := range ids {
		p.health[id] = true
	}
	p.serve()
	t.Cleanup(p.stop)
	return p
}

// serve listens on a new socket, and registers.
func (p *fakePlugin) serve() {
	p.changed = make(chan struct{})
	listener, err := rpc.Listen(filepath.Join(p.dir, pluginSocket))
	if err != nil {
		p.t.Fatal(err)
	}
	p.server = rpc.Serve(listener, p.handle)
	n := node{plugins: p.dir}
	if err := n.register(p.t.Context(), resource, pluginSocket, []byte{0x10, 1}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *fakePlugin) stop() {
	_ = os.Remove(filepath.Join(p.dir, pluginSocket))
	p.server.Close()
}

func (p *fakePlugin) set(id string, healthy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health[id] = healthy
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *fakePlugin) handle(ctx context.Context, method string, _ []byte, send func([]byte) error) error {
	switch filepath.Base(method) {
	case "GetDevicePluginOptions":
		return send([]byte{0x10, 1})
	case "ListAndWatch":
		for {
			p.mu.Lock()
			list, changed := deviceList(p.health, nil), p.changed
			p.mu.Unlock()
			if err := send(list); err != nil {
				return err
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return &rpc.Error{Code: rpc.Unimplemented, Message: "unknown method"}
}
