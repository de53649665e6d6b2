package image

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// PluginPath is the path of the plugin in an image that contains it.
const PluginPath = "/kubectl-gpu_fault"

// Plugin is the plugin itself, for Linux. An image that also contains the plugin can run it in the cluster.
type Plugin struct {
	Arch    string // such as amd64
	Program []byte
}

// marker is a string that each build of the plugin contains.
const marker = "github.com/gpu-fault/kubectl-gpu-fault/plugin/"

// ParsePlugin checks that a program is a build of the plugin for Linux that can run in an image without other files.
func ParsePlugin(program []byte) (Plugin, error) {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return Plugin{}, errors.New("not a Linux program")
	}
	arch := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[file.Machine]
	if arch == "" {
		return Plugin{}, fmt.Errorf("the program is for %s: must be for amd64 or arm64", file.Machine)
	}
	if !bytes.Contains(program, []byte(marker)) {
		return Plugin{}, errors.New("not the program kubectl-gpu_fault")
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return Plugin{}, errors.New("dynamically linked, but the image contains no libraries: use the program from a release, " +
				"or build it with CGO_ENABLED=0")
		}
	}
	return Plugin{Arch: arch, Program: program}, nil
}

// NewWithPlugin builds the image with the helper for all architectures and the plugin for the plugin's own
// architecture. The tag is the tag of the image without the plugin, followed by the plugin's architecture and the first
// digits of the plugin's SHA-256 digest. Any client from the same build recognizes the image by the first part of the
// tag, even on another operating system.
func NewWithPlugin(
	helper func(arch string) ([]byte, error), architectures []string, plugin Plugin,
) (*Image, error) {
	without, err := New(helper, architectures)
	if err != nil {
		return nil, err
	}
	if _, err := without.Platform("linux/" + plugin.Arch); err != nil {
		return nil, err
	}
	made, err := build(helper, architectures, plugin)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(plugin.Program)
	made.Tag = without.Tag + "-" + plugin.Arch + "-" + hex.EncodeToString(sum[:6])
	return made, nil
}

// files returns the files of the image for an architecture, by layer. The helper has its own layer, which is the same
// with and without the plugin.
func (p Plugin) files(arch string, helper []byte) []map[string][]byte {
	layers := []map[string][]byte{{api.Program: helper}}
	if p.Arch == arch {
		layers = append(layers, map[string][]byte{PluginPath: p.Program})
	}
	return layers
}

// withPlugin matches the tag of an image with the plugin, at the end of a reference or before its digest.
var withPlugin = regexp.MustCompile(`:` + ownTagForm + `-(amd64|arm64)-[0-9a-f]{12}(?:@|$)`)

// PluginIn returns the architecture of the plugin in the image with the given reference, according to its tag, or "" if
// the image does not contain the plugin. It does not check whether the tag is from this build; see HasHelper.
func PluginIn(reference string) string {
	if found := withPlugin.FindStringSubmatch(reference); found != nil {
		return found[1]
	}
	return ""
}
