package sandbox

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// auditArch identifies the architecture's own system calls, so that system calls of a 32-bit ABI are rejected.
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// x32 marks the system calls of the x32 ABI on amd64.
const x32 = 0x40000000

// A rule of the filter makes a system call fail with an error, either always or depending on its first argument.
type rule struct {
	call  uint32
	errno unix.Errno
	// mask rejects calls whose first argument contains one of these bits. The list in only contains the accepted values
	// of the first argument: calls with any other value are rejected. If both are empty, all calls are rejected.
	mask uint32
	only []uint32
}

// refused are the system calls with which a program could avoid being recorded, gain capabilities in its own namespace,
// forge another program's arguments, or reach something outside the sandbox that namespaces do not isolate.
var refused = []rule{
	// ptrace does not follow processes that are created untraced. In its own user namespace, the program would have
	// root privileges in large parts of the kernel.
	{call: unix.SYS_CLONE, errno: unix.EPERM, mask: unix.CLONE_UNTRACED | unix.CLONE_NEWUSER},
	// The flags of clone3 are in memory and cannot be checked. Libraries use clone instead.
	{call: unix.SYS_CLONE3, errno: unix.ENOSYS},
	{call: unix.SYS_UNSHARE, errno: unix.EPERM, mask: unix.CLONE_NEWUSER},
	{call: unix.SYS_SETNS, errno: unix.EPERM},
	// The first process itself needs these calls. All processes in the sandbox are already traced.
	{
		call: unix.SYS_PTRACE, errno: unix.EPERM,
		only: []uint32{unix.PTRACE_TRACEME, unix.PTRACE_CONT, unix.PTRACE_SETOPTIONS},
	},
	{call: unix.SYS_PROCESS_VM_WRITEV, errno: unix.EPERM},
	{call: unix.SYS_PERSONALITY, errno: unix.EPERM, only: []uint32{0, 0xffffffff}}, // the second value only reads
	{call: unix.SYS_PRLIMIT64, errno: unix.EPERM, only: []uint32{0}},               // limits of other processes
	{call: unix.SYS_KEYCTL, errno: unix.EPERM},
	{call: unix.SYS_ADD_KEY, errno: unix.EPERM},
	{call: unix.SYS_REQUEST_KEY, errno: unix.EPERM},
	{
		call: unix.SYS_SOCKET, errno: unix.EAFNOSUPPORT, // for example vsock, which has no namespaces
		only: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK},
	},
	{call: unix.SYS_IO_URING_SETUP, errno: unix.ENOSYS}, // its operations bypass this filter
	{call: unix.SYS_BPF, errno: unix.EPERM},
	{call: unix.SYS_PERF_EVENT_OPEN, errno: unix.EPERM},
	{call: unix.SYS_USERFAULTFD, errno: unix.EPERM},
}

// Offsets in struct seccomp_data: number, architecture, and the low half of the first argument (little-endian).
const offsetCall, offsetArch, offsetFirst = 0, 4, 16

// filter returns the filter as a classic BPF program.
func filter(arch uint32) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	jump := func(test uint16, k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: k, Jt: uint8(yes), Jf: uint8(no)}
	}
	give := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	fail := func(errno unix.Errno) unix.SockFilter { return give(unix.SECCOMP_RET_ERRNO | uint32(errno)) }
	allow := give(unix.SECCOMP_RET_ALLOW)
	program := []unix.SockFilter{
		load(offsetArch), jump(unix.BPF_JEQ, arch, 1, 0), fail(unix.EPERM),
		load(offsetCall), jump(unix.BPF_JGE, x32, 0, 1), fail(unix.EPERM),
	}
	for _, r := range refused {
		var body []unix.SockFilter
		switch {
		case r.mask != 0:
			body = []unix.SockFilter{
				load(offsetFirst), jump(unix.BPF_JSET, r.mask, 0, 1), fail(r.errno), allow,
			}
		case len(r.only) > 0:
			body = append(body, load(offsetFirst))
			for i, value := range r.only {
				body = append(body, jump(unix.BPF_JEQ, value, len(r.only)-i, 0))
			}
			body = append(body, fail(r.errno), allow)
		default:
			body = []unix.SockFilter{fail(r.errno)}
		}
		program = append(append(program, jump(unix.BPF_JEQ, r.call, 0, len(body))), body...)
	}
	return append(program, allow)
}

// restrict rejects system calls from this thread, and from all processes that it starts.
func restrict() error {
	arch, is := auditArch[runtime.GOARCH]
	if !is {
		return errors.New("no system call filter for " + runtime.GOARCH)
	}
	program := filter(arch)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

// unreachable makes this process, which is the first one, unreachable for the program if both run as the same user: the
// program can neither terminate it with a signal, nor read or change it.
func unreachable() error {
	// The kernel drops signals that are sent from inside the sandbox to the first process if the first process has no
	// handler for them. Its handlers are those of the Go runtime, which needs only the one for SIGURG.
	var none struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	const last = 64
	for signal := unix.Signal(1); signal <= last; signal++ {
		if signal == unix.SIGURG || signal == unix.SIGKILL || signal == unix.SIGSTOP {
			continue
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(&none)), 0, 8,
			0, 0)
		if errno != 0 {
			return errno
		}
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// Limits for the program. Its total memory is not limited, because that would require a control group. If memory is
// short, the kernel kills the program first.
const (
	maxFile      = 1 << 30 // bytes
	maxProcesses = 4096    // only if the program has its own user
)

func limit(ownUser bool) error {
	limits := map[int]uint64{unix.RLIMIT_FSIZE: maxFile, unix.RLIMIT_CORE: 0}
	if ownUser {
		limits[unix.RLIMIT_NPROC] = maxProcesses
	}
	for what, most := range limits {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	return nil
}
