package runtimeview

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Finding is a problem that exists now or will exist after the next restart.
type Finding struct {
	ID      string `json:"id"` // such as rt.wrong-instance
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`

	// Title describes the problem without the node's name, so that many nodes can share it.
	Title string `json:"-"`
	// Edit fixes the file, or is nil if the correct value is unknown.
	Edit *Edit `json:"-"`
	// Handlers lists the affected handlers. It is empty if the problem affects all handlers.
	Handlers []string `json:"-"`
	// Quotes are the relevant lines of files and output.
	Quotes []Quote `json:"-"`
	// Latent means that the problem is only in the files, which the running daemon has not loaded yet.
	Latent bool `json:"-"`
	// Mild means that the problem causes no failure by itself.
	Mild bool `json:"-"`
}

// Quote is a quote from a file, a process, or the runtime.
type Quote struct{ Source, Text string }

// find returns common problems of the container runtime on GPU nodes.
func (v *View) find() []Finding {
	all := []Finding{}
	if v.Runtime == nil || v.Runtime.Name != "containerd" {
		return all
	}
	all = append(all, v.notServing()...)
	all = append(all, v.notLoaded()...)
	wrong := v.wrongInstance()
	if len(wrong) == 0 { // the fix for a wrong instance covers this problem
		wrong = v.misdirected()
	}
	all = append(all, wrong...)
	all = append(all, v.stale()...)
	all = append(all, v.missing()...)
	all = append(all, v.ignored()...)
	return append(all, v.cgroups()...)
}

func (v *View) notServing() []Finding {
	i, all := v.Runtime, []Finding(nil)
	if i.ConfigError != "" {
		message := "containerd will fail to start with its current configuration files: " + i.ConfigError
		if i.Ready {
			message += "; until the next restart, it keeps using the configuration in memory"
		}
		all = append(all, Finding{
			ID: "rt.unparsable", Message: message,
			Fix:   "correct " + i.ConfigPath + " before a restart of " + i.UnitName(),
			Title: "containerd will fail to start with " + i.ConfigPath + " and its imports", Latent: i.Ready,
			Quotes: []Quote{{"containerd's " +
				"configuration", i.ConfigError}},
		})
	}
	if !i.Ready {
		all = append(all, Finding{
			ID: "rt.not-ready", Message: i.UnitName() + " does not respond to the kubelet: " + i.Error,
			Title:  "the container runtime does not respond to the kubelet",
			Quotes: []Quote{{"the runtime at " + cmp.Or(i.Socket, "its socket"), i.Error}},
		})
	}
	return all
}

// notLoaded finds files that allow containerd to start but prevent its CRI plugin from loading, so that the node
// becomes NotReady.
func (v *View) notLoaded() []Finding {
	i, all := v.Runtime, []Finding(nil)
	later := ""
	if i.Ready {
		later = "; until the next restart, it keeps using the configuration in memory"
	}
	for _, p := range i.Problems {
		f := Finding{Latent: i.Ready, Handlers: p.Handlers, Quotes: i.quotes(p)}
		switch p.Kind {
		case containerd.ProblemDisabled:
			f.ID, f.Title = "rt.cri-disabled",
				fmt.Sprintf("%s disables the CRI plugin (%q), which the kubelet requires", i.ConfigPath, p.Value)
			f.Edit = i.enabled(p.Value)
			f.Message = p.Text + later
			f.Fix = fmt.Sprintf("remove %q from disabled_plugins in %s, and restart %s", p.Value, i.ConfigPath,
				i.UnitName())
		case containerd.ProblemNoDefault:
			if shadow := i.shadow(p.Default); shadow != nil {
				f.ID, f.Title = "rt.dropin-shadow",
					"the drop-in "+shadow.File+" replaces the entire CRI configuration, so the CRI plugin does not load"
				f.Quotes = append(i.quotes(*shadow), f.Quotes...)
				f.Message = shadow.Text + "; " + p.Text + later
				f.Fix =
					fmt.Sprintf(
						"move %s to another directory, or add the entire CRI table to the file; then restart %s. "+
							"containerd 2.0 merges such files",
						shadow.File,
						i.UnitName(),
					)
				break
			}
			f.ID, f.Title = "rt.default-missing",
				fmt.Sprintf("the default runtime handler %q does not exist, so the CRI plugin does not load", p.Default)
			f.Message = p.Text + later
			f.Fix =
				fmt.Sprintf("set default_runtime_name in %s to a defined handler, or define %s; then restart "+
					"%s", i.ConfigPath, p.Default, i.UnitName())
		case containerd.ProblemReplaces:
			if len(p.Handlers) == 0 || i.has(containerd.ProblemNoDefault) {
				continue
			}
			f.ID, f.Mild, f.Title = "rt.dropin-shadow", true, "the drop-in "+p.File+
				" replaces the entire CRI configuration, including "+plainly("handler", p.Handlers)
			f.Latent = i.Ready && slices.ContainsFunc(p.Handlers, func(name string) bool {
				h, _ := i.Handler(name)
				return h.InMemory != nil
			})
			if !f.Latent { // containerd already runs without these handlers
				later = ""
			}
			f.Message = p.Text + "; lost: " + strings.Join(p.Handlers, ", ") + later
			f.Fix = fmt.Sprintf("add the entire CRI table to %s, or upgrade to containerd 2.0, which merges the CRI tables of imported files", p.File)
		default:
			continue
		}
		all = append(all, f)
	}
	return all
}

// ignored finds settings that containerd ignores without an error. As a result, pods start without a GPU, or the
// handler does not exist.
func (v *View) ignored() []Finding {
	i, all := v.Runtime, []Finding(nil)
	for _, p := range i.Problems {
		f := Finding{Handlers: p.Handlers, Quotes: i.quotes(p), Message: p.Text}
		switch p.Kind {
		case containerd.ProblemUnknownKey:
			if !isRuncOption(p.Key) {
				continue
			}
			h, known := i.Handler(p.Handlers[0])
			f.ID = "rt.option-misplaced"
			f.Title = fmt.Sprintf("%s of handler %s is one level too high in %s, where containerd ignores it", p.Key,
				p.Handlers[0], p.File)
			f.Message += ": pods with this handler run with plain runc, without GPUs"
			f.Latent = known && h.InMemory != nil && h.InMemory.BinaryName != "" && p.Key == binaryName
			f.Mild = p.Key != binaryName || known && h.OnDisk != nil && h.OnDisk.BinaryName != ""
			if f.Mild {
				f.Message = p.Text
			}
			f.Edit = i.moved(p)
			f.Fix = fmt.Sprintf("move %s (line %d of %s) into the table %s, and restart %s", p.Key, p.Line, p.File,
				cmp.Or(i.optionsTable(p), "options of handler "+p.Handlers[0]), i.UnitName())
		case containerd.ProblemUnread:
			f.Handlers = slices.DeleteFunc(slices.Clone(p.Handlers),
				func(name string) bool { return !isGPUName(name) || i.knows(name) })
			if len(f.Handlers) == 0 {
				continue
			}
			f.ID, f.Title = "rt.version-skew-ids", fmt.Sprintf(
				"%s in %s under a plugin ID that containerd %s ignores in a configuration file with this version "+
					"number",
				isAre("handler", f.Handlers), p.File, i.Release,
			)
			f.Fix =
				fmt.Sprintf(
					"replace the file with the output of `%s -c %s config migrate`, which contains the ID that this release reads, and restart "+
						"%s",
					cmp.Or(i.Exe, "containerd"),
					p.File,
					i.UnitName(),
				)
		default:
			continue
		}
		all = append(all, f)
	}
	return all
}

const binaryName = "BinaryName"

// isRuncOption reports whether a key is an option of runc, which belongs in the options table (see core/runtime/v2
// options.proto in containerd).
func isRuncOption(key string) bool {
	return slices.Contains([]string{
		binaryName, "SystemdCgroup", "Root", "NoPivotRoot", "NoNewKeyring", "ShimCgroup", "IoUid", "IoGid", "CriuPath",
		"CriuImagePath", "CriuWorkPath",
	}, key)
}

// wrongInstance finds GPU handlers in a configuration that the kubelet's containerd does not load.
func (v *View) wrongInstance() []Finding {
	var all []Finding
	for _, d := range v.Decoys {
		var lost, places []string
		for _, h := range d.Handlers {
			if h.IsGPU() && !v.Runtime.knows(h.Name) {
				lost = append(lost, h.Name)
				places = append(places, h.Places...)
			}
		}
		if len(lost) == 0 {
			continue
		}
		where := d.ConfigPath
		if len(places) > 0 {
			where = places[0]
		}
		message :=
			fmt.Sprintf(
				"%s defined in %s, which %s; the kubelet uses %s, which does not have %s: pods that request it fail with `no runtime for %q is configured`",
				isAre("handler", lost),
				where,
				d.loadedBy(),
				v.Runtime.describe(),
				itThem(lost),
				lost[0],
			)
		quotes := []Quote{
			{"the kubelet, from " + cmp.Or(v.Kubelet.EndpointFrom, "its settings"), v.Kubelet.Endpoint},
			{"handlers of " + v.Runtime.describe(), strings.Join(v.Runtime.names(), ", ")},
		}
		if file, line, ok := cutPlace(where); ok {
			quotes = append([]Quote{{where, d.Line(file, line)}}, quotes...)
		}
		all = append(all, Finding{
			ID:       "rt.wrong-instance",
			Message:  message,
			Fix:      v.toolkitFix(),
			Handlers: lost,
			Quotes:   quotes,
			Title: fmt.Sprintf(
				"%s in %s, which the kubelet's containerd does not load",
				isAre("handler", lost),
				where,
			),
		})
	}
	return all
}

// cutPlace splits FILE:LINE.
func cutPlace(place string) (file string, line int, ok bool) {
	n := strings.LastIndexByte(place, ':')
	if n < 0 {
		return "", 0, false
	}
	_, err := fmt.Sscanf(place[n+1:], "%d", &line)
	return place[:n], line, err == nil
}

// misdirected finds a toolkit on the node that is configured to edit a configuration that the kubelet's containerd does
// not load.
func (v *View) misdirected() []Finding {
	var all []Finding
	for _, t := range v.Toolkits {
		told := t.Config()
		if !t.MatchesNode || told == "" || told == v.Runtime.ConfigPath || v.Runtime.loads(told) ||
			v.Runtime.HasGPUHandler() {
			continue
		}
		said := "no runtime settings, so it edits the default file"
		if s := t.Setting("RUNTIME_CONFIG", "CONTAINERD_CONFIG"); s != nil {
			said = s.Name + "=" + s.Value
		}
		all = append(all, Finding{
			ID: "rt.wrong-instance",
			Message: fmt.Sprintf("DaemonSet %s/%s edits %s, which %s does not "+
				"load", t.Namespace, t.Name, told, v.Runtime.describe()), Fix: v.toolkitFix(),
			Title: "the NVIDIA container toolkit edits " + told + ", which the kubelet's containerd does not load",
			Quotes: []Quote{
				{fmt.Sprintf("DaemonSet %s/%s, container %s", t.Namespace, t.Name, t.Container), said},
				{"the kubelet, from " + cmp.Or(v.Kubelet.EndpointFrom, "its settings"), v.Kubelet.Endpoint},
				{"configuration of " + v.Runtime.describe(), strings.Join(v.Runtime.paths(), ", ")},
			},
		})
	}
	return all
}

// ToolkitEnv returns the settings with which the NVIDIA Container Toolkit edits the configuration of the correct
// containerd, or none if they are unknown. All four are required: since v1.18, the toolkit writes a drop-in and reads
// the configuration with `containerd config dump`, using the first containerd in the node's PATH.
func (v *View) ToolkitEnv() []Setting {
	i := v.Runtime
	if i == nil || i.ConfigPath == "" {
		return nil
	}
	return []Setting{
		{Name: "CONTAINERD_CONFIG", Value: i.ConfigPath}, {Name: "CONTAINERD_SOCKET", Value: i.Socket},
		{Name: "RUNTIME_DROP_IN_CONFIG", Value: i.dropIn()},
		{Name: "RUNTIME_CONFIG_SOURCE", Value: "file=" + i.ConfigPath},
	}
}

// dropIn returns the path for the toolkit's drop-in, in a directory that the root file imports. If the root file has no
// such import, the toolkit adds one.
func (i *Instance) dropIn() string {
	for _, pattern := range i.Imports {
		if path.Base(pattern) != "*.toml" && path.Base(pattern) != "*" {
			continue
		}
		if !path.IsAbs(pattern) {
			pattern = path.Join(path.Dir(i.ConfigPath), pattern)
		}
		return path.Join(path.Dir(pattern), "99-nvidia.toml")
	}
	return path.Join(path.Dir(i.ConfigPath), "conf.d", "99-nvidia.toml")
}

func (v *View) toolkitFix() string {
	var values []string
	for _, s := range v.ToolkitEnv() {
		values = append(values, s.Name+"="+s.Value)
	}
	return "configure the NVIDIA container toolkit for this containerd (toolkit.env of the GPU operator's chart): " +
		strings.Join(values, ", ")
}

func (v *View) stale() []Finding {
	var edited, added, removed, all []string
	var quotes []Quote
	for _, h := range v.Runtime.Handlers {
		switch {
		case !h.Stale:
			continue
		case h.OnDisk == nil:
			removed = append(removed, h.Name)
		case h.InMemory == nil:
			added = append(added, h.Name)
		default:
			edited = append(edited, h.Name)
		}
		all = append(all, h.Name)
		quotes = append(quotes, Quote{"handler " + h.Name + " in memory", said(h.InMemory)})
		place := "on disk"
		if len(h.Places) > 0 {
			place = h.Places[len(h.Places)-1]
		}
		quotes = append(quotes, Quote{"handler " + h.Name + ", " + place, said(h.OnDisk)})
	}
	var words []string
	for _, group := range []struct {
		what  string
		names []string
	}{{"added", added}, {"changed", edited}, {"removed", removed}} {
		if len(group.names) > 0 {
			words = append(words, group.what+" "+strings.Join(group.names, ", "))
		}
	}
	if len(words) == 0 {
		return nil
	}
	fix := "restart containerd"
	if v.Runtime.Unit != "" {
		fix = "systemctl restart " + v.Runtime.Unit
	}
	return []Finding{{
		ID: "rt.edited-not-restarted", Fix: fix, Handlers: all, Quotes: quotes, Mild: len(added) == 0,
		Message: "the files were edited after containerd read them (" + strings.Join(words, "; ") +
			"): containerd keeps using the old handlers until it is restarted",
		Title: "the configuration was edited after containerd read it, so the edit is not in effect",
	}}
}

// said returns a handler's settings on one line.
func said(s *Settings) string {
	if s == nil {
		return "none"
	}
	return fmt.Sprintf("runtime_type = %q, BinaryName = %q, SystemdCgroup = %t", s.Type, s.BinaryName, s.Systemd())
}

// missing finds executables that do not exist. If several handlers use the same executable, it is reported only once.
func (v *View) missing() []Finding {
	users := map[string][]string{}
	for _, h := range v.Runtime.Handlers {
		for _, program := range h.Programs() {
			if v.Runtime.Executables[program] != "" && !slices.Contains(users[program], h.Name) {
				users[program] = append(users[program], h.Name)
			}
		}
	}
	var all []Finding
	for program, handlers := range users {
		f := Finding{
			ID: "rt.binary-missing", Handlers: handlers, Latent: true,
			Title: fmt.Sprintf("%s %s %s, which %s", plainly("handler", handlers), verb(handlers, "starts"), program,
				unusable(v.Runtime.Executables[program])),
			Message: fmt.Sprintf("%s, used by %s: %s; pods that request %s do not start", program,
				plainly("handler", handlers), v.Runtime.Executables[program], plainly("handler", handlers)),
			Quotes: []Quote{{program, v.Runtime.Executables[program]}},
		}
		if IsShim(program) {
			f.ID = "rt.runtime-type"
			f.Title = fmt.Sprintf("%s %s a runtime type whose shim, %s, %s", plainly("handler", handlers),
				have(handlers), program, unusable(v.Runtime.Executables[program]))
		}
		for _, name := range handlers {
			h, _ := v.Runtime.Handler(name)
			f.Latent = f.Latent && h.InMemory != nil &&
				!slices.Contains((&Handler{InMemory: h.InMemory}).Programs(), program)
			if h.InMemory == nil && v.Runtime.ShowsMemory() {
				continue // not loaded yet, so pods cannot use the handler
			}
			f.Quotes = append(f.Quotes, Quote{
				"handler " + name + strings.TrimRight(" "+strings.Join(h.Places, " "), " "), said(new(h.Effective())),
			})
			if kind := h.Effective().Type; IsShim(program) && h.IsGPU() && len(handlers) == 1 {
				f.Edit = v.Runtime.replaced(h, "runtime_type", kind, runcType)
			}
		}
		all = append(all, f)
	}
	sorting.Func(all, func(a, b Finding) int { return cmp.Compare(a.Message, b.Message) })
	return all
}

// runcType is the runtime_type that the NVIDIA Container Toolkit sets for its handlers.
const runcType = "io.containerd.runc.v2"

// unusable describes a program's problem, as the end of a sentence.
func unusable(problem string) string {
	switch problem {
	case "missing":
		return "does not exist"
	case "a directory", "not executable", "empty":
		return "is " + problem
	}
	if strings.HasPrefix(problem, "not found in PATH") {
		return "is not in containerd's PATH"
	}
	return "cannot be executed"
}

// Programs returns the programs that the handler executes, on disk and in memory, under the same names as in
// Executables.
func (h Handler) Programs() []string {
	var all []string
	for _, s := range []*Settings{h.OnDisk, h.InMemory} {
		if s != nil {
			from := api.Handler{Type: s.Type, BinaryName: s.BinaryName}
			all = append(all, from.Binary(), from.Shim())
		}
	}
	return all
}
