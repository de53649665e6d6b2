package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// linux is the caller's side of a sandbox: its first process, and the connection to it.
type linux struct {
	first *exec.Cmd
	talk  *net.UnixConn
	uid   int // user ID of the program
	base  string
	out   *output
	done  chan struct{} // closed when the first process has exited
}

// name is the first argument of the sandbox's first process, which is also an instance of this program; see First.
const name = "gpu-fault-sandbox"

// order is the message that the caller sends to the first process after the listeners have been opened.
type order struct {
	Base    string
	UID     int
	Program Program
}

// event is a message from the first process to the caller: the sandbox is ready, a program was executed or exited, or
// the sandbox has ended.
type event struct {
	Error  string `json:",omitempty"`
	Unseen string `json:",omitempty"`
	Began  *Ran   `json:",omitempty"`
	Ended  *Ran   `json:",omitempty"` // PID, At and Exit
	Last   bool   `json:",omitempty"`
	Exit   int
}

// New creates an empty sandbox with the given number of listeners. Close removes it.
func New(listeners int) (*Sandbox, error) {
	if !prepared.Load() {
		return nil, errors.New("this program does not call sandbox.First")
	}
	base, err := os.MkdirTemp("", "sandbox-")
	if err != nil {
		return nil, err
	}
	s := &Sandbox{linux: linux{base: base, out: new(output), done: make(chan struct{})}}
	if err := s.begin(listeners); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, err), s.Close())
	}
	return s, nil
}

// begin starts the first process and receives its listeners.
func (s *Sandbox) begin(listeners int) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("create sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "sandbox"), os.NewFile(uintptr(pair[1]), "sandbox")
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	connection, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	s.talk = connection.(*net.UnixConn)

	s.first = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{name, strconv.Itoa(listeners)}, Env: []string{"GOMAXPROCS=2"},
		Dir: "/", Stdout: s.out, Stderr: s.out, ExtraFiles: []*os.File{theirs}, WaitDelay: 2 * time.Second,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
				unix.CLONE_NEWUTS,
		},
	}
	if os.Geteuid() == 0 {
		s.uid, err = unused()
	} else {
		s.uid, err = os.Geteuid(), nil
		asUser(s.first.SysProcAttr)
	}
	if err != nil {
		return err
	}
	if err := s.first.Start(); err != nil {
		s.first = nil
		return fmt.Errorf("create namespaces: %w", err)
	}
	go func() {
		defer close(s.done)
		_ = s.first.Wait()
	}()
	for range listeners {
		listener, err := receive(s.talk)
		if err != nil {
			_ = s.talk.SetReadDeadline(time.Now().Add(time.Second))
			return fmt.Errorf("open the sandbox's network: %w: %s", err, s.out.early())
		}
		s.Listeners = append(s.Listeners, listener)
	}
	return nil
}

// asUser allows a user other than root to create the namespaces, in a user namespace that contains one user. The first
// process may mount file systems in it, but the program that it starts may not.
func asUser(attributes *syscall.SysProcAttr) {
	attributes.Cloneflags |= unix.CLONE_NEWUSER
	attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	attributes.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SYS_PTRACE}
}

// unused returns a user ID that belongs to no user and no process, from the range that systemd uses for its own
// transient users: https://systemd.io/UIDS-GIDS.
func unused() (int, error) {
	used := map[int]bool{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		var info unix.Stat_t
		if unix.Stat(process, &info) == nil {
			used[int(info.Uid)] = true
		}
	}
	const low, high = 61184, 65519
	start := os.Getpid() % (high - low + 1) // so that two commands choose different IDs
	for i := range high - low + 1 {
		uid := low + (start+i)%(high-low+1)
		if _, err := user.LookupId(strconv.Itoa(uid)); err != nil && !used[uid] {
			return uid, nil
		}
	}
	return 0, errors.New("no unused user ID from 61184 to 65519")
}

