// Package sandbox runs a program that is not trusted, such as an agent under test, on this machine. The program gets
// its own user, file system, processes and network:
//
//   - It runs as a user that exists nowhere else on the machine, if the caller is root; otherwise as the caller, in a
//     user namespace without capabilities. It cannot gain privileges.
//   - It sees the system's programs and the directories that it is given, both read-only, and one directory of its
//     own. It sees no home directory, no /run, and only its own processes.
//   - Its only network is the loopback interface, on which the caller serves what the program may reach.
//
// All its processes end with it. The sandbox records which programs it executes, by ptrace.
//
// The sandbox consists of the kernel's namespaces, as container runtimes use them. A container runtime itself is not
// needed. It exists on Linux only.
package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"time"
)

// Dir is the program's own directory, as the program sees it.
const Dir = "/task"

// Program is a program to run.
type Program struct {
	Command string   // for sh -c
	Env     []string // its whole environment
	// Own is the host directory that the program sees as Dir and may write. Only the caller may be able to enter the
	// directory that contains it, so that no other user can use what the program leaves there.
	Own string
	// Read are host directories that the program may read, under the same path; its working directory is the first, or
	// Dir. See CheckRead.
	Read []string
	// Hidden are host files, such as kubeconfigs, that are empty for the program. They may be in directories of the
	// system, but not in those of Read.
	Hidden []string
	Output io.Writer // of the program: stdout and stderr
}

// Ran is a program that was executed in the sandbox.
type Ran struct {
	PID     int    `json:"pid"` // in the sandbox
	Parent  int    `json:"parent"`
	Program string `json:"program"` // its path, whatever Args say
	// Args is the command line; long ones are cut, and those that are not text are quoted.
	Args []string      `json:"args"`
	At   time.Duration `json:"at"`   // since the start, in nanoseconds
	Took time.Duration `json:"took"` // in nanoseconds
	// Exit is the exit code; 128 + N if signal N ended the program; -1 if it still ran at the end.
	Exit int `json:"exit"`
}

// Result is what became of the program.
type Result struct {
	Exit int // exit code; 128 + N after signal N; -1 if it was stopped or did not start
	Took time.Duration
	Ran  []Ran
	// Omitted counts executed programs that are not in Ran.
	Omitted int
	// Unseen is why executed programs were not recorded.
	Unseen string
}

// ErrUnavailable is returned where this machine cannot provide a sandbox.
var ErrUnavailable = errors.New("cannot isolate the program on this machine")

// Sandbox is an empty sandbox: its namespaces and listeners exist, but no program runs yet.
type Sandbox struct {
	// Listeners accept connections from inside the sandbox, at the addresses that they report.
	Listeners []net.Listener

	linux
}

// CheckRead returns an error if a directory is not safe to show to a program: if it contains one of the hidden files, a
// socket or a named pipe, through which the program could reach a process outside.
func CheckRead(dir string, hidden []string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for _, file := range hidden {
		real, err := filepath.EvalSymlinks(file)
		if err != nil {
			continue // does not exist
		}
		if within, err := filepath.Rel(dir, real); err == nil && filepath.IsLocal(within) {
			return fmt.Errorf("%s is in %s, which the program may read: move it", file, dir)
		}
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && path != dir:
			return nil // unreadable: for the program too
		case err == nil && entry.Type()&(fs.ModeSocket|fs.ModeNamedPipe) != 0:
			return fmt.Errorf("%s is a socket or a named pipe: the program could reach another process through it", path)
		}
		return err
	})
}

// System are the directories of the operating system, which every program in a sandbox sees.
var System = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store"}

const (
	maxRan  = 5000 // executed programs in a Result
	maxArgs = 4096 // bytes of one command line
)
