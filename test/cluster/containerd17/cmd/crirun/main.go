// Command crirun speaks CRI to a container runtime, as a kubelet does and without one:
//
//	crirun [-image REF] [-cgroup PARENT] [-timeout 15s] SOCKET HANDLER  runs a pod sandbox with the handler, and
//	                                                                    removes it
//	crirun -config [-timeout 15s] SOCKET                                prints the configuration in memory, JSON
//
// HANDLER "" is the default. The sandbox has the node's network, so no CNI is needed. The last line on stdout is "ok"
// or the runtime's own words; with these the exit code is 1. SOCKET need not be there yet: a daemon that starts is
// waited for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	config := flag.Bool("config", false, "print the configuration in memory instead")
	image := flag.String("image", "", "wait until the runtime knows this `image`")
	cgroup := flag.String("cgroup", "", "parent `path` of the sandbox's cgroup")
	timeout := flag.Duration("timeout", 15*time.Second, "for all of it")
	flag.Parse()
	if want := map[bool]int{true: 1, false: 2}[*config]; flag.NArg() != want {
		flag.Usage()
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	conn, err := grpc.DialContext(ctx, "unix://"+flag.Arg(0), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond,
			},
			MinConnectTimeout: time.Second,
		}))
	if err == nil && *config {
		err = printConfig(ctx, cri.NewRuntimeServiceClient(conn))
	} else if err == nil {
		err = runSandbox(ctx, conn, flag.Arg(1), *image, *cgroup)
	}
	if err != nil {
		fmt.Println(status.Convert(err).Message())
		os.Exit(1)
	}
}

// printConfig prints what the runtime says of its configuration.
func printConfig(ctx context.Context, runtime cri.RuntimeServiceClient) error {
	answer, err := whenReady(ctx, runtime)
	if err != nil {
		return err
	}
	text, ok := answer.Info["config"]
	if !ok {
		return errors.New(`no "config" in the answer`)
	}
	fmt.Println(text)
	return nil
}

// whenReady asks for the status until the daemon has done with its start; "unknown service" is final, it has no CRI
// then.
func whenReady(ctx context.Context, runtime cri.RuntimeServiceClient) (*cri.StatusResponse, error) {
	for {
		answer, err := runtime.Status(ctx, &cri.StatusRequest{Verbose: true})
		if err == nil || !strings.Contains(err.Error(), "not initialized yet") {
			return answer, err
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

func runSandbox(ctx context.Context, conn *grpc.ClientConn, handler, image, cgroup string) error {
	runtime := cri.NewRuntimeServiceClient(conn)
	if _, err := whenReady(ctx, runtime); err != nil {
		return err
	}
	// An imported image reaches CRI's own list a moment later; until then the runtime would try to pull it.
	for image != "" {
		answer, err := cri.NewImageServiceClient(conn).ImageStatus(ctx,
			&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
		if err != nil {
			return err
		}
		if answer.Image != nil {
			break
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("image %s is not there: %w", image, err)
		}
	}
	sandbox, err := runtime.RunPodSandbox(ctx,
		&cri.RunPodSandboxRequest{RuntimeHandler: handler, Config: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{
				Name: "crirun", Namespace: "default", Uid: fmt.Sprint(os.Getpid(), time.Now().UnixNano()),
			},
			Linux: &cri.LinuxPodSandboxConfig{CgroupParent: cgroup, SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
			}},
		}})
	if err != nil {
		return err
	}
	if _, err := runtime.StopPodSandbox(
		ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox.PodSandboxId},
	); err != nil {
		return fmt.Errorf("stop the sandbox: %w", err)
	}
	if _, err := runtime.RemovePodSandbox(
		ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId},
	); err != nil {
		return fmt.Errorf("remove the sandbox: %w", err)
	}
	fmt.Println("ok")
	return nil
}

// pause lets a moment go by.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(20 * time.Millisecond):
		return nil
	}
}
