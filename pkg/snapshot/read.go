package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Input limits. A real snapshot of 5,000 nodes needs less than a fifth of each limit.
const (
	maxFile  = 256 << 20 // maximum size of one file
	maxTotal = 1 << 30   // maximum total size of all files
	maxYAML  = 32 << 20  // maximum size of one YAML file; parsing needs many times as much memory
	// Maximum sizes of a log and of a file on a node. What the helper and the collector keep is at most a quarter of
	// these sizes.
	maxText    = 4 << 20
	maxSMI     = 8 << 20    // maximum size of one nvidia-smi.xml; eight GPUs with MIG need 500 kB
	maxEntries = 200_000    // maximum number of files, including ignored ones
	maxObjects = 4_000_000  // maximum number of JSON objects and lists in all files: each may use a kilobyte of memory
	maxValues  = 16_000_000 // maximum number of commas in JSON: each may be a list item of about 30 bytes
	maxRecords = 5_000_000  // maximum number of records in all kernel logs; the helper sends at most 2,000 per node
)

// Read reads a tree with the layout in README.md. A missing file means that there are no such objects; without
// snapshot.json, Meta is zero. Read ignores files with other names. An error names the file.
func Read(fsys fs.FS) (*Snapshot, error) {
	r := newReader()
	for _, top := range topLevel() {
		err := fs.WalkDir(fsys, top, func(name string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return fmt.Errorf("read %q: %w", cut(name), unnamed(err))
			case entry.IsDir():
				return nil
			}
			return r.addFile(fsys, name)
		})
		if err != nil {
			return nil, err
		}
	}
	return r.finish()
}

// topLevel returns the names at the top level of the layout.
func topLevel() []string {
	names := []string{"api", "logs", "nodes"}
	for _, base := range []string{"snapshot", "missing", "helm", "images", "runs"} {
		for _, extension := range []string{".json", ".yaml", ".yml"} {
			names = append(names, base+extension)
		}
	}
	return names
}

// reader reads files one by one in any order, so that an archive can be read as a stream.
type reader struct {
	s       Snapshot
	parsers map[string]func(file) error // parsers for whole files, by path without extension
	seen    map[string]bool
	total   int64
	// objects, values and records count toward the limits.
	objects, values, records int
	// files contains the contents of files on nodes, by node and path. The runtimes that they belong to may be read
	// later.
	files map[string]map[string][]byte
}

// file is a file in the tree.
type file struct {
	name string // without the extension
	yaml bool
	data []byte
}

func newReader() *reader {
	r := &reader{seen: map[string]bool{}, files: map[string]map[string][]byte{}}
	r.parsers = r.apiParsers()
	return r
}

func (r *reader) addFile(fsys fs.FS, name string) error {
	if !r.wants(name) {
		return nil
	}
	// Stat before opening: opening a named pipe would block.
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return fmt.Errorf("read %q: %w", cut(name), unnamed(err))
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("read %q: not a regular file: replace it with a copy of its contents, or remove it",
			cut(name))
	}
	f, err := fsys.Open(name)
	if err != nil {
		return fmt.Errorf("read %q: %w", cut(name), unnamed(err))
	}
	defer func() { _ = f.Close() }() // read-only
	return r.add(name, info.Size(), f)
}

// wants reports whether the layout contains a file with this name.
func (r *reader) wants(name string) bool {
	parts := strings.Split(name, "/")
	switch parts[0] {
	case "logs":
		return len(parts) == 4 && strings.HasSuffix(name, ".log")
	case "nodes":
		return len(parts) >= 3
	}
	base, _, structured := cutExtension(name)
	return structured && r.parsers[base] != nil
}

// add reads one file. If the same name occurs more than once, only the first file is read.
func (r *reader) add(name string, size int64, content io.Reader) error {
	if !r.wants(name) || r.seen[name] {
		return nil
	}
	r.seen[name] = true
	data, err := r.readAll(name, size, content)
	if err != nil {
		return err
	}
	switch first, rest, _ := strings.Cut(name, "/"); first {
	case "logs":
		if r.named("logs", strings.Split(strings.TrimSuffix(rest, ".log"), "/")...) {
			r.addLog(rest, data)
		}
	case "nodes":
		nodeName, _, _ := strings.Cut(rest, "/")
		if r.named("nodes", nodeName) {
			return r.addHost(name, data)
		}
	default:
		base, isYAML, _ := cutExtension(name)
		if err := r.parsers[base](file{base, isYAML, data}); err != nil {
			return damaged(name, err)
		}
	}
	return nil
}

