// Command simulated-device-plugin offers the simulated GPUs of its node to the
// kubelet as nvidia.com/gpu, as NVIDIA's device plugin does, so that capacity,
// allocatable and allocation are the kubelet's own. Device IDs are the UUIDs.
//
//	simulated-device-plugin [-gpus DIR] [-unhealthy FILE]
//
// FILE, if it exists, holds UUIDs or minors, one a line; those GPUs are reported as
// Unhealthy for as long as they stand there, the way NVIDIA's plugin does after an XID.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	socket   = "nvidia-gpu.sock" // the name that NVIDIA's plugin uses
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	gpus, unhealthy string
}

func main() {
	p := &plugin{}
	flag.StringVar(&p.gpus, "gpus", "/proc/driver/nvidia/gpus", "what the driver shows of its GPUs")
	flag.StringVar(&p.unhealthy, "unhealthy", "", "file that names the unhealthy ones")
	flag.Parse()
	for { // register again whenever the kubelet, on a restart, has removed the socket
		if err := p.serve(); err != nil {
			log.Print(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// devices reads the GPUs anew each time: one that leaves /proc is gone.
func (p *plugin) devices() []*api.Device {
	var bad []string
	if b, err := os.ReadFile(p.unhealthy); err == nil {
		bad = strings.Fields(string(b))
	}
	files, _ := filepath.Glob(filepath.Join(p.gpus, "*", "information"))
	slices.Sort(files)
	var out []*api.Device
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		d := &api.Device{ID: value(text, "GPU UUID"), Health: api.Healthy}
		if slices.Contains(bad, d.ID) || slices.Contains(bad, value(text, "Device Minor")) {
			d.Health = api.Unhealthy
		}
		out = append(out, d)
	}
	return out
}

// value returns what follows "key:" in an information file.
func value(text []byte, key string) string {
	for line := range bytes.Lines(text) {
		if v, ok := bytes.CutPrefix(line, []byte(key+":")); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, s api.DevicePlugin_ListAndWatchServer) error {
	last := "nothing sent yet"
	for ; s.Context().Err() == nil; time.Sleep(500 * time.Millisecond) {
		d := p.devices()
		if now := fmt.Sprint(d); now != last {
			last = now
			log.Printf("devices: %s", now)
			if err := s.Send(&api.ListAndWatchResponse{Devices: d}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	out := &api.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		ids := strings.Join(c.DevicesIds, ",")
		log.Printf("allocate %s", ids)
		out.ContainerResponses = append(out.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": ids},
		})
	}
	return out, nil
}

func (p *plugin) serve() error {
	path := filepath.Join(api.DevicePluginPath, socket)
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	api.RegisterDevicePluginServer(srv, p)
	go srv.Serve(l) //nolint:errcheck // ends with Stop
	defer srv.Stop()

	conn, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: socket, ResourceName: resource, Options: &api.DevicePluginOptions{},
	}); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	log.Printf("registered %s", resource)
	for {
		time.Sleep(500 * time.Millisecond)
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the kubelet restarted: %w", err)
		}
	}
}
