package diagnose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

const (
	maxCDISpecs = 64
	// Limits for a specification, in bytes. A YAML specification with 56 MIG devices is about 100 kB, and the parser
	// needs 100 times as much memory.
	maxCDI        = 512 << 10
	maxCDIJSON    = 4 << 20
	maxCDIDevices = 256
	maxCDIPaths   = 4000
	maxMissing    = 32
)

// cdiSpec contains the relevant fields of a specification (cdi/SPEC.md of the Container Device Interface).
type cdiSpec struct {
	Kind    string `json:"kind"`
	Devices []struct {
		Name  string   `json:"name"`
		Edits cdiEdits `json:"containerEdits"`
	} `json:"devices"`
	Edits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	DeviceNodes []struct {
		Path     string `json:"path"`
		HostPath string `json:"hostPath"`
	} `json:"deviceNodes"`
	Mounts []struct {
		HostPath string `json:"hostPath"`
	} `json:"mounts"`
	Hooks []struct {
		Path string `json:"path"`
	} `json:"hooks"`
}

// cdi reads the specifications in the two default directories.
func (d *diagnosing) cdi(context.Context) (func(*api.Diagnosis), error) {
	var specs []api.CDISpec
	var wrong problems
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		entries, err := readEntries(d.root, dir, maxListed)
		if err != nil {
			wrong.add("%w", err)
		}
		for _, e := range entries {
			extension := path.Ext(e.Name())
			if extension != ".json" && extension != ".yaml" { // runtimes ignore other extensions
				continue
			}
			if len(specs) == maxCDISpecs {
				wrong.add("more than %d found", maxCDISpecs)
				break
			}
			specs = append(specs, readCDI(d.root, path.Join(dir, e.Name())))
		}
	}
	return func(found *api.Diagnosis) { found.Probe.CDI = specs }, wrong.err()
}

func readCDI(root hostfs.FS, file string) api.CDISpec {
	spec := api.CDISpec{Path: file}
	if info, err := root.Info(file); err == nil {
		spec.Modified = info.ModTime().UTC()
	}
	text, err := root.Text(file, maxCDIJSON)
	if err != nil {
		spec.Error = api.Shorten(err.Error(), maxUnread)
		return spec
	}
	parsed, err := parseCDI([]byte(text))
	if err != nil {
		spec.Error = api.Shorten(err.Error(), maxUnread)
		return spec
	}
	spec.Kind = api.Shorten(parsed.Kind, 256)
	for _, device := range parsed.Devices[:min(len(parsed.Devices), maxCDIDevices)] {
		spec.Devices = append(spec.Devices, api.Shorten(device.Name, 128))
	}
	paths := parsed.hostPaths()
	spec.DriverVersion = versionOfLibraries(paths)
	for _, name := range paths {
		if !path.IsAbs(name) || len(spec.Missing) == maxMissing {
			continue
		}
		full, err := root.Resolve(hostfs.Relative(name))
		if err == nil {
			_, err = os.Lstat(full)
		}
		if errors.Is(err, fs.ErrNotExist) {
			spec.Missing = append(spec.Missing, api.Shorten(name, 512))
		}
	}
	return spec
}

// parseCDI parses a specification in JSON or YAML.
func parseCDI(raw []byte) (*cdiSpec, error) {
	var spec cdiSpec
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		if err := json.Unmarshal(raw, &spec); err == nil {
			return &spec, nil
		}
	}
	if len(raw) > maxCDI {
		return nil, fmt.Errorf("not read, because it is larger than %d bytes", maxCDI)
	}
	if err := yaml.Unmarshal(raw, &spec); err != nil {
		return nil, err
	}
	return &spec, nil
}

// hostPaths returns the files and devices on the node that the specification adds to containers.
func (s *cdiSpec) hostPaths() []string {
	var paths []string
	add := func(e cdiEdits) {
		for _, n := range e.DeviceNodes {
			if n.HostPath != "" {
				paths = append(paths, n.HostPath)
			} else {
				paths = append(paths, n.Path)
			}
		}
		for _, m := range e.Mounts {
			paths = append(paths, m.HostPath)
		}
		for _, h := range e.Hooks {
			paths = append(paths, h.Path)
		}
	}
	add(s.Edits)
	for _, device := range s.Devices {
		if len(paths) > maxCDIPaths {
			break
		}
		add(device.Edits)
	}
	paths = unique(paths)
	return paths[:min(len(paths), maxCDIPaths)]
}

// versionedLibrary matches a driver library with a version, such as /usr/lib64/libcuda.so.570.86.15.
var versionedLibrary = regexp.MustCompile(`/lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)*)$`)

func versionOfLibraries(paths []string) string {
	for _, name := range paths {
		if m := versionedLibrary.FindStringSubmatch(name); m != nil {
			return api.Shorten(m[1], 32)
		}
	}
	return ""
}

// maxToolkitConfig is the maximum size of the toolkit's configuration in bytes. A typical file is 1 or 2 kB.
const maxToolkitConfig = 64 << 10

// toolkitConfig reads the configuration of the NVIDIA Container Toolkit. It prefers the GPU operator's file if the
// handlers use the operator's programs, and otherwise the node's own file.
func (d *diagnosing) toolkitConfig(runtime api.Runtime) (func(*api.Diagnosis), error) {
	files := []string{
		"/etc/nvidia-container-runtime/config.toml",
		"/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
	}
	if runtime.Instance != nil {
		for program := range runtime.Instance.Executables {
			if strings.HasPrefix(program, "/usr/local/nvidia/toolkit/") {
				files = []string{files[1], files[0]}
				break
			}
		}
	}
	var wrong problems
	for _, file := range files {
		text, err := d.root.Text(file, maxToolkitConfig)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			wrong.add("%w", err)
			continue
		}
		return func(found *api.Diagnosis) {
			found.Probe.ToolkitConfig, found.Probe.ToolkitConfigPath = printable(text), file
		}, wrong.err()
	}
	return nil, wrong.err()
}
