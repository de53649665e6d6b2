// Package sandbox runs an untrusted program, such as an agent under test, on this machine. The program gets
// its own user, file system, processes and network:
//
//   - If the caller is root, it runs as a user that is not used for anything else on the machine; otherwise, it runs as
//     the caller, in a user namespace without capabilities. It cannot gain privileges.
//   - It sees the system's programs and the specified directories, both read-only, and its own directory. It sees no
//     home directory, no /run, and only its own processes.
//   - Its only network is the loopback interface, on which the caller serves what the program may access.
//
// When the program exits, all processes that it started are terminated. The sandbox uses ptrace to record which
// programs it executes.
//
// The sandbox uses the kernel's namespaces, as container runtimes do, but requires no container runtime. It is
// available
// only on Linux.
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

// Dir is the path of the program's own directory inside the sandbox.
const Dir = "/task"

// Program is a program to run.
type Program struct {
	Command string   // command for sh -c
	Env     []string // complete environment of the program
	// Own is the host directory that the program sees as Dir and can write to. The parent directory of Own must be
	// accessible only to the caller, so that no other user can use files that the program leaves in Own.
	Own string
	// Read lists host directories that the program may read at the same paths. The working directory is the first of
	// them, or Dir if there are none. See CheckRead.
	Read []string
	// Hidden are host files, such as kubeconfigs, that appear empty to the program. They may be in system directories,
	// but not in the directories in Read.
	Hidden []string
	Output io.Writer // receives the program's stdout and stderr
}

// Ran is a program that was executed in the sandbox.
type Ran struct {
	PID     int    `json:"pid"` // PID in the sandbox
	Parent  int    `json:"parent"`
	Program string `json:"program"` // path of the program, regardless of Args
	// Args is the command line. Long arguments are truncated, and those that are not valid UTF-8 are quoted.
	Args []string      `json:"args"`
	At   time.Duration `json:"at"`   // time since the start, in nanoseconds
	Took time.Duration `json:"took"` // in nanoseconds
	// Exit is the exit code, 128 + N if the program was terminated by signal N, or -1 if it was still running at the
	// end.
	Exit int `json:"exit"`
}

// Result is the outcome of the program.
type Result struct {
	Exit int // exit code; 128 + N after signal N; -1 if the program was stopped or did not start
	Took time.Duration
	Ran  []Ran
	// Omitted is the number of executed programs that are not in Ran.
	Omitted int
	// Unseen is the reason why executed programs were not recorded.
	Unseen string
}

// ErrUnavailable is returned if this machine cannot provide a sandbox.
var ErrUnavailable = errors.New("cannot isolate the program on this machine")

// Sandbox is an empty sandbox: its namespaces and listeners exist, but no program is running yet.
type Sandbox struct {
	// Listeners accept connections from inside the sandbox, at the addresses that they report.
	Listeners []net.Listener

	linux
}

// CheckRead returns an error if a directory is not safe to show to a program, because it contains one of the hidden
// files, or a socket or named pipe through which the program could reach a process outside.
func CheckRead(dir string, hidden []string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for _, file := range hidden {
		real, err := filepath.EvalSymlinks(file)
		if err != nil {
			continue // the path does not exist
		}
		if within, err := filepath.Rel(dir, real); err == nil && filepath.IsLocal(within) {
			return fmt.Errorf("%s is in %s, which the program may read: move the file", file, dir)
		}
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && path != dir:
			return nil // also unreadable for the program
		case err == nil && entry.Type()&(fs.ModeSocket|fs.ModeNamedPipe) != 0:
			return fmt.Errorf("%s is a socket or a named pipe: the program could reach another process through it", path)
		}
		return err
	})
}

// System lists the directories of the operating system, which are visible to every program in a sandbox.
var System = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store"}

const (
	maxRan  = 5000 // executed programs in a Result
	maxArgs = 4096 // bytes of one command line
)
