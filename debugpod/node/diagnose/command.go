package diagnose

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/driver"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

const (
	// diagnoseSMILimit is the timeout for `nvidia-smi -q -x`. Without persistence mode, nvidia-smi initializes every
	// GPU first. It hangs if a GPU is broken.
	diagnoseSMILimit = 20 * time.Second
	maxSMI           = 8 << 20 // bytes; the output for eight GPUs with MIG is 500 kB
	// showLimit is the timeout for programs that only print their version.
	showLimit = 5 * time.Second
	maxShow   = 64 << 10

	// journalLimit is the timeout for journalctl, which searches all journal files.
	journalLimit   = 10 * time.Second
	journalLines   = 200
	maxJournal     = 128 << 10 // bytes per unit
	maxJournalRead = 4 << 20   // bytes, before long lines are truncated
)

// smi runs nvidia-smi with full output. If one of several GPUs is broken, nvidia-smi fails but may still print the
// others.
func (d *diagnosing) smi(ctx context.Context) (func(*api.Diagnosis), error) {
	c, ok := driver.Program(d.root, "nvidia-smi")
	if !ok {
		return func(found *api.Diagnosis) {
			found.Probe.SMIError = "nvidia-smi was not found in the usual directories"
		}, nil
	}
	// If root runs nvidia-smi, NVML loads the driver. This must not happen during a driver upgrade, or on a node whose
	// GPUs are passed through to virtual machines.
	if _, err := d.root.Info(driver.Loaded); err != nil {
		return func(found *api.Diagnosis) {
			found.Probe.SMIError = "nvidia-smi was not run: the driver is not loaded (no " + driver.Loaded +
				"), and nvidia-smi would load it"
		}, nil
	}
	c.Args, c.Limit, c.Most = []string{"-q", "-x"}, diagnoseSMILimit, maxSMI+1
	out, err := d.run(ctx, c)
	var words string
	var exit *hostexec.ExitError
	switch {
	case errors.As(err, &exit):
		words = exit.Said
		if !strings.Contains(out, "<nvidia_smi_log") { // error messages are also written to standard output
			words = strings.TrimSpace(strings.TrimSpace(out) + "\n" + words)
		}
		words = strings.TrimSpace(words + "\n(" + exit.Program + ": " + exit.Err.Error() + ")")
	case err != nil:
		words = err.Error()
	}
	if len(out) > maxSMI {
		out, words = "", fmt.Sprintf("nvidia-smi wrote more than %d bytes", maxSMI)
	}
	if !strings.Contains(out, "<nvidia_smi_log") {
		if words == "" {
			words = "the output of nvidia-smi -q -x is not XML: " + strings.TrimSpace(out)
		}
		out = ""
	}
	return func(found *api.Diagnosis) {
		found.SMI, found.Probe.SMIError = printable(strings.ToValidUTF8(out, "\uFFFD")), api.Shorten(words, 2<<10)
	}, nil
}

// fabricManager runs the installed program, which prints "Fabric Manager version is : 535.104.05".
func (d *diagnosing) fabricManager(ctx context.Context) (func(*api.Diagnosis), error) {
	c, ok := driver.Program(d.root, "nv-fabricmanager")
	if !ok {
		return nil, nil
	}
	c.Args, c.Limit, c.Most = []string{"--version"}, showLimit, maxShow
	out, err := d.run(ctx, c)
	version := dottedNumber.FindString(out)
	if version == "" && err == nil {
		err = fmt.Errorf("unexpected output of %s --version: %q", c.Program, api.Shorten(strings.TrimSpace(out), 200))
	}
	return func(found *api.Diagnosis) { found.Probe.FabricManager = version }, err
}

// toolkitPrograms print the version of the NVIDIA Container Toolkit. The GPU operator's own programs come first.
var toolkitPrograms = []string{
	"/usr/local/nvidia/toolkit/nvidia-ctk", "/usr/bin/nvidia-ctk", "/usr/local/bin/nvidia-ctk",
	"/usr/local/nvidia/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime",
	"/usr/local/bin/nvidia-container-runtime",
}

