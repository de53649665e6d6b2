package cudafault

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// LibraryName is the file name of the shim in a pod, for every layer.
const LibraryName = "libgpufault.so"

// Library returns the shim for an architecture (amd64 or arm64, as in Go and Kubernetes) and a layer.
func Library(arch string, layer Layer) ([]byte, error) {
	platform, err := Platform(arch)
	if err != nil {
		return nil, err
	}
	file := LibraryName
	switch layer {
	case LayerDriver, "":
	case LayerRuntime:
		file = "libgpufault-cudart.so"
	default:
		return nil, fmt.Errorf("no shim exists for layer %q; supported layers: driver, runtime", layer)
	}
	data, err := embedded("lib/" + platform + "/" + file)
	if err != nil {
		return nil, fmt.Errorf("this program does not contain the shim for %s: %w", arch, err)
	}
	return data, nil
}

// CrashProgram returns, for an architecture, the program that causes an error on a GPU, so that the driver reports an
// XID. The source of the program and the lines that the program prints are in cudafault/crash.
func CrashProgram(arch string) ([]byte, error) {
	platform, err := Platform(arch)
	if err != nil {
		return nil, err
	}
	return embedded("lib/" + platform + "/crash")
}

// Platform returns the usual value of $PLATFORM in the dynamic linker: x86_64 for amd64 and aarch64 for arm64. On some
// x86_64 machines, glibc 2.26 to 2.36 uses haswell or xeon_phi.
func Platform(arch string) (string, error) {
	switch arch {
	case "amd64":
		return "x86_64", nil
	case "arm64":
		return "aarch64", nil
	default:
		return "", fmt.Errorf("no shim exists for nodes of architecture %q; supported architectures: amd64, "+
			"arm64", arch)
	}
}

// LibrarySHA256 returns the SHA-256 of the result of Library, in hexadecimal.
func LibrarySHA256(arch string, layer Layer) (string, error) {
	data, err := Library(arch, layer)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
