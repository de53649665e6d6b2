package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/driver"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

const (
	maxModules   = 64
	maxLibraries = 64
	maxBuilt     = 128
	maxKernels   = 64
	maxWalked    = 4000 // maximum number of directory entries to visit in the modules directory of one kernel
	maxDevices   = 512
	maxListed    = 20000 // maximum number of entries in one directory
)

var dottedNumber = regexp.MustCompile(`\d+(\.\d+)+`)

// modulePrefixes are the prefixes of the kernel modules for GPUs and GPU networks.
var modulePrefixes = []string{
	"nvidia", "nouveau", "nova_", "nv_peer_mem", "gdrdrv", "ib_umad", "ib_uverbs", "ib_core", "mlx5_", "vfio",
	"nvme_rdma", "rdma_cm",
}

// modules reads the loaded kernel modules.
func (d *diagnosing) modules(context.Context) (func(*api.Diagnosis), error) {
	table, err := hostfs.FS(d.host.Proc).Text("modules", 1<<20)
	if err != nil { // the file does not exist if the kernel does not support modules
		return nil, fmt.Errorf("/proc/modules: %w", errors.Unwrap(err))
	}
	var modules []api.Module
	for _, name := range parseModules(table) {
		dir := "/sys/module/" + name
		modules = append(modules,
			api.Module{Name: name, Version: d.root.Word(dir + "/version"), Taint: d.root.Word(dir + "/taint")})
	}
	return func(found *api.Diagnosis) { found.Probe.Modules = modules }, nil
}

// parseModules returns the relevant modules in /proc/modules. Each line starts with the module name.
func parseModules(table string) []string {
	var names []string
	for line := range strings.Lines(table) {
		name, _, ok := strings.Cut(line, " ")
		if !ok || len(name) > 64 || strings.ContainsAny(name, "/.") || len(names) == maxModules {
			continue
		}
		if slices.ContainsFunc(modulePrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			names = append(names, name)
		}
	}
	return names
}

