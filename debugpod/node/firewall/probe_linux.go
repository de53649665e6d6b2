package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// podNetworks is the prober of a node.
type podNetworks struct {
	proc      string
	processOf func(podUID string) int
}

// dir returns the directory in /proc of a process of the pod.
func (n podNetworks) dir(pod api.PartitionedPod) (string, error) {
	pid := n.processOf(pod.UID)
	if pid == 0 {
		return "", errors.New("no process of the pod runs on the node")
	}
	return filepath.Join(n.proc, strconv.Itoa(pid)), nil
}

func (n podNetworks) check(pod api.PartitionedPod) error {
	dir, err := n.dir(pod)
	if err != nil {
		return err
	}
	own, err := os.Readlink(filepath.Join(dir, "ns/net"))
	if err != nil {
		return fmt.Errorf("find the network of the pod: %w", err)
	}
	if node, err := os.Readlink(filepath.Join(n.proc, "1/ns/net")); err != nil || node == own {
		return errors.New("the pod has no network of its own")
	}
	return nil
}

func (n podNetworks) resolvers(pod api.PartitionedPod) []netip.Addr {
	dir, err := n.dir(pod)
	if err != nil {
		return nil
	}
	text, _ := hostfs.FS(filepath.Join(dir, "root")).Text("/etc/resolv.conf", maxResolvConf)
	return parseResolvers(text)
}

// maxResolvConf is the part of resolv.conf that is read, in bytes.
const maxResolvConf = 64 << 10

func (n podNetworks) send(pod api.PartitionedPod, p packet) error {
	dir, err := n.dir(pod)
	if err != nil {
		return err
	}
	space, err := os.Open(filepath.Join(dir, "ns/net"))
	if err != nil {
		return fmt.Errorf("enter the network of the pod: %w", err)
	}
	defer func() { _ = space.Close() }()
	done := make(chan error, 1)
	go func() {
		// The thread is never unlocked, so it ends with the goroutine and its namespace with it.
		runtime.LockOSThread()
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network of the pod: %w", err)
			return
		}
		done <- p.send(pod.Addresses)
	}()
	return <-done
}

// send sends the packet from this thread's network namespace, which must have one of the addresses.
func (p packet) send(from []netip.Addr) error {
	family, kind := unix.AF_INET, unix.SOCK_DGRAM
	var to unix.Sockaddr
	if p.to.Addr().Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(p.to.Port()), Addr: p.to.Addr().As16()}
	} else {
		to = &unix.SockaddrInet4{Port: int(p.to.Port()), Addr: p.to.Addr().As4()}
	}
	if p.tcp {
		kind = unix.SOCK_STREAM
	}
	socket, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("create a socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.Connect(socket, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	local, err := unix.Getsockname(socket)
	if err != nil {
		return err
	}
	if address := addressOf(local); !slices.Contains(from, address) {
		return fmt.Errorf("the pod would send it from %s, which is not an address of the pod", address)
	}
	if p.tcp {
		return nil
	}
	_, err = unix.Write(socket, nil)
	return err
}

func addressOf(s unix.Sockaddr) netip.Addr {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(s.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(s.Addr)
	}
	return netip.Addr{}
}
