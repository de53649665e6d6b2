package runtime

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node"
)

// finding is something that is wrong, or will be after the next restart.
type finding struct {
	ID      string `json:"id"` // rt.wrong-instance
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
}

// find looks for what is often wrong with the runtime of GPU nodes.
func (v *view) find() []finding {
	all := []finding{}
	if v.Runtime == nil || v.Runtime.Name != "containerd" {
		return all
	}
	all = append(all, v.notServing()...)
	wrong := v.wrongInstance()
	if len(wrong) == 0 { // else its fix says the same
		wrong = v.wronglyTold()
	}
	all = append(all, wrong...)
	all = append(all, v.stale()...)
	all = append(all, v.missing()...)
	return append(all, v.cgroups()...)
}

func (v *view) notServing() []finding {
	i, all := v.Runtime, []finding(nil)
	if i.ConfigError != "" {
		message := "containerd would not start with its files: " + i.ConfigError
		if i.Ready {
			message += "; it still runs with what it has in memory, until its next restart"
		}
		all = append(all, finding{"rt.unparsable", message, "mend " + i.ConfigPath + " before anything restarts " + i.name()})
	}
	if !i.Ready {
		all = append(all, finding{"rt.not-ready", i.name() + " does not serve the kubelet: " + i.Error, ""})
	}
	return all
}