// driverRoots are the root directories that may contain the driver's libraries, starting with the node's own, and the
// library directories in them.
var driverRoots = []struct {
	root    string
	folders []string
}{
	{"/", []string{
		"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64",
		"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current", "usr/lib64/nvidia",
		"usr/lib/nvidia",
		"usr/local/lib", "usr/local/lib64", "usr/local/glibc/usr/lib", // Talos
		"x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
		"aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
		"run/opengl-driver/lib", // NixOS
		"usr/lib/wsl/lib",
	}},
	{"/run/nvidia/driver", []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"}},
	{"/home/kubernetes/bin/nvidia", []string{"lib64", "lib"}},
	{"/usr/local/nvidia", []string{"lib64", "lib"}},
	{"/opt/nvidia", []string{"lib64", "lib", "usr/lib64"}},
}

// driverLibrary matches a library name that ends with the driver version; libcuda.so.1 is a link to such a library.
var driverLibrary = regexp.MustCompile(`^lib(nvidia-ml|cuda)\.so\.\d+\.\d+(\.\d+)*$`)

// driver reads the driver files installed on the node.
func (d *diagnosing) driver(context.Context) (func(*api.Diagnosis), error) {
	var wrong problems
	var files api.DriverFiles
	version := d.root.Word("/proc/driver/nvidia/version")
	files.Kernel, files.Open = driver.Version(version), strings.Contains(version, "Open Kernel Module")
	files.Root, files.Libraries = driverLibraries(d.root)
	for _, root := range []string{"/lib/modules", "/run/nvidia/driver/lib/modules"} {
		kernels, err := readEntries(d.root, root, maxListed)
		if err != nil {
			wrong.add("%w", err)
		}
		for _, kernel := range kernels {
			if root == "/lib/modules" && len(files.Kernels) < maxKernels {
				files.Kernels = append(files.Kernels, kernel.Name())
			}
			files.Built = append(files.Built, builtModules(d.root, path.Join(root, kernel.Name()))...)
		}
	}
	files.Built = files.Built[:min(len(files.Built), maxBuilt)]
	return func(found *api.Diagnosis) { found.Probe.Driver = files }, wrong.err()
}

// driverLibraries returns the driver's libraries. The libraries that programs load, to which libnvidia-ml.so.1 and
// libcuda.so.1 link, come first. A directory with two names is read only once.
func driverLibraries(node hostfs.FS) (root string, libraries []string) {
	var used, others []string
	seen := map[string]bool{}
	for _, place := range driverRoots {
		for _, folder := range place.folders {
			dir := path.Join(place.root, folder)
			full, err := node.Resolve(hostfs.Relative(dir))
			if err != nil || seen[full] {
				continue
			}
			seen[full] = true
			for _, file := range glob(node, dir, "lib*.so.*", maxListed) {
				name := path.Base(file)
				if !driverLibrary.MatchString(name) {
					continue
				}
				if root == "" {
					root = place.root
				}
				short, _, _ := strings.Cut(name, ".so.")
				if leads(node, path.Join(dir, short+".so.1"), file) {
					used = append(used, file)
				} else {
					others = append(others, file)
				}
			}
		}
	}
	all := append(used, others...)
	return root, all[:min(len(all), maxLibraries)]
}

// leads reports whether a link resolves to the file.
func leads(root hostfs.FS, link, file string) bool {
	from, err := root.Resolve(hostfs.Relative(link))
	to, failed := root.Resolve(hostfs.Relative(file))
	return err == nil && failed == nil && from == to
}

// modulePlaces are the directories below /lib/modules/KERNEL that may contain nvidia.ko: those used by DKMS, by
// distributions, and by kernels that include the driver.
var modulePlaces = []string{
	"updates", "extra", "extramodules", "weak-updates", "misc", "kernel/drivers/video", "kernel/drivers/extra",
	"kernel/extra",
}

// builtModules returns the paths of nvidia*.ko* for one kernel.
func builtModules(root hostfs.FS, kernel string) []string {
	places := slices.Clone(modulePlaces)
	for _, dir := range glob(root, kernel+"/kernel", "nvidia*", 1000) { // Ubuntu's linux-modules-nvidia
		places = append(places, "kernel/"+path.Base(dir))
	}
	var found []string
	left := maxWalked
	for _, place := range places {
		found = walkModules(root, path.Join(kernel, place), 3, &left, found)
	}
	return found
}

// walkModules searches a directory and its subdirectories, down to the given depth. The counter left limits the number
// of entries that it reads. walkModules does not follow links to directories, because kernel/build links to the kernel
// sources.
func walkModules(root hostfs.FS, dir string, depth int, left *int, found []string) []string {
	entries, err := readEntries(root, dir, max(*left, 1))
	if err != nil {
		return found
	}
	for _, e := range entries {
		if *left--; *left < 0 || len(found) >= maxBuilt {
			break
		}
		name := e.Name()
		switch {
		case e.IsDir() && depth > 0:
			found = walkModules(root, path.Join(dir, name), depth-1, left, found)
		case strings.HasPrefix(name, "nvidia") && strings.Contains(name, ".ko") && !e.IsDir():
			found = append(found, path.Join(dir, name))
		}
	}
	return found
}

// devices reads the driver's device nodes. It also checks whether their links exist in /dev/char, which systemd needs
// when it updates cgroups.
func (d *diagnosing) devices(context.Context) (func(*api.Diagnosis), error) {
	var wrong problems
	var nodes []api.DeviceNode
	for _, dir := range []string{"/dev", "/run/nvidia/driver/dev"} {
		names := glob(d.root, dir, "nvidia*", maxListed)
		for _, sub := range []string{"nvidia-caps", "nvidia-caps-imex-channels"} {
			names = append(names, glob(d.root, path.Join(dir, sub), "*", maxListed)...)
		}
		for _, name := range names {
			info, err := d.root.LinkInfo(name)
			switch {
			case err != nil:
				wrong.add("%w", err)
			case info.IsDir() || info.Mode()&fs.ModeSymlink != 0:
			case len(nodes) == maxDevices:
				wrong.add("more than %d found", maxDevices)
			default:
				major, minor := deviceNumbers(info)
				nodes = append(nodes,
					api.DeviceNode{
						Path: name, Major: major, Minor: minor, Mode: fmt.Sprintf("%04o", info.Mode().Perm()),
					})
			}
		}
	}
	if _, err := d.root.Info("/dev"); err != nil {
		wrong.add("%w", err)
	}
	links := map[string]bool{}
	for _, n := range nodes {
		if n.Major == 0 || !strings.HasPrefix(n.Path, "/dev/") {
			continue
		}
		link := fmt.Sprintf("/dev/char/%d:%d", n.Major, n.Minor)
		_, err := d.root.LinkInfo(link)
		links[link] = err == nil
	}
	return func(found *api.Diagnosis) { found.Probe.Devices, found.Probe.DevChar = nodes, links }, wrong.err()
}

// validations returns the files with which the GPU operator's operands signal their progress.
func (d *diagnosing) validations(context.Context) (func(*api.Diagnosis), error) {
	entries, err := readEntries(d.root, "/run/nvidia/validations", 64)
	var names []string
	for _, e := range entries {
		names = append(names, strings.ToValidUTF8(e.Name(), "\uFFFD"))
	}
	return func(found *api.Diagnosis) { found.Probe.Validations = names }, err
}
