// Command vendorplugin is a device plugin of another vendor, for tests: it registers devices with the kubelet of the
// node on which it runs, reports all of them as healthy, and ends with its stdin.
//
//	vendorplugin RESOURCE SOCKET ID...
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/rpc"
)

const dir = "/var/lib/kubelet/device-plugins"

func main() {
	if len(os.Args) < 4 {
		fail("specify a resource, a socket and devices")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fail(err.Error())
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, "vendorplugin:", text)
	os.Exit(1)
}

func run(resource, socket string, ids []string) error {
	path := filepath.Join(dir, socket)
	_ = os.Remove(path)
	listener, err := rpc.Listen(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	server := rpc.Serve(listener, answers(ids))
	defer server.Close()

	kubelet := rpc.NewConn(filepath.Join(dir, "kubelet.sock"))
	defer kubelet.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// RegisterRequest: version = 1, endpoint = 2, resource_name = 3.
	request := rpc.Text(rpc.Text(rpc.Text(nil, 1, "v1beta1"), 2, socket), 3, resource)
	if _, err := kubelet.Call(ctx, "/v1beta1.Registration/Register", request); err != nil {
		return fmt.Errorf("register %s: %w", resource, err)
	}
	fmt.Println("registered", resource)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// answers returns an implementation of the service DevicePlugin.
func answers(ids []string) rpc.Handler {
	return func(ctx context.Context, method string, message []byte, send func([]byte) error) error {
		switch method {
		case "/v1beta1.DevicePlugin/GetDevicePluginOptions":
			return send(nil)
		case "/v1beta1.DevicePlugin/ListAndWatch":
			if err := send(list(ids)); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		case "/v1beta1.DevicePlugin/Allocate":
			return allocate(message, send)
		}
		return &rpc.Error{Code: rpc.Unimplemented, Message: "unknown method " + method}
	}
}

// list returns a ListAndWatchResponse: devices = 1. Device: ID = 1, health = 2.
func list(ids []string) (message []byte) {
	for _, id := range ids {
		message = rpc.Message(message, 1, rpc.Text(rpc.Text(nil, 1, id), 2, "Healthy"))
	}
	return message
}

// allocate sends an AllocateResponse: container_responses = 1, one for each request.
func allocate(request []byte, send func([]byte) error) error {
	var reply []byte
	err := rpc.Fields(request, func(rpc.Field) error {
		reply = rpc.Message(reply, 1, nil)
		return nil
	})
	if err != nil {
		return err
	}
	return send(reply)
}
