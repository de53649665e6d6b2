package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// system reads information about the operating system.
func (d *diagnosing) system(context.Context) (func(*api.Diagnosis), error) {
	var wrong problems
	release, err := d.root.Text("/etc/os-release", 64<<10)
	if err != nil {
		release, err = d.root.Text("/usr/lib/os-release", 64<<10)
	}
	if err != nil {
		wrong.add("%w", err)
	}
	proc := hostfs.FS(d.host.Proc)
	cmdline := proc.Word("cmdline")
	sysctls := map[string]string{}
	for _, name := range []string{"fs.inotify.max_user_instances", "fs.inotify.max_user_watches"} {
		if value := proc.Word("sys/" + strings.ReplaceAll(name, ".", "/")); value != "" {
			sysctls[name] = value
		}
	}
	version := cgroupVersion(d.root)
	return func(found *api.Diagnosis) {
		p := &found.Probe
		p.OS, p.Cmdline, p.Sysctls, p.CgroupVersion = parseOSRelease(release), cmdline, sysctls, version
		if len(sysctls) == 0 {
			unread(p, "sysctls", errors.New("/proc/sys/fs/inotify cannot be read"))
		}
		if version == 0 {
			unread(p, "cgroupVersion",
				errors.New("/sys/fs/cgroup contains neither cgroup.controllers nor a controller directory"))
		}
	}, wrong.err()
}

// osKeys are the keys of os-release(5) that doctor uses.
var osKeys = []string{"ID", "ID_LIKE", "VERSION_ID", "VERSION_CODENAME", "PRETTY_NAME", "VARIANT_ID"}

// parseOSRelease parses KEY=value lines with shell quoting: quotes around values and backslash escapes.
func parseOSRelease(text string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || !slices.Contains(osKeys, key) {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			quote := value[0]
			if value = value[1 : n-1]; quote == '"' {
				value = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\$`, `$`, "\\`", "`").Replace(value)
			}
		}
		values[key] = api.Shorten(value, 256)
	}
	if len(values) == 0 {
		return nil
	}
	return values
}

// cgroupVersion returns 2 only if no controller uses version 1, which is the same rule that container runtimes apply.
// It returns 0 if the version is unknown.
func cgroupVersion(root hostfs.FS) int {
	if _, err := root.Info("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return 2
	}
	for _, controller := range []string{"devices", "memory", "cpu", "cpu,cpuacct"} {
		if _, err := root.Info("/sys/fs/cgroup/" + controller); err == nil {
			return 1
		}
	}
	return 0
}

// secureBootVariable is the firmware variable, with the global vendor GUID from the UEFI specification. It contains
// four bytes of attributes, then 1 or 0.
const secureBootVariable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

func (d *diagnosing) secureBoot(context.Context) (func(*api.Diagnosis), error) {
	state := ""
	raw, err := d.root.Text(secureBootVariable, 16)
	_, noFirmware := d.root.Info("/sys/firmware/efi")
	_, noSys := d.root.Info("/sys/firmware")
	variables, _ := fs.ReadDir(d.root, "sys/firmware/efi/efivars")
	switch {
	case err == nil && len(raw) >= 5 && raw[len(raw)-1] == 1:
		state = "enabled"
	case err == nil:
		state = "disabled"
	case noSys == nil && errors.Is(noFirmware, fs.ErrNotExist): // booted by a BIOS, which does not support Secure Boot
		state, err = "disabled", nil
	case errors.Is(err, fs.ErrNotExist) && len(variables) > 0: // firmware without Secure Boot
		state, err = "disabled", nil
	case noSys != nil:
		err = noSys
	}
	return func(found *api.Diagnosis) { found.Probe.SecureBoot = state }, err
}

func (d *diagnosing) selinux(context.Context) (func(*api.Diagnosis), error) {
	state := ""
	raw, err := d.root.Text("/sys/fs/selinux/enforce", 16)
	_, noSys := d.root.Info("/sys/fs")
	switch {
	case err == nil && strings.TrimSpace(raw) == "1":
		state = "enforcing"
	case err == nil:
		state = "permissive"
	case noSys == nil && errors.Is(err, fs.ErrNotExist):
		state, err = "disabled", nil
	}
	return func(found *api.Diagnosis) { found.Probe.SELinux = state }, err
}

// filesystem returns the part that reads the usage of the file system that contains a directory.
func (d *diagnosing) filesystem(dir string) part {
	return part{"filesystems", filePatience / 2, func(context.Context) (func(*api.Diagnosis), error) {
		full, err := d.root.Resolve(hostfs.Relative(dir))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		filesystem, err := statFilesystem(full)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // the directory does not exist
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		filesystem.Path = dir
		return func(found *api.Diagnosis) { found.Probe.Filesystems = append(found.Probe.Filesystems, filesystem) }, nil
	}}
}

// readEntries returns the entries of a directory, up to the given number. A missing directory is treated as empty.
func readEntries(root hostfs.FS, dir string, most int) ([]fs.DirEntry, error) {
	full, err := root.Resolve(hostfs.Relative(dir))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	folder, err := os.Open(full)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = folder.Close() }()
	entries, err := folder.ReadDir(most)
	if len(entries) == 0 && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// glob returns the files in a directory whose names match the pattern.
func glob(root hostfs.FS, dir, pattern string, most int) []string {
	entries, err := readEntries(root, dir, most)
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range entries {
		if ok, _ := path.Match(pattern, e.Name()); ok {
			found = append(found, path.Join(dir, e.Name()))
		}
	}
	return found
}