// toolkitVersion returns the output of the first program that runs: "NVIDIA Container Toolkit CLI version 1.17.4".
func (d *diagnosing) toolkitVersion(ctx context.Context) (func(*api.Diagnosis), error) {
	var wrong problems
	asked := 0
	for _, program := range toolkitPrograms {
		if hostfs.Executable(d.root, program) != "" {
			continue
		}
		if asked++; asked > 4 {
			break
		}
		out, err := d.run(ctx,
			hostexec.Command{
				Root: d.root, Program: program, Args: []string{"--version"}, Limit: showLimit, Most: maxShow,
			})
		line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
		// The program may be a wrapper script that prints the version of runc.
		if line = strings.ToValidUTF8(line, "\uFFFD"); dottedNumber.MatchString(line) &&
			strings.Contains(line, "NVIDIA") {
			return func(found *api.Diagnosis) { found.Probe.ToolkitVersion = api.Shorten(line, 200) }, nil
		}
		if err == nil {
			err = fmt.Errorf("unexpected output of %s --version: %q", program, api.Shorten(line, 200))
		}
		wrong.add("%w", err)
	}
	return nil, wrong.err()
}

// journalUnits returns the units of the kubelet and the runtime, and the requested units.
func journalUnits(units []api.Unit, kubelet int, runtime api.Runtime, asked []string) []string {
	var names []string
	for _, u := range units {
		if u.PID != 0 && (u.PID == kubelet || runtime.Instance != nil && u.PID == runtime.Instance.PID) {
			names = append(names, u.Name)
		}
	}
	if runtime.Instance != nil && runtime.Instance.Unit != "" {
		names = append(names, runtime.Instance.Unit)
	}
	return unique(append(names, asked...))
}

// gpuUnits returns the units installed on the node that prepare its GPUs: Bottlerocket's device plugin, the units in
// EKS's AMIs that load the driver, and NVIDIA's own units.
func (d *diagnosing) gpuUnits() []string {
	var all []string
	for _, unit := range []string{
		"nvidia-k8s-device-plugin.service", "configure-nvidia.service", "nvidia-kmod-load.service",
		"nvidia-fabricmanager.service", "nvidia-cdi-refresh.service", "nvidia-gridd.service",
	} {
		if slices.ContainsFunc([]string{"etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"},
			func(dir string) bool { _, err := d.root.Info("/" + path.Join(dir, unit)); return err == nil }) {
			all = append(all, unit)
		}
	}
	return all
}

// journals reads the last lines of units with journalctl. Some of the optional units may have no lines.
func (d *diagnosing) journals(ctx context.Context, units, optional []string) (func(*api.Diagnosis), error) {
	program := ""
	for _, dir := range strings.Split(hostexec.UsualPath, ":") {
		if hostfs.Executable(d.root, path.Join(dir, "journalctl")) == "" {
			program = path.Join(dir, "journalctl")
			break
		}
	}
	switch {
	case program == "":
		return nil, fmt.Errorf("journalctl was not found in %s", hostexec.UsualPath)
	case len(units) == 0:
		return nil,
			errors.New("neither the kubelet nor its container runtime runs as a systemd unit")
	}
	journals, wrong := map[string]string{}, problems{}
	ctx, cancel := context.WithTimeout(ctx, journalLimit) // for all units together
	defer cancel()
	for _, unit := range unique(append(units, optional...)) {
		out, err := d.run(ctx, hostexec.Command{
			Root: d.root, Program: program, Limit: journalLimit, Most: maxJournalRead, Last: true,
			Args: []string{"-q", "-u", unit, "-n", fmt.Sprint(journalLines), "--no-pager", "-o", "short-iso"},
		})
		if text := lastLines(out, journalLines, maxJournal); text != "" {
			journals[unit] = text
		} else if err == nil && !slices.Contains(optional, unit) {
			err = errors.New("the journal contains no lines from this unit")
		}
		if err != nil {
			wrong.add("%s: %w", unit, err)
		}
	}
	return func(found *api.Diagnosis) { found.Journals = journals }, wrong.err()
}

func unique(names []string) []string {
	var once []string
	seen := map[string]bool{}
	for _, name := range names {
		if name != "" && !seen[name] {
			once = append(once, name)
		}
		seen[name] = true
	}
	return once
}
