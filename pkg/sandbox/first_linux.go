package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// prepared is set when the program has called First. Without this call, the first process of a sandbox would be an
// ordinary run of the program.
var prepared atomic.Bool

// First is the sandbox's first process, which is this program executed again in the sandbox's namespaces. It opens the
// listeners, builds the file system, starts the program, and waits for all processes. Programs that create sandboxes
// must call First before anything else, with their arguments and streams, and exit with the returned code if inside is
// true. In all other processes, inside is false.
func First(args []string, out, errOut io.Writer) (code int, inside bool) {
	if len(args) != 2 || args[0] != name || os.Getpid() != 1 {
		prepared.Store(true)
		return 0, false
	}
	runtime.LockOSThread() // ptrace and inherited attributes belong to a thread
	talk := os.NewFile(3, "caller")
	// Descriptors that the caller inherited from its own parent must not reach the program.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err := first(talk, args[1], out, errOut); err != nil {
		_ = json.NewEncoder(talk).Encode(event{Error: err.Error()})
		_, _ = fmt.Fprintln(errOut, err)
		return 1, true
	}
	return 0, true
}

func first(talk *os.File, listeners string, out, errOut io.Writer) error {
	count, err := strconv.Atoi(listeners)
	if err != nil {
		return err
	}
	if err := loopback(); err != nil {
		return fmt.Errorf("enable the loopback interface: %w", err)
	}
	for range count {
		if err := send(talk); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	var given order
	orders := json.NewDecoder(talk)
	if err := orders.Decode(&given); err != nil {
		return err
	}
	go func() { // terminates with the caller
		var none order
		_ = orders.Decode(&none)
		unix.Exit(1)
	}()
	if err := files(given); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("sandbox")); err != nil {
		return err
	}
	return start(given, json.NewEncoder(talk), out, errOut)
}

// loopback enables the interface lo.
func loopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

// send opens a listener and passes it to the caller. A socket stays in the network namespace in which it was opened.
func send(to *os.File) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return unix.Sendmsg(int(to.Fd()), []byte{1}, unix.UnixRights(int(file.Fd())), nil, 0)
}

// devices are harmless.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

// files builds the program's file system and enters it.
func files(given order) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	const limit = "size=1g,mode=0755"
	if err := unix.Mount("tmpfs", given.Base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, limit); err != nil {
		return fmt.Errorf("mount the file system: %w", err)
	}
	hidden := map[string]bool{}
	for _, path := range given.Program.Hidden {
		if path, err := filepath.EvalSymlinks(path); err == nil {
			hidden[path] = true
		}
	}
	for _, path := range append(append([]string{}, System...), given.Program.Read...) {
		if err := show(given.Base, path); err != nil {
			return fmt.Errorf("show %s: %w", path, err)
		}
	}
	for _, path := range devices {
		if err := bind(path, given.Base+path, 0); err != nil {
			return fmt.Errorf("show %s: %w", path, err)
		}
	}
	for path := range hidden {
		if _, err := os.Stat(given.Base + path); err != nil {
			continue // not shown
		}
		if err := unix.Mount("/dev/null", given.Base+path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	if err := bind(given.Program.Own, given.Base+Dir, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		return fmt.Errorf("show %s: %w", Dir, err)
	}
	for _, path := range []string{"/tmp", "/dev/shm", "/proc", "/run", "/var/tmp", "/home", "/root"} {
		if err := os.MkdirAll(given.Base+path, 0o755); err != nil {
			return err
		}
	}
	for _, path := range []string{"/tmp", "/dev/shm", "/var/tmp"} {
		if err := os.Chmod(given.Base+path, 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, given.Base+link); err != nil {
			return err
		}
	}
	const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", given.Base+"/proc", "proc", plain, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return enter(given.Base)
}

// show makes a host directory readable at the same path. The system's symbolic links, such as /bin, are preserved.
func show(base, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 && filepath.Dir(path) == "/" {
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(to, base+path)
	}
	return bind(path, base+path, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// bind mounts from at to, including all mounts below it.
func bind(from, to string, attributes uint64) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
		err = os.WriteFile(to, nil, 0o644)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil || attributes == 0 {
		return err
	}
	return unix.MountSetattr(unix.AT_FDCWD, to, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attributes})
}

// enter makes base the root directory, and unmounts the host's root file system.
func enter(base string) error {
	if err := unix.Chdir(base); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter the file system: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("remove the host's file system: %w", err)
	}
	return unix.Chdir("/")
}

// confine limits what this thread and the processes that it starts may do.
func confine() error {
	// The session keyring belongs to the caller and may contain the caller's credentials.
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("leave the caller's keyring: %w", err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	if err := limit(os.Geteuid() == 0); err != nil {
		return fmt.Errorf("limit resources: %w", err)
	}
	if err := unreachable(); err != nil {
		return fmt.Errorf("protect the first process: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	if err := restrict(); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}

// start starts the program, and waits for the program and all other processes.
func start(given order, caller *json.Encoder, out, errOut io.Writer) error {
	if err := confine(); err != nil {
		return err
	}
	// A program that is run by a user other than root has only the capabilities in this set.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	dir := Dir
	if len(given.Program.Read) > 0 {
		dir = given.Program.Read[0]
	}
	attributes := &syscall.SysProcAttr{Setsid: true, Ptrace: true}
	if os.Geteuid() == 0 {
		attributes.Credential = &syscall.Credential{Uid: uint32(given.UID), Gid: uint32(given.UID)}
	}
	command := func() *exec.Cmd {
		return &exec.Cmd{
			Path: "/bin/sh", Args: []string{"sh", "-c", given.Program.Command}, Env: given.Program.Env, Dir: dir,
			Stdout: out, Stderr: errOut, SysProcAttr: attributes,
		}
	}
	cmd := command()
	err := cmd.Start()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		_ = caller.Encode(event{Unseen: "this machine does not permit ptrace: " + err.Error()})
		attributes.Ptrace = false
		cmd = command()
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	w := &watcher{main: cmd.Process.Pid, tell: caller, traced: attributes.Ptrace, began: map[int]bool{}}
	exit, err := w.wait()
	if err != nil {
		return err
	}
	return caller.Encode(event{Last: true, Exit: exit})
}

// commandLine returns the arguments of a process, truncated to a limit.
func commandLine(pid int) []string {
	text := readAtMost(fmt.Sprintf("/proc/%d/cmdline", pid), maxArgs+1)
	cut := len(text) > maxArgs
	if cut {
		text = text[:maxArgs]
	}
	args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
	for i, arg := range args {
		if !utf8.ValidString(arg) { // quoting keeps different bytes different
			args[i] = strconv.Quote(arg)
		}
	}
	if cut {
		args = append(args, "...")
	}
	return args
}

// program returns the path of the program that a process executes, regardless of its arguments.
func program(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return path
}

// readAtMost returns the beginning of a file, or nothing if the file cannot be read, because the process that it
// belongs to may have exited.
func readAtMost(path string, limit int64) []byte {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	text, _ := io.ReadAll(io.LimitReader(file, limit))
	return text
}

// parent returns the parent of a process.
func parent(pid int) int {
	text := readAtMost(fmt.Sprintf("/proc/%d/stat", pid), maxArgs)
	_, after, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ") // fields after the name
	fields := strings.Fields(after)
	if len(fields) < 2 {
		return 0
	}
	number, _ := strconv.Atoi(fields[1])
	return number
}
