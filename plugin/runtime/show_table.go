package runtime

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// write prints the view as text: single values in the style of `kubectl describe`, and lists as tables.
func (v *view) write(w io.Writer, format printer.Format) error {
	out := &sections{w: w, format: format}
	out.lines("", v.summary(format.IsWide()))
	if v.Runtime != nil {
		out.table("Configuration files, in the order in which they are loaded:", v.files(format.IsWide()))
		out.table("Runtime handlers:", v.handlers(format.IsWide()))
	}
	out.lines("RuntimeClasses with a handler that this node does not have:", v.withoutHandler())
	out.table("Other containerd instances and files, not used by the kubelet:", v.decoys(format.IsWide()))
	for _, t := range v.Toolkits {
		out.lines(fmt.Sprintf("Settings of the NVIDIA container toolkit, DaemonSet %s/%s:", t.Namespace, t.Name),
			toolkitLines(t))
	}
	var findings []string
	for _, f := range v.Findings {
		findings = append(findings, "  "+f.ID+": "+f.Message)
		if f.Fix != "" {
			findings = append(findings, "      Fix: "+f.Fix)
		}
	}
	out.lines("Findings:", findings)
	var warnings []string
	for _, text := range v.allWarnings() {
		warnings = append(warnings, "  "+text)
	}
	out.lines("Warnings:", warnings)
	return out.err
}

// sections writes paragraphs separated by empty lines. It keeps the first error.
type sections struct {
	w       io.Writer
	format  printer.Format
	started bool
	err     error
}

func (s *sections) title(text string) {
	if s.started {
		s.print("\n")
	}
	s.started = true
	if text != "" {
		s.print(text + "\n")
	}
}

func (s *sections) print(text string) {
	if s.err == nil {
		_, s.err = io.WriteString(s.w, text)
	}
}

func (s *sections) lines(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	s.title(title)
	for _, line := range lines {
		s.print(printer.Wrap(printer.Escape(line), printer.Width(s.w)) + "\n")
	}
}

func (s *sections) table(title string, t *printer.Table) {
	if len(t.Rows) == 0 {
		return
	}
	s.title(title)
	t.NoHeader = s.format.NoHeader
	if s.err == nil {
		s.err = t.Write(s.w)
	}
}

// summary returns the lines at the top of the output. Each line has a name and a value.
func (v *view) summary(wide bool) []string {
	var pairs [][2]string
	add := func(name, value string) {
		if value != "" {
			pairs = append(pairs, [2]string{name + ":", value})
		}
	}
	add("Node", v.Node)
	if v.Kubelet.PID != 0 {
		add("Kubelet",
			"process "+process(v.Kubelet.PID, v.Kubelet.Exe)+with(", cgroup driver ", v.Kubelet.CgroupDriver))
		add("Endpoint", fmt.Sprintf("%s (from %s)", v.Kubelet.Endpoint, from(v.Kubelet.EndpointFrom)))
	}
	if i := v.Runtime; i != nil {
		add("Runtime", strings.TrimSpace(i.Name+" "+strings.TrimPrefix(i.Release, "v"))+", "+state(i))
		add("Process", process(i.PID, i.Exe))
		if wide {
			add("Command", strings.Join(i.Args, " "))
		}
		add("Unit", cmp.Or(i.Unit, "not a systemd unit"))
		add("Socket", i.Socket)
		if i.ConfigPath != "" && len(i.Files) == 0 {
			add("Configuration", i.ConfigPath+" does not exist: containerd uses its defaults")
		}
	}
	add("Problem", v.Problem)
	width := 0
	for _, p := range pairs {
		width = max(width, len(p[0]))
	}
	lines := make([]string, len(pairs))
	for n, p := range pairs {
		lines[n] = fmt.Sprintf("%-*s   %s", width, p[0], p[1])
	}
	return lines
}

func process(pid int, exe string) string {
	if pid == 0 {
		return ""
	}
	return fmt.Sprintf("%d (%s)", pid, exe)
}

