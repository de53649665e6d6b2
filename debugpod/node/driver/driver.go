// Package driver finds the programs and the version of the NVIDIA driver on a node.
package driver

import (
	"path"
	"regexp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// driverPlaces are the locations of the driver's programs: a root directory, and the directories of programs and
// libraries in it.
var driverPlaces = []struct{ root, folder, libraries string }{
	{"/", "/usr/bin", ""},
	{"/run/nvidia/driver", "/usr/bin", ""}, // the GPU operator's driver container
	{"/", "/home/kubernetes/bin/nvidia/bin", "/home/kubernetes/bin/nvidia/lib64"}, // GKE
	{"/", "/usr/local/nvidia/bin", "/usr/local/nvidia/lib64"},
	{"/", "/opt/nvidia/bin", "/opt/nvidia/lib64"},
	{"/", "/usr/local/bin", ""}, // Talos
	{"/", "/opt/bin", ""},
}

// Program returns the command for one of the driver's programs. ok reports whether the program exists.
func Program(node hostfs.FS, name string) (c hostexec.Command, ok bool) {
	for _, place := range driverPlaces {
		root, err := node.Resolve(hostfs.Relative(place.root))
		program := path.Join(place.folder, name)
		// Resolve links in the same way as the program itself.
		if err == nil && hostfs.Executable(hostfs.FS(root), program) == "" {
			return hostexec.Command{Root: hostfs.FS(root), Program: program, Libraries: place.libraries}, true
		}
	}
	return hostexec.Command{}, false
}

// Loaded is a file that exists while the driver is loaded.
const Loaded = "/proc/driver/nvidia/version"

// Version returns the driver version in the first line of Loaded, for both kinds of driver:
//
//	NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (...)
func Version(text string) string {
	m := regexp.MustCompile(`(?m)^NVRM version:.*Kernel Module(?: +for \S+)? +(\d+(?:\.\d+)+)`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}