// receive reads a listener from the socket.
func receive(from *net.UnixConn) (net.Listener, error) {
	_ = from.SetReadDeadline(time.Now().Add(20 * time.Second))
	defer func() { _ = from.SetReadDeadline(time.Time{}) }()
	one, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, k, _, _, err := from.ReadMsgUnix(one, rights)
	if err != nil || n == 0 {
		return nil, errors.Join(errors.New("the first process exited"), err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:k])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("no listener"), err)
	}
	files, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(files) != 1 {
		return nil, errors.Join(errors.New("no listener"), err)
	}
	unix.CloseOnExec(files[0])
	file := os.NewFile(uintptr(files[0]), "listener")
	defer func() { _ = file.Close() }()
	return net.FileListener(file)
}

// Run runs the program until it exits or ctx is done, and terminates all its processes. A sandbox runs only one
// program.
func (s *Sandbox) Run(ctx context.Context, program Program) (Result, error) {
	result := Result{Exit: -1}
	began := time.Now()
	stop := context.AfterFunc(ctx, func() { _ = s.kill() })
	defer stop()
	defer func() { result.Took = time.Since(began) }()
	for _, dir := range program.Read {
		if err := CheckRead(dir, program.Hidden); err != nil {
			return result, err
		}
	}
	if os.Geteuid() == 0 {
		if err := own(program.Own, s.uid); err != nil {
			return result, fmt.Errorf("change the owner of the program's directory: %w", err)
		}
	}
	s.out.to(program.Output)
	sent := program
	sent.Output = nil
	if err := json.NewEncoder(s.talk).Encode(order{s.base, s.uid, sent}); err != nil {
		return result, fmt.Errorf("start the program: %w", err)
	}
	index := map[int]int{} // the last entry of Ran with this PID
	for reader := json.NewDecoder(s.talk); ; {
		var e event
		if err := reader.Decode(&e); err != nil {
			if ctx.Err() == nil {
				return result, fmt.Errorf("the sandbox ended unexpectedly: %w", err)
			}
			break
		}
		if e.Error != "" {
			return result, fmt.Errorf("start the program: %s", e.Error)
		}
		result.add(e, index)
		if e.Last {
			result.Exit = e.Exit
			break
		}
	}
	err := s.kill()
	<-s.done // wait until all processes have exited
	result.Took = time.Since(began)
	return result, err
}

// add adds the content of an event to the result.
func (r *Result) add(e event, index map[int]int) {
	switch {
	case e.Unseen != "":
		r.Unseen = e.Unseen
	case e.Began != nil:
		if last, is := index[e.Began.PID]; is && r.Ran[last].Exit == -1 { // the process executed another program
			r.Ran[last].Took, r.Ran[last].Exit = e.Began.At-r.Ran[last].At, 0
		}
		if len(r.Ran) == maxRan {
			r.Omitted++
			delete(index, e.Began.PID)
			return
		}
		index[e.Began.PID] = len(r.Ran)
		r.Ran = append(r.Ran, *e.Began)
	case e.Ended != nil:
		if last, is := index[e.Ended.PID]; is {
			r.Ran[last].Took, r.Ran[last].Exit = e.Ended.At-r.Ran[last].At, e.Ended.Exit
			delete(index, e.Ended.PID)
		}
	}
}

// own changes the owner of a directory and the files in it to the user.
func own(dir string, uid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, root.Lchown(path, uid, uid))
	})
}

// kill terminates the first process, and therefore all others, because the kernel kills all processes in a PID
// namespace when the first one exits.
func (s *Sandbox) kill() error {
	if s.first == nil {
		return nil
	}
	if err := s.first.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Close terminates everything in the sandbox and removes it.
func (s *Sandbox) Close() error {
	err := s.kill()
	if s.first != nil {
		<-s.done
	}
	for _, listener := range s.Listeners {
		_ = listener.Close()
	}
	if s.talk != nil {
		_ = s.talk.Close()
	}
	return errors.Join(err, os.RemoveAll(s.base))
}

// output passes on the output of the processes, and buffers output that was written before there was a destination.
type output struct {
	mu   sync.Mutex
	w    io.Writer
	kept []byte
}

func (o *output) to(w io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.w = w
}

func (o *output) early() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.kept)
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.w != nil:
		return o.w.Write(p)
	case len(o.kept) < 4096:
		o.kept = append(o.kept, p...)
	}
	return len(p), nil
}