// wrongInstance finds GPU handlers in a configuration that the kubelet's containerd does not load.
func (v *view) wrongInstance() []finding {
	var all []finding
	for _, d := range v.Decoys {
		var lost, places []string
		for _, h := range d.Handlers {
			if h.isGPU() && !v.Runtime.has(h.Name) {
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
		message := fmt.Sprintf("%s defined in %s, which %s; the kubelet uses %s, which does not have %s: pods that ask for one fail with `no runtime for %q is configured`",
			isAre("handler", lost), where, d.loadedBy(), v.Runtime.describe(), itThem(lost), lost[0])
		all = append(all, finding{"rt.wrong-instance", message, v.toolkitFix()})
	}
	return all
}

// wronglyTold finds a toolkit that runs on the node, and edits a configuration that the kubelet's containerd does not load.
func (v *view) wronglyTold() []finding {
	var all []finding
	for _, t := range v.Toolkits {
		told := cmp.Or(t.tells("RUNTIME_CONFIG", "CONTAINERD_CONFIG"), "/etc/containerd/config.toml")
		loads := slices.ContainsFunc(v.Runtime.Files, func(f file) bool { return f.Path == told })
		if !t.MatchesNode || told == v.Runtime.ConfigPath || loads || v.hasGPUHandler() {
			continue
		}
		all = append(all, finding{"rt.wrong-instance", fmt.Sprintf("DaemonSet %s/%s edits %s, which %s does not load", t.Namespace, t.Name, told, v.Runtime.describe()), v.toolkitFix()})
	}
	return all
}

// hasGPUHandler is whether the kubelet's containerd has a handler for GPUs, whoever defined it.
func (v *view) hasGPUHandler() bool { return slices.ContainsFunc(v.Runtime.Handlers, handler.isGPU) }

// toolkitFix is what the NVIDIA container toolkit has to be told to edit the right containerd.
func (v *view) toolkitFix() string {
	i := v.Runtime
	values := []string{"CONTAINERD_CONFIG=" + i.ConfigPath, "CONTAINERD_SOCKET=" + i.Socket, "RUNTIME_CONFIG_SOURCE=file=" + i.ConfigPath}
	for _, f := range i.Files {
		if f.Path != i.ConfigPath {
			values = append(values, "RUNTIME_DROP_IN_CONFIG="+path.Join(path.Dir(f.Path), "99-nvidia.toml"))
			break
		}
	}
	fix := "tell the NVIDIA container toolkit which containerd it is (toolkit.env of the GPU operator's chart): " + strings.Join(values, ", ")
	if len(values) == 3 {
		fix += ", and RUNTIME_DROP_IN_CONFIG=FILE with a file that `imports` of " + i.ConfigPath + " names"
	}
	return fix
}

func (v *view) stale() []finding {
	var edited, added, removed []string
	for _, h := range v.Runtime.Handlers {
		switch {
		case !h.Stale:
		case h.OnDisk == nil:
			removed = append(removed, h.Name)
		case h.InMemory == nil:
			added = append(added, h.Name)
		default:
			edited = append(edited, h.Name)
		}
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
	return []finding{{"rt.edited-not-restarted", "the files were edited after containerd read them (" + strings.Join(words, "; ") + "): containerd has the old handlers in memory until it is restarted", fix}}
}

// missing finds executables that are not there. What several handlers execute is told once.
func (v *view) missing() []finding {
	users := map[string][]string{}
	for _, h := range v.Runtime.Handlers {
		for _, program := range h.programs() {
			if v.Runtime.Executables[program] != "" && !slices.Contains(users[program], h.Name) {
				users[program] = append(users[program], h.Name)
			}
		}
	}
	var all []finding
	for program, handlers := range users {
		id := "rt.binary-missing"
		if isShim(program) {
			id = "rt.runtime-type"
		}
		all = append(all, finding{id, fmt.Sprintf("%s of %s: %s; pods with it do not start", program, plainly("handler", handlers), v.Runtime.Executables[program]), ""})
	}
	slices.SortFunc(all, func(a, b finding) int { return cmp.Compare(a.Message, b.Message) })
	return all
}

// programs are what the handler executes, on disk and in memory, as Executables has them.
func (h handler) programs() []string {
	var all []string
	for _, s := range []*settings{h.OnDisk, h.InMemory} {
		if s != nil {
			from := node.Handler{Type: s.Type, BinaryName: s.BinaryName}
			all = append(all, from.Binary(), from.Shim())
		}
	}
	return all
}

// cgroups finds handlers whose cgroup driver is not that of the others: then their pods alone fail.
func (v *view) cgroups() []finding {
	var expected *bool
	who := ""
	for _, h := range v.Runtime.Handlers {
		if h.Default && h.usesRunc() {
			systemd := h.effective().systemd()
			expected, who = &systemd, "the default handler "+h.Name
		}
	}
	if expected == nil {
		return nil
	}
	var other []string
	for _, h := range v.Runtime.Handlers {
		if h.usesRunc() && h.effective().systemd() != *expected {
			other = append(other, h.Name)
		}
	}
	if len(other) == 0 {
		return nil
	}
	return []finding{{"rt.cgroup-driver", fmt.Sprintf("SystemdCgroup of %s is not that of %s (%t): its pods do not start, or their limits do not hold", plainly("handler", other), who, *expected),
		fmt.Sprintf("set SystemdCgroup = %t in the handler's options", *expected)}}
}

// isShim is whether the program is a shim of containerd, and not what a shim executes.
func isShim(program string) bool { return strings.HasPrefix(path.Base(program), "containerd-shim-") }

func (h handler) usesRunc() bool {
	kind := h.effective().Type
	return kind == "" || strings.HasPrefix(kind, "io.containerd.runc.")
}

// isGPU is whether the handler is for GPUs, by its name or by what it executes.
func (h handler) isGPU() bool {
	return strings.Contains(h.Name, "nvidia") || strings.Contains(h.effective().BinaryName, "nvidia")
}

// has is whether the instance knows a handler, or will after a restart.
func (i *instance) has(name string) bool {
	return slices.ContainsFunc(i.Handlers, func(h handler) bool { return h.Name == name })
}

// name is what to restart.
func (i *instance) name() string { return cmp.Or(i.Unit, "containerd") }

func (i *instance) describe() string {
	if i.PID == 0 {
		return "the containerd of " + i.ConfigPath
	}
	return fmt.Sprintf("containerd process %d with %s", i.PID, i.ConfigPath)
}

func (i *instance) loadedBy() string {
	if i.PID == 0 {
		return "no process loads"
	}
	return fmt.Sprintf("only containerd process %d loads", i.PID)
}

func plainly(what string, names []string) string {
	if len(names) > 1 {
		what += "s"
	}
	return what + " " + strings.Join(names, ", ")
}

func isAre(what string, names []string) string {
	if len(names) > 1 {
		return plainly(what, names) + " are"
	}
	return plainly(what, names) + " is"
}

func itThem(names []string) string {
	if len(names) > 1 {
		return "them"
	}
	return "it"
}
