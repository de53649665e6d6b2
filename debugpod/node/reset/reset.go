// Package reset resets a GPU on the node with the driver's own program, nvidia-smi.
package reset

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/driver"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

const (
	// queryTimeout is the timeout for nvidia-smi's queries, which initialize every GPU if nothing keeps the driver
	// loaded.
	queryTimeout = 20 * time.Second
	// resetTimeout is the timeout for a reset, which takes a few seconds, or longer if the GPU has NVLinks.
	resetTimeout = 2 * time.Minute
	most         = 64 << 10 // maximum number of bytes of nvidia-smi's output
)

// GPU resets a GPU. known lists the GPUs of the node's driver.
func GPU(ctx context.Context, what api.ResetGPU, known []api.GPU, host hostfs.Host) (*api.GPUReset, *api.Error) {
	i := slices.IndexFunc(known, func(g api.GPU) bool { return g.PCI == what.PCI })
	if i < 0 {
		return nil, api.Errorf(api.CodeRefused, "the driver has no GPU at %s: nothing was reset", what.PCI)
	}
	smi, ok := driver.Program(hostfs.FS(host.Root), "nvidia-smi")
	if !ok {
		return nil, api.Errorf(api.CodeRefused, "nvidia-smi was not found in the usual directories: nothing was reset")
	}
	return reset(known[i], host.Proc, func(limit time.Duration, args ...string) (string, error) {
		c := smi
		c.Args, c.Limit, c.Most = append(args, "-i", what.PCI), limit, most
		return hostexec.Run(ctx, c)
	})
}

// reset resets a GPU. run runs nvidia-smi for the GPU.
func reset(
	gpu api.GPU, proc string, run func(limit time.Duration, args ...string) (string, error),
) (*api.GPUReset, *api.Error) {
	mode, err := run(queryTimeout, "--query-gpu=mig.mode.current", "--format=csv,noheader")
	if err == nil && strings.EqualFold(strings.TrimSpace(mode), "enabled") {
		return nil, api.Errorf(api.CodeRefused,
			"the GPU at %s is in MIG mode: a reset would delete its instances; nothing was reset", gpu.PCI)
	}
	if held := holders(os.DirFS(proc), proc, gpu.Minor); len(held) > 0 {
		return nil, api.Errorf(api.CodeRefused,
			"the GPU at %s is open in %s: stop these processes first (including device plugins and DCGM); nothing was reset", gpu.PCI,
			strings.Join(held, ", "))
	}
	said, err := run(resetTimeout, "--gpu-reset")
	words := oneLine(said)
	switch {
	case err != nil && words == "":
		return nil, api.Errorf(api.CodeInternal, "nvidia-smi --gpu-reset: %v", err)
	case err != nil || !succeeded.MatchString(said):
		return nil, api.Errorf(api.CodeRefused, "nvidia-smi did not reset the GPU at %s: %s", gpu.PCI, words)
	}
	uuid, err := run(queryTimeout, "--query-gpu=uuid", "--format=csv,noheader")
	if uuid = strings.TrimSpace(uuid); err != nil || !strings.HasPrefix(uuid, "GPU-") ||
		gpu.UUID != "" && !strings.EqualFold(uuid, gpu.UUID) {
		return nil, api.Errorf(api.CodeInternal,
			"the GPU at %s was reset, but no longer responds (%s): reboot the node", gpu.PCI, oneLine(uuid))
	}
	return &api.GPUReset{UUID: uuid, Said: words}, nil
}

// succeeded matches nvidia-smi's line about a GPU that was reset.
var succeeded = regexp.MustCompile(`(?m)^GPU [0-9A-Fa-f:.]+ was successfully reset\.`)

// oneLine returns text as one line of limited length.
func oneLine(text string) string {
	words := strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " ")
	const longest = 400
	if len(words) > longest {
		words = strings.ToValidUTF8(words[:longest], "") + "..."
	}
	return words
}

// mostHolders is the maximum number of processes to name.
const mostHolders = 8

// holders returns the processes that have a GPU's device file open, each as a string such as "4711 (python3)". It omits
// nvidia-persistenced, which nvidia-smi stops itself.
func holders(proc fs.FS, dir string, minor int) (held []string) {
	file := fmt.Sprintf("/dev/nvidia%d", minor)
	for _, pid := range process.PIDs(proc) {
		entries, err := fs.ReadDir(proc, pid+"/fd")
		if err != nil {
			continue // the process has exited
		}
		name, _ := fs.ReadFile(proc, pid+"/comm")
		comm := strings.TrimSpace(string(name))
		if strings.HasPrefix("nvidia-persistenced", comm) && len(comm) >= 15 {
			continue
		}
		for _, e := range entries {
			if at, err := os.Readlink(filepath.Join(dir, pid, "fd", e.Name())); err == nil && at == file {
				held = append(held, fmt.Sprintf("%s (%s)", pid, comm))
				break
			}
		}
		if len(held) == mostHolders {
			return append(held, "and possibly more")
		}
	}
	return held
}
