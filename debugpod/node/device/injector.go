package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/rpc"
)

// injector reports the devices of a record as unhealthy.
type injector struct {
	node
	record
	// lists passes messages to the kubelet's stream. The other channels are closed as signals: opened when the kubelet
	// has opened the stream, closing to end the stream, and closed when the stream has ended.
	lists                   chan []byte
	opened, closing, closed chan struct{}
	streamed                atomic.Bool // the kubelet has opened a stream
	// refusing means that the next registration must fail, so that the kubelet removes the client for the resource; see
	// leave.
	refusing atomic.Bool
	// base contains the devices with the health reported by the real plugin. sent contains the sorted IDs that the last
	// message reported as healthy.
	base map[string]bool
	sent []string
}

// The reasons why a fault ends.
var (
	errTTL     = errors.New("TTL")
	errKubelet = errors.New("the kubelet restarted or closed the connection")
	errPlugin  = errors.New("the device plugin restarted")
)

// inject runs a fault until ctx ends, the TTL expires, or the kubelet or the plugin restarts.
func (n node) inject(ctx context.Context, run string) error {
	r, err := n.load(run)
	if err != nil {
		return err
	}
	in := &injector{
		node: n, record: r, lists: make(chan []byte), opened: make(chan struct{}), closing: make(chan struct{}),
		closed: make(chan struct{}), base: map[string]bool{},
	}
	for _, id := range r.Healthy {
		in.base[id] = true
	}
	own, err := os.Lstat(in.path(r.Endpoint))
	if err != nil {
		return in.end(status{Problem: fmt.Sprintf("check the socket of the device plugin: %v", err)})
	}
	listener, err := rpc.Listen(n.socket(run))
	if err != nil {
		return in.end(status{Problem: fmt.Sprintf("listen alongside the device plugin: %v", err)})
	}
	server := rpc.Serve(listener, in.handle)
	defer server.Close()
	s := status{}
	if err := in.enter(ctx); err != nil {
		s.Problem = err.Error()
	} else if err := n.save(run, status{Phase: phaseFailed, Healthy: len(in.sent)}); err != nil {
		s.Problem = err.Error()
	} else {
		s.Cause = in.watch(ctx, own).Error()
	}
	// The switch retries if this fails.
	if err := in.leave(context.WithoutCancel(ctx), server); err != nil {
		return err
	}
	return in.end(s)
}

func (in *injector) end(s status) error {
	s.Phase = phaseEnded
	return in.save(in.Run, s)
}

func (in *injector) path(name string) string { return filepath.Join(in.plugins, name) }

// enter registers with the kubelet, re-registers the real plugin, and reports the devices as unhealthy.
func (in *injector) enter(ctx context.Context) error {
	if err := in.register(ctx, in.Resource, socketName(in.Run), in.Options); err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	select {
	case <-in.opened:
	case <-time.After(askTimeout):
		return errors.New("the kubelet accepted the registration, but requested no devices")
	}
	// This also waits for the plugin's list, which must not arrive after the injector's list.
	if err := in.reregister(ctx, in.record); err != nil {
		return fmt.Errorf("re-register the device plugin: %w", err)
	}
	return in.report(ctx)
}

// report sends the devices, and waits until the kubelet has recorded them.
func (in *injector) report(ctx context.Context) error {
	health := maps.Clone(in.base)
	for _, id := range in.Devices {
		health[id] = false
	}
	in.sent = nil
	for id, healthy := range health {
		if healthy {
			in.sent = append(in.sent, id)
		}
	}
	slices.Sort(in.sent)
	select {
	case in.lists <- deviceList(health, in.Topologies):
	case <-in.closed:
		return errKubelet
	case <-time.After(askTimeout):
		return errors.New("the kubelet did not read the list of devices")
	}
	return until(ctx, "the kubelet has not recorded the devices as unhealthy", func() bool {
		c, err := in.node.checkpoint()
		return err == nil && slices.Equal(c.Healthy[in.Resource], in.sent)
	})
}

