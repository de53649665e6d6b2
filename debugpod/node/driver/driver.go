// Package driver finds NVIDIA's driver on a node: its programs, and its version.
package driver

import (
	"path"
	"regexp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostexec"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

// driverPlaces are where the driver's programs lie: as root directory, folder in there, and folder of its libraries.
var driverPlaces = []struct{ root, folder, libraries string }{
	{"/", "/usr/bin", ""},
	{"/run/nvidia/driver", "/usr/bin", ""}, // GPU operator: the driver's container
	{"/", "/home/kubernetes/bin/nvidia/bin", "/home/kubernetes/bin/nvidia/lib64"}, // GKE
	{"/", "/usr/local/nvidia/bin", "/usr/local/nvidia/lib64"},
	{"/", "/opt/nvidia/bin", "/opt/nvidia/lib64"},
	{"/", "/usr/local/bin", ""}, // Talos
	{"/", "/opt/bin", ""},
}

// Program finds a program of the driver; ok reports whether it is there.
func Program(node hostfs.FS, name string) (c hostexec.Command, ok bool) {
	for _, place := range driverPlaces {
		root, err := node.Resolve(hostfs.Relative(place.root))
		program := path.Join(place.folder, name)
		// With its links as it will see them itself
		if err == nil && hostfs.Executable(hostfs.FS(root), program) == "" {
			return hostexec.Command{Root: hostfs.FS(root), Program: program, Libraries: place.libraries}, true
		}
	}
	return hostexec.Command{}, false
}

// Loaded is there while the driver is loaded.
const Loaded = "/proc/driver/nvidia/version"

// driverVersion finds the number in both drivers' first lines:
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
