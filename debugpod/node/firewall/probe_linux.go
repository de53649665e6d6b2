package firewall

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// podNetworks is the prober for a node.
type podNetworks struct {
	proc        string
	processesOf func(podUIDs []string) map[string]int
	known       map[string]podProcess // processes by pod UID
}

// podProcess is a process in a pod.
type podProcess struct {
	dir     string // in /proc
	network string // ID of the network namespace
}

func newPodNetworks(proc string, processesOf func(podUIDs []string) map[string]int) podNetworks {
	return podNetworks{proc: proc, processesOf: processesOf, known: map[string]podProcess{}}
}

func (n podNetworks) locate(pods []api.PartitionedPod) (missing []string) {
	var uids []string
	for _, pod := range pods {
		uids = append(uids, pod.UID)
	}
	pids := n.processesOf(uids)
	for _, pod := range pods {
		dir := filepath.Join(n.proc, strconv.Itoa(pids[pod.UID]))
		network, err := os.Readlink(filepath.Join(dir, "ns/net"))
		if pids[pod.UID] == 0 || err != nil {
			missing = append(missing, "pod "+pod.Name)
			continue
		}
		n.known[pod.UID] = podProcess{dir, network}
	}
	return missing
}

// process returns a process in the pod. It searches again if the process has exited, even if another process has its
// PID.
func (n podNetworks) process(pod api.PartitionedPod) (podProcess, error) {
	p, ok := n.known[pod.UID]
	if network, err := os.Readlink(filepath.Join(p.dir, "ns/net")); ok && err == nil && network == p.network {
		return p, nil
	}
	if len(n.locate([]api.PartitionedPod{pod})) > 0 {
		return podProcess{}, errors.New("no process of the pod is running on the node")
	}
	return n.known[pod.UID], nil
}

func (n podNetworks) check(pod api.PartitionedPod) error {
	p, err := n.process(pod)
	if err != nil {
		return err
	}
	if node, err := os.Readlink(filepath.Join(n.proc, "1/ns/net")); err != nil || node == p.network {
		return errors.New("the pod does not have its own network")
	}
	return nil
}

func (n podNetworks) resolvers(pod api.PartitionedPod) []netip.Addr {
	p, err := n.process(pod)
	if err != nil {
		return nil
	}
	text, _ := hostfs.FS(filepath.Join(p.dir, "root")).Text("/etc/resolv.conf", maxResolvConf)
	return parseResolvers(text)
}

// maxResolvConf is the maximum number of bytes to read from resolv.conf.
const maxResolvConf = 64 << 10

func (n podNetworks) send(pod api.PartitionedPod, p packet) error {
	return n.within(pod, func() error {
		socket, err := p.open(pod.Addresses)
		if err != nil {
			return err
		}
		return unix.Close(socket)
	})
}

func (n podNetworks) answer(pod api.PartitionedPod, p packet, limit time.Duration) (took time.Duration, _ error) {
	return took, n.within(pod, func() error {
		begin := time.Now()
		socket, err := p.open(pod.Addresses)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(socket) }()
		waiting := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLOUT}}
		for {
			left := time.Until(begin.Add(limit))
			count, err := unix.Poll(waiting, int(max(left, 0)/time.Millisecond))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			took = time.Since(begin)
			if err != nil || count == 0 {
				return cmp.Or(err, errNoAnswer)
			}
			break
		}
		// A peer without a server on this port also responds.
		state, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ERROR)
		if failure := unix.Errno(state); err == nil && state != 0 && failure != unix.ECONNREFUSED {
			err = failure
		}
		return err
	})
}

// within calls f in a pod's network namespace.
func (n podNetworks) within(pod api.PartitionedPod, f func() error) error {
	process, err := n.process(pod)
	if err != nil {
		return err
	}
	space, err := os.Open(filepath.Join(process.dir, "ns/net"))
	if err != nil {
		return fmt.Errorf("enter the pod's network namespace: %w", err)
	}
	defer func() { _ = space.Close() }()
	done := make(chan error, 1)
	go func() {
		// The thread is never unlocked, so it terminates with the goroutine, and no other goroutine runs in the pod's
		// namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the pod's network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// open sends the packet from this thread's network namespace, which must have the first address of the packet's family.
// It returns the socket.
func (p packet) open(from []netip.Addr) (_ int, failure error) {
	own := slices.IndexFunc(from, func(a netip.Addr) bool { return a.Is6() == p.to.Addr().Is6() })
	if own < 0 {
		return 0, errors.New("the pod has no address of this family")
	}
	family, kind := unix.AF_INET, unix.SOCK_DGRAM
	if p.to.Addr().Is6() {
		family = unix.AF_INET6
	}
	if p.tcp {
		kind = unix.SOCK_STREAM
	}
	socket, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("create a socket: %w", err)
	}
	defer func() {
		if failure != nil {
			_ = unix.Close(socket)
		}
	}()
	// If this is another pod's namespace, the kernel rejects the address, and nothing is sent.
	if err := unix.Bind(socket, sockaddr(netip.AddrPortFrom(from[own], 0))); err != nil {
		return 0, fmt.Errorf("the pod's network does not have the address %s: %w", from[own], err)
	}
	err = unix.Connect(socket, sockaddr(p.to))
	switch {
	case errors.Is(err, unix.EINPROGRESS): // the first packet of the TCP connection has been sent
		return socket, nil
	case err == nil && !p.tcp:
		_, err = unix.Write(socket, nil)
	}
	return socket, err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}