// watch keeps the fault in effect, and returns the reason why it ends.
func (in *injector) watch(ctx context.Context, own fs.FileInfo) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	expired := time.NewTimer(time.Until(in.Until)) // in case the wall clock is set back
	defer expired.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-in.closed:
			return errKubelet
		case <-expired.C:
			return errTTL
		case <-tick.C:
		}
		if !time.Now().Before(in.Until) {
			return errTTL
		}
		if _, err := os.Lstat(in.socket(in.Run)); err != nil { // the kubelet removes all sockets when it starts
			return errKubelet
		}
		if now, err := os.Lstat(in.path(in.Endpoint)); err != nil || !isSame(now, own) {
			return errPlugin
		}
		c, err := in.node.checkpoint()
		if err != nil || slices.Equal(c.Healthy[in.Resource], in.sent) {
			continue // the kubelet replaces the file atomically, so an error comes from the disk
		}
		if !in.listens(in.Endpoint) {
			return errPlugin
		}
		// The real plugin has sent a list. Update the known health, and report the fault again.
		for id := range in.base {
			in.base[id] = false
		}
		for _, id := range c.Healthy[in.Resource] {
			in.base[id] = true
		}
		waiting, cancel := context.WithTimeout(ctx, confirmTimeout)
		err = in.report(waiting)
		cancel()
		if errors.Is(err, errKubelet) {
			return err
		} // any other error is temporary: the next tick reports the fault again
	}
}

const (
	watchEvery = 200 * time.Millisecond
	// confirmTimeout is short, because a plugin that sends two lists in a row overwrites the report before it has been
	// observed, and the devices are then healthy until the next report.
	confirmTimeout = time.Second
)

// leave ends the fault. When the kubelet reads the end of a stream, it disconnects the plugin that is currently
// registered, and marks all devices as unhealthy. Therefore, leave first attempts a registration that fails, which
// makes the kubelet remove that plugin, so that the end of the stream has no effect. At no time are healthy devices
// missing.
func (in *injector) leave(ctx context.Context, server *rpc.Server) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	start := time.Now()
	if isClosed(in.opened) && in.listens(in.Endpoint) {
		if err := in.reregister(ctx, in.record); err == nil {
			in.refusing.Store(true)
			_ = in.register(ctx, in.Resource, socketName(in.Run), in.Options)
		}
	}
	took := time.Since(start)
	close(in.closing)
	if isClosed(in.opened) {
		select {
		case <-in.closed:
		case <-time.After(time.Second):
		}
	}
	ended := time.Now()
	server.Shutdown(ctx)
	// The kubelet does not report when it has noticed the end of the stream, so a busy kubelet gets more time.
	_ = pause(ctx, time.Until(ended.Add(slow(took))))
	return in.giveBack(ctx, in.record)
}

// handle handles the kubelet's calls.
func (in *injector) handle(ctx context.Context, method string, message []byte, send func([]byte) error) error {
	switch path.Base(method) {
	case "GetDevicePluginOptions":
		if in.refusing.Load() {
			return &rpc.Error{Code: rpc.Unimplemented, Message: "the fault has ended"}
		}
		return send(in.Options)
	case "ListAndWatch":
		return in.stream(ctx, send)
	}
	// Between the two registrations, the kubelet may allocate a device through this process.
	conn := rpc.NewConn(in.path(in.Endpoint))
	defer conn.Close()
	reply, err := conn.Call(ctx, method, message)
	if err != nil {
		return err
	}
	return send(reply)
}

func (in *injector) stream(ctx context.Context, send func([]byte) error) error {
	if in.streamed.Swap(true) {
		return &rpc.Error{Code: rpc.Unimplemented, Message: "a stream is already open"}
	}
	close(in.opened)
	defer close(in.closed)
	for {
		select {
		case list := <-in.lists:
			if err := send(list); err != nil {
				return err
			}
		case <-in.closing:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
