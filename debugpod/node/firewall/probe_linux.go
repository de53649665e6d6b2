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
	proc        string
	processesOf func(podUIDs []string) map[string]int
	known       map[string]podProcess // by UID of the pod
}

// podProcess is a process of a pod.
type podProcess struct {
	dir     string // in /proc
	network string // the ID of its network namespace
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

// process returns a process of the pod. It searches again if the process has ended, even if another one has its PID.
func (n podNetworks) process(pod api.PartitionedPod) (podProcess, error) {
	p, ok := n.known[pod.UID]
	if network, err := os.Readlink(filepath.Join(p.dir, "ns/net")); ok && err == nil && network == p.network {
		return p, nil
	}
	if len(n.locate([]api.PartitionedPod{pod})) > 0 {
		return podProcess{}, errors.New("no process of the pod runs on the node")
	}
	return n.known[pod.UID], nil
}

func (n podNetworks) check(pod api.PartitionedPod) error {
	p, err := n.process(pod)
	if err != nil {
		return err
	}
	if node, err := os.Readlink(filepath.Join(n.proc, "1/ns/net")); err != nil || node == p.network {
		return errors.New("the pod has no network of its own")
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

// maxResolvConf is the part of resolv.conf that is read, in bytes.
const maxResolvConf = 64 << 10

func (n podNetworks) send(pod api.PartitionedPod, p packet) error {
	process, err := n.process(pod)
	if err != nil {
		return err
	}
	space, err := os.Open(filepath.Join(process.dir, "ns/net"))
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

// send sends the packet from this thread's network namespace, which must have the first of the addresses of the
// packet's family.
func (p packet) send(from []netip.Addr) error {
	own := slices.IndexFunc(from, func(a netip.Addr) bool { return a.Is6() == p.to.Addr().Is6() })
	if own < 0 {
		return errors.New("the pod has no address of this family")
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
		return fmt.Errorf("create a socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	// In the namespace of another pod, the kernel rejects the address, and nothing is sent.
	if err := unix.Bind(socket, sockaddr(netip.AddrPortFrom(from[own], 0))); err != nil {
		return fmt.Errorf("the network of the pod does not have the address %s: %w", from[own], err)
	}
	err = unix.Connect(socket, sockaddr(p.to))
	switch {
	case errors.Is(err, unix.EINPROGRESS): // the first packet of the TCP connection is on its way
		return nil
	case err == nil && !p.tcp:
		_, err = unix.Write(socket, nil)
	}
	return err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}
