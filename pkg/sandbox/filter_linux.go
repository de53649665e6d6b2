package sandbox

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// auditArch identifies the architecture's own system calls, so that those of a 32-bit ABI are refused.
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// x32 marks the system calls of the x32 ABI on amd64.
const x32 = 0x40000000

// A rule of the filter: a system call that fails with an error, always or depending on its first argument.
type rule struct {
	call  uint32
	errno unix.Errno
	// mask refuses calls whose first argument has one of these bits; only refuses those whose first argument is none of
	// these. If both are empty, all calls are refused.
	mask uint32
	only []uint32
}

// refused are the system calls with which a program could avoid being recorded, gain capabilities in a namespace of its
// own, forge the arguments of another program, or reach something outside that namespaces do not separate.
var refused = []rule{
	// ptrace does not follow untraced processes. In a user namespace, the program would be root over large parts of the
	// kernel.
	{call: unix.SYS_CLONE, errno: unix.EPERM, mask: unix.CLONE_UNTRACED | unix.CLONE_NEWUSER},
	// Its flags are in memory, and cannot be checked. Libraries use clone then.
	{call: unix.SYS_CLONE3, errno: unix.ENOSYS},
	{call: unix.SYS_UNSHARE, errno: unix.EPERM, mask: unix.CLONE_NEWUSER},
	{call: unix.SYS_SETNS, errno: unix.EPERM},
	// What the first process itself needs; all processes of the sandbox are traced already.
	{
		call: unix.SYS_PTRACE, errno: unix.EPERM,
		only: []uint32{unix.PTRACE_TRACEME, unix.PTRACE_CONT, unix.PTRACE_SETOPTIONS},
	},
	{call: unix.SYS_PROCESS_VM_WRITEV, errno: unix.EPERM},
	{call: unix.SYS_PERSONALITY, errno: unix.EPERM, only: []uint32{0, 0xffffffff}}, // the latter only reads
	{call: unix.SYS_PRLIMIT64, errno: unix.EPERM, only: []uint32{0}},               // of other processes
	{call: unix.SYS_KEYCTL, errno: unix.EPERM},
	{call: unix.SYS_ADD_KEY, errno: unix.EPERM},
	{call: unix.SYS_REQUEST_KEY, errno: unix.EPERM},
	{
		call: unix.SYS_SOCKET, errno: unix.EAFNOSUPPORT, // such as vsock, which has no namespaces
		only: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK},
	},
	{call: unix.SYS_IO_URING_SETUP, errno: unix.ENOSYS}, // its operations pass by this filter
	{call: unix.SYS_BPF, errno: unix.EPERM},
	{call: unix.SYS_PERF_EVENT_OPEN, errno: unix.EPERM},
	{call: unix.SYS_USERFAULTFD, errno: unix.EPERM},
}

// Offsets in struct seccomp_data: number, architecture, and the low half of the first argument (little-endian).
const offsetCall, offsetArch, offsetFirst = 0, 4, 16

// filter returns the program in classic BPF.
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

// restrict refuses system calls to this thread, and to all processes that it starts.
func restrict() error {
	arch, is := auditArch[runtime.GOARCH]
	if !is {
		return errors.New("no filter of system calls for " + runtime.GOARCH)
	}
	program := filter(arch)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

// unreachable makes this process, the first one, unreachable for the program where both have the same user: the program
// cannot end it by a signal, and cannot read or change it.
func unreachable() error {
	// The kernel drops signals to the first process for which it has no handler, if they come from inside. The handlers
	// are those of the Go runtime, which needs only that of SIGURG.
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

// Limits of the program. Its memory as a whole is not limited, because that requires a control group; if memory is
// short, the kernel ends it first.
const (
	maxFile      = 1 << 30 // bytes
	maxProcesses = 4096    // if it has a user of its own
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