func with(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

func from(who string) string {
	if who == "default" {
		return "the kubelet's default"
	}
	return who
}

func state(i *runtimeview.Instance) string {
	switch {
	case i.Ready:
		return "ready"
	case i.PID == 0:
		return "not running"
	default:
		return with("not ready: ", i.Error)
	}
}

func (v *view) files(wide bool) *printer.Table {
	t := &printer.Table{Header: []string{"FILE", "VERSION", "LINES", "MODIFIED", "NOTE"}}
	if wide {
		t.Header = []string{"FILE", "VERSION", "LINES", "MODIFIED", "MODE", "OWNER", "SHA256", "NOTE"}
	}
	for _, f := range v.Runtime.Files {
		version := printer.Blank
		if f.Version > 0 {
			version = strconv.Itoa(f.Version)
		}
		note := with("link to ", f.Link)
		if f.NotEdited != "" {
			note = strings.TrimPrefix(note+"; "+f.NotEdited, "; ")
		}
		cells := []string{f.Path, version, strconv.Itoa(f.Lines), f.Modified.In(v.local).Format(time.DateTime)}
		if wide {
			cells = append(cells, f.Mode, fmt.Sprintf("%d:%d", f.UID, f.GID), f.SHA256[:12])
		}
		t.Add(append(cells, cmp.Or(note, printer.Blank))...)
	}
	return withoutBlanks(t)
}

// handlers returns a table with a row for each handler, or with two rows if the handler on disk differs from the one in
// memory.
func (v *view) handlers(wide bool) *printer.Table {
	t := &printer.Table{
		Header: []string{"HANDLER", "WHERE", "BINARY", "SYSTEMD-CGROUP", "TYPE", "RUNTIMECLASS", "DEFINED-IN", "NOTE"},
	}
	memory := v.Runtime.ShowsMemory()
	for _, h := range v.Runtime.Handlers {
		add := func(where string, s *settings, note string) {
			programs := runtimeview.Handler{OnDisk: s}.Programs()
			binary := s.BinaryName
			if binary == "" {
				binary = programs[0]
			}
			for _, p := range programs {
				if v.Runtime.Executables[p] != "" {
					note = strings.TrimPrefix(note+"; "+trouble(p, v.Runtime.Executables[p]), "; ")
				}
			}
			systemd := printer.Blank
			if h.UsesRunc() {
				systemd = strconv.FormatBool(s.Systemd())
			}
			kind := s.Type
			if kind == "" || kind == "io.containerd.runc.v2" && !wide {
				kind = printer.Blank
			}
			name := h.Name
			if h.Default {
				name += " (default)"
			}
			defined := printer.Blank
			if s == h.OnDisk || where == "disk, memory" {
				defined = cmp.Or(strings.Join(h.Places, " "), printer.Blank)
			}
			t.Add(name, where, cmp.Or(binary, printer.Blank), systemd, kind,
				cmp.Or(strings.Join(h.RuntimeClasses, ","), printer.Blank), defined, cmp.Or(note, printer.Blank))
		}
		switch {
		case h.OnDisk != nil && h.InMemory != nil && !h.Stale:
			add("disk, memory", h.InMemory, "")
		case h.OnDisk == nil && h.Stale:
			add("memory", h.InMemory, "removed at the next restart")
		case h.OnDisk == nil:
			add("memory", h.InMemory, "")
		default:
			if h.InMemory != nil {
				add("memory", h.InMemory, "")
			}
			note := ""
			if memory {
				note = "not loaded: restart containerd"
			}
			add("disk", h.OnDisk, note)
		}
	}
	return withoutBlanks(t)
}

// trouble returns a short description of a problem with a program. The findings contain the details.
func trouble(program, problem string) string {
	what := "binary"
	if runtimeview.IsShim(program) {
		what = "shim"
	}
	if problem == "not executable" || problem == "empty" {
		return what + " " + problem + "!"
	}
	return what + " missing!"
}

// withoutHandler returns the RuntimeClasses whose handler is missing on the node.
func (v *view) withoutHandler() []string {
	var lines []string
	for _, class := range v.RuntimeClasses {
		if class.Known != nil && !*class.Known {
			lines = append(lines,
				fmt.Sprintf("  %s (handler %s): pods with this RuntimeClass do not start on this node", class.Name, class.Handler))
		}
	}
	return lines
}

func (v *view) decoys(wide bool) *printer.Table {
	t := &printer.Table{Header: []string{"CONFIGURATION", "LOADED-BY", "SOCKET", "GPU-HANDLERS", "HANDLERS"}}
	for _, d := range v.Decoys {
		by, socket := "none", printer.Blank
		if d.PID != 0 {
			by, socket = fmt.Sprintf("process %d", d.PID), d.Socket
			if d.Unit != "" {
				by += " (" + d.Unit + ")"
			}
		}
		if wide && d.Exe != "" {
			by += " " + d.Exe
		}
		gpu, rest := []string{}, []string{}
		for _, h := range d.Handlers {
			if h.IsGPU() {
				gpu = append(gpu, h.Name)
			} else {
				rest = append(rest, h.Name)
			}
		}
		path := d.ConfigPath
		if len(d.Files) > 1 {
			path += fmt.Sprintf(" and %d more", len(d.Files)-1)
		}
		if d.PID != 0 && len(d.Files) == 0 {
			path += " (missing)"
		}
		t.Add(path, by, socket, cmp.Or(strings.Join(gpu, ","), printer.None),
			cmp.Or(strings.Join(rest, ","), printer.Blank))
	}
	return withoutBlanks(t)
}

func toolkitLines(t toolkit) []string {
	if len(t.Settings) == 0 {
		return []string{
			"  none for the runtime; by default, the toolkit edits /etc/containerd/config.toml and its imports",
		}
	}
	var lines []string
	for _, s := range t.Settings {
		line := "  " + s.Name + "=" + s.Value
		if s.OnNode != "" {
			line += " (on the node: " + s.OnNode + ")"
		}
		lines = append(lines, line)
	}
	return lines
}

func (v *view) allWarnings() []string {
	all := slices.Clone(v.Warnings)
	if v.Runtime != nil {
		all = append(all, v.Runtime.Warnings...)
	}
	for _, d := range v.Decoys {
		if d.ConfigError != "" {
			all = append(all, d.ConfigPath+": "+d.ConfigError)
		}
	}
	return all
}

// withoutBlanks removes the columns that are blank in all rows.
func withoutBlanks(t *printer.Table) *printer.Table {
	var kept []int
	for column := range t.Header {
		if slices.ContainsFunc(t.Rows, func(row []string) bool { return row[column] != printer.Blank }) {
			kept = append(kept, column)
		}
	}
	pick := func(row []string) []string {
		cells := make([]string, len(kept))
		for i, column := range kept {
			cells[i] = row[column]
		}
		return cells
	}
	t.Header = pick(t.Header)
	for i, row := range t.Rows {
		t.Rows[i] = pick(row)
	}
	return t
}