func (r *reader) readAll(name string, size int64, content io.Reader) ([]byte, error) {
	limit := sizeLimit(name)
	tooLarge := fmt.Errorf("%q is larger than %d MiB: keep only the parts that are relevant to GPUs, as JSON",
		cut(name), limit>>20)
	if size > limit {
		return nil, tooLarge
	}
	data, err := io.ReadAll(io.LimitReader(content, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", cut(name), unnamed(err))
	}
	if int64(len(data)) > limit {
		return nil, tooLarge
	}
	if r.total += int64(len(data)); r.total > maxTotal {
		return nil, errTooMuch()
	}
	return data, nil
}

// sizeLimit returns the maximum size of a file with this name, in bytes.
func sizeLimit(name string) int64 {
	_, isYAML, structured := cutExtension(name)
	switch parts := strings.Split(name, "/"); {
	case path.Base(name) == "nvidia-smi.xml":
		return maxSMI
	case !structured, parts[0] == "logs", parts[0] == "nodes" && len(parts) > 3: // files on a node may have any name
		return maxText
	case isYAML:
		return maxYAML
	}
	return maxFile
}

func errTooMuch() error {
	return fmt.Errorf("larger than %d MiB: keep only the parts that are relevant to GPUs",
		maxTotal>>20)
}

// damaged adds the file name to an error.
func damaged(name string, err error) error {
	if errors.Is(err, errNewer) {
		return fmt.Errorf("%q: %w", cut(name), err)
	}
	// The error is not wrapped, so that truncated JSON is not mistaken for a truncated archive.
	return fmt.Errorf("%q cannot be parsed (%s): correct the file, or remove it from the snapshot", cut(name),
		oneLine(err))
}

// unnamed returns a file's error without the file name, which is untrusted and already in the message.
func unnamed(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// cutExtension removes the extension of a JSON or YAML file, and reports whether the file is a JSON or YAML file.
func cutExtension(name string) (base string, yaml, structured bool) {
	switch extension := path.Ext(name); extension {
	case ".json":
		return strings.TrimSuffix(name, extension), false, true
	case ".yaml", ".yml":
		return strings.TrimSuffix(name, extension), true, true
	}
	return name, false, false
}

// addLog adds NAMESPACE/POD/CONTAINER.log. Container names do not contain dots.
func (r *reader) addLog(name string, data []byte) {
	parts := strings.Split(strings.TrimSuffix(name, ".log"), "/")
	container, previous := strings.CutSuffix(parts[2], ".previous")
	container, head := strings.CutSuffix(container, ".head")
	r.s.Logs = append(r.s.Logs, Log{
		Namespace: parts[0], Pod: parts[1], Container: container, Previous: previous, Head: head, Text: string(data),
	})
}

func (r *reader) host(name string) *api.Diagnosis {
	if r.s.Hosts == nil {
		r.s.Hosts = map[string]*api.Diagnosis{}
	}
	if r.s.Hosts[name] == nil {
		r.s.Hosts[name] = &api.Diagnosis{}
	}
	return r.s.Hosts[name]
}

// addHost adds nodes/NODE/...
func (r *reader) addHost(name string, data []byte) error {
	parts := strings.SplitN(name, "/", 4)
	nodeName, what := parts[1], parts[2]
	var rest string
	if len(parts) == 4 {
		rest = parts[3]
	}
	base, isYAML, structured := cutExtension(what)
	switch {
	case what == "files" && rest != "":
		if r.files[nodeName] == nil {
			r.files[nodeName] = map[string][]byte{}
		}
		r.files[nodeName]["/"+rest] = data
	case what == "journal" && strings.HasSuffix(rest, ".log"):
		host := r.host(nodeName)
		if host.Journals == nil {
			host.Journals = map[string]string{}
		}
		host.Journals[strings.TrimSuffix(rest, ".log")] = string(data)
	case rest != "": // not in the layout
	case what == "nvidia-smi.xml":
		r.host(nodeName).SMI = string(data)
	case what == "kernel.log":
		host := r.host(nodeName)
		host.KernelLog = ParseKernelLog(string(data))
		if r.records += len(host.KernelLog); r.records > maxRecords {
			return fmt.Errorf(
				"%q: more than %d kernel log records in the snapshot: keep only those that are relevant to GPUs",
				cut(name), maxRecords,
			)
		}
	case structured:
		return r.addHostPart(name, nodeName, file{base, isYAML, data})
	}
	return nil
}

func (r *reader) addHostPart(name, nodeName string, f file) error {
	var into any
	switch f.name {
	case "info":
		into = &r.host(nodeName).Info
	case "runtime":
		into = &r.host(nodeName).Runtime
	case "probe":
		into = &r.host(nodeName).Probe
	default:
		return nil
	}
	if err := r.decode(f, into); err != nil {
		return damaged(name, err)
	}
	return nil
}

// finish combines the parts, and sorts the snapshot.
func (r *reader) finish() (*Snapshot, error) {
	for name, host := range r.s.Hosts {
		r.putBack(&host.Runtime, r.files[name])
		fillTimes(host)
	}
	s := &r.s
	sortLogs(s.Logs)
	r.sortObjects()
	return s, nil
}

// putBack adds the contents of files to the runtime. It preserves contents in runtime.json itself, because two runtimes
// may see different files at the same path.
func (r *reader) putBack(runtime *api.Runtime, contents map[string][]byte) {
	put := func(instance *api.Instance) {
		if instance.CRI != nil {
			instance.CRI.Config = compact(instance.CRI.Config)
		}
		for i := range instance.Files {
			f := &instance.Files[i]
			if data, ok := contents[path.Clean("/"+f.Path)]; ok && f.Data == nil {
				f.Data = data
			}
		}
	}
	if runtime.Instance != nil {
		put(runtime.Instance)
	}
	for i := range runtime.Decoys {
		put(&runtime.Decoys[i])
	}
}

// compact removes insignificant white space.
func compact(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

// fillTimes computes the wall-clock times of records, for logs that only contain the time since boot.
func fillTimes(host *api.Diagnosis) {
	if host.Probe.Time.IsZero() || host.Probe.Uptime == 0 {
		return
	}
	boot := host.Probe.Time.Add(-host.Probe.Uptime)
	for i := range host.KernelLog {
		if record := &host.KernelLog[i]; record.Time.IsZero() {
			record.Time = boot.Add(record.Uptime)
		}
	}
}
