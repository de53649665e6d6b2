//go:build linux

package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// Host is the environment of a dead man's switch. Node returns the Host for real nodes.
type Host struct {
	Root    string // directory from which paths are opened; see walk
	Dir     string // directory of the records
	Units   string // directory of the administrator's systemd units
	Systemd string // path that exists if systemd is PID 1
	Logs    string // logs of services without a journal
	Proc    string
	// Configs are patterns for directories that may contain prepared files.
	Configs []string
	// Foreign are paths that other fault injectors leave behind.
	Foreign []string

	// Run runs a command, and returns its combined output.
	Run func(ctx context.Context, name string, args ...string) (string, error)
	// Inspect determines the kubelet's container runtime. It is called only before a change.
	Inspect func(ctx context.Context) (Runtime, error)
	// Ask returns the status of the service behind a CRI socket.
	Ask func(ctx context.Context, socket string) (*cri.Info, error)
	// ConfigSum returns the checksum of a configuration reported by CRI.
	ConfigSum func(config []byte) string
	// Program is the path of this program. Env contains the environment variables to set when it is started again.
	Program string
	Env     []string
	// LeaveCgroup moves this process out of its pod's cgroups.
	LeaveCgroup func() error
	// Key is the key of encrypted records. It is nil if records are not encrypted. See encrypt.
	Key []byte
	// Log is the log of the dead man's switch. If it is nil, the log is discarded.
	Log io.Writer
	// Passed, if set, is called at certain points. Tests terminate the process at these points.
	Passed func(point string)

	times times
	// oldKernel simulates a kernel without openat2(2).
	oldKernel bool
}

// times contains intervals and timeouts.
type times struct {
	tick     time.Duration // interval for checking whether a restore is due
	poll     time.Duration // interval of CRI requests
	hear     time.Duration // time before the restart for the client to read the status
	restart  time.Duration // timeout of a restart
	serve    time.Duration // timeout for CRI to respond after a restart
	verdict  time.Duration // time after which an unresponsive CRI counts as failed
	lock     time.Duration // timeout for another process to unlock the record
	start    time.Duration // time after which a missing dead man's switch counts as terminated
	follow   time.Duration // timeout for a change to be applied
	retry    time.Duration // initial interval of restore attempts
	patience time.Duration // time after which restore attempts stop
}

// Node returns the node on which this process runs.
func Node() Host {
	return Host{
		Root: "/", Dir: deadman.Dir, Units: "/etc/systemd/system", Systemd: "/run/systemd/system",
		Logs: "/var/log/services", Proc: "/proc",
		Configs: []string{
			"/etc/containerd", "/etc/containerd/conf.d", "/etc/containerd/config.d", "/etc/k0s",
			"/etc/k0s/containerd.d",
			"/var/lib/rancher/*/agent/etc/containerd", "/var/snap/*/current/args",
		},
		Foreign: []string{"/var/lib/cuda-fault-test"}, // from NVIDIA Dynamo's fault injection
		Run:     run, Ask: cri.Ask,
		ConfigSum:   func(config []byte) string { return containerd.ConfigSum(config) },
		Program:     "/proc/self/exe",
		LeaveCgroup: func() error { return LeaveCgroups("/proc") },
		times:       defaultTimes(),
	}
}

func defaultTimes() times {
	return times{
		tick: 250 * time.Millisecond, poll: 30 * time.Millisecond, hear: 80 * time.Millisecond,
		restart: 4 * time.Minute, serve: 30 * time.Second, verdict: 15 * time.Second,
		lock: 6 * time.Minute, start: time.Second, follow: 6 * time.Minute, retry: 5 * time.Second,
		patience: 7 * 24 * time.Hour,
	}
}

func (h Host) passed(point string) {
	if h.Passed != nil {
		h.Passed(point)
	}
}

// searchPath contains the usual directories of programs on a node. The PATH of this process is that of the pod.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func run(ctx context.Context, name string, args ...string) (string, error) {
	program, err := find(name)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{searchPath, "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // child processes may keep the streams open
	err = cmd.Run()
	said := strings.TrimSpace(out.String())
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said)
	}
	return said, err
}

func find(name string) (string, error) {
	for _, dir := range strings.Split(strings.TrimPrefix(searchPath, "PATH="), ":") {
		if info, err := os.Stat(dir + "/" + name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return dir + "/" + name, nil
		}
	}
	return "", fmt.Errorf("%s not found on the node", name)
}

func encode(v any) ([]byte, error) {
	raw, err := json.MarshalIndent(v, "", "  ")
	return append(raw, '\n'), err
}
