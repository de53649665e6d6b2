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

// Host is what a dead man finds on its node. Node's is the one for real nodes.
type Host struct {
	Root    string // directory from which paths are opened; see walk
	Dir     string // where the records lie
	Units   string // where the administrator's systemd units lie
	Systemd string // is there when systemd is PID 1
	Logs    string // logs of services without a journal
	Proc    string
	// Configs are patterns of directories in which prepared files may have been left.
	Configs []string
	// Foreign are paths that other fault injectors leave.
	Foreign []string

	// Run runs a command, and returns what it wrote to both its streams.
	Run func(ctx context.Context, name string, args ...string) (string, error)
	// Inspect finds the kubelet's container runtime. Only a change needs it.
	Inspect func(ctx context.Context) (Runtime, error)
	// Ask asks the service behind a CRI socket about itself.
	Ask func(ctx context.Context, socket string) (*cri.Info, error)
	// ConfigSum is the sum of a configuration that CRI shows.
	ConfigSum func(config []byte) string
	// Program runs this program again: the path, and what to set in its environment.
	Program string
	Env     []string
	// LeaveCgroup takes this process out of its pod's cgroups.
	LeaveCgroup func() error
	// Log takes what a dead man has to say to nobody; nil: it is lost.
	Log io.Writer
	// Passed, if set, hears of points of the work; tests end the process there.
	Passed func(point string)

	times times
	// oldKernel avoids openat2(2), as if the kernel did not have it.
	oldKernel bool
}

// times are how long things may take.
type times struct {
	tick     time.Duration // between two looks at the clock
	poll     time.Duration // between two questions to CRI
	hear     time.Duration // before the restart
	restart  time.Duration // of a service
	serve    time.Duration // until CRI serves after a restart
	verdict  time.Duration // until silence of CRI means that it fails
	lock     time.Duration // until somebody else has ended his work on the record
	start    time.Duration // until a dead man that is not there is taken for gone
	follow   time.Duration // until a change is applied
	retry    time.Duration // between two tries to put back
	patience time.Duration // until trying to put back is given up
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
		Foreign: []string{"/var/lib/cuda-fault-test"}, // of Dynamo's fault injection
		Run:     run, Ask: cri.Ask,
		ConfigSum:   func(config []byte) string { return containerd.ConfigSum(config) },
		Program:     "/proc/self/exe",
		LeaveCgroup: func() error { return leaveCgroups("/proc") },
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

// searchPath is where a node's programs lie: ours is inherited from the pod.
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
	cmd.WaitDelay = time.Second // what it started may keep the streams
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
	return "", fmt.Errorf("the node has no %s", name)
}

func encode(v any) ([]byte, error) {
	raw, err := json.MarshalIndent(v, "", "  ")
	return append(raw, '\n'), err
}
