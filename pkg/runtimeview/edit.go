package runtimeview

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// Edit is a sed script that fixes one configuration file. It applies to the file as it was when it was read.
type Edit struct{ File, Sed string }

// editable reports whether a file can be edited manually: no other program regenerates it, and it is not a link, which
// sed would replace with a file.
func (i *Instance) editable(file string) bool {
	n := slices.IndexFunc(i.Files, func(f File) bool { return f.Path == file })
	return n >= 0 && i.ConfigError == "" && i.Files[n].Link == "" && i.Files[n].NotEdited == ""
}

// lines returns the lines of a file without surrounding white space.
func (i *Instance) lines(file string) []string {
	var all []string
	for line := range bytes.Lines(i.data[file]) {
		all = append(all, string(bytes.TrimSpace(line)))
	}
	return all
}

// isPlain reports whether text contains no characters that are special to sed, except dots.
func isPlain(text string) bool { return regexp.MustCompile(`^[A-Za-z0-9._/-]+$`).MatchString(text) }

// pattern returns a sed regular expression that matches plain text.
func pattern(text string) string { return strings.ReplaceAll(text, ".", `\.`) }

// setting returns the location of a handler's setting in one of its tables or in its options table. ok is false if the
// setting has another form, such as a member of an inline table.
func (i *Instance) setting(h Handler, key string) (file string, line int, ok bool) {
	for _, place := range h.Places {
		file, begin, ok := cutPlace(place)
		if !ok || !i.editable(file) {
			continue
		}
		all := i.lines(file)
		for n := begin; n < len(all); n++ { // start after the header; lines starts at index 0
			if strings.HasPrefix(all[n], "[") && !strings.HasSuffix(all[n], ".options]") {
				break
			}
			if name, _, is := strings.Cut(all[n], "="); is && strings.TrimSpace(name) == key {
				return file, n + 1, true
			}
		}
	}
	return "", 0, false
}

// replaced returns the edit that replaces the value of a handler's setting, or nil if the edit may be wrong.
func (i *Instance) replaced(h Handler, key, value, by string) *Edit {
	file, line, ok := i.setting(h, key)
	if !ok || !isPlain(value) || !isPlain(by) || !strings.Contains(i.Line(file, line), value) {
		return nil
	}
	return &Edit{file, fmt.Sprintf("%ds|%s|%s|", line, pattern(value), by)}
}

// enabled returns the edit that removes a plugin from a single-line list, or nil if the list has another form.
func (i *Instance) enabled(plugin string) *Edit {
	if !isPlain(plugin) || !i.editable(i.ConfigPath) {
		return nil
	}
	quoted := pattern(`"` + plugin + `"`)
	for n, line := range i.lines(i.ConfigPath) {
		if !strings.HasPrefix(line, "disabled_plugins") || !strings.Contains(line, `"`+plugin+`"`) {
			continue
		}
		var all []string
		for _, form := range []string{quoted + ", *", " *, *" + quoted, quoted} {
			all = append(all, fmt.Sprintf("%ds|%s||", n+1, form))
		}
		return &Edit{i.ConfigPath, strings.Join(all, ";")}
	}
	return nil
}

// optionsTable returns the header of the options table for a misplaced option, in the style of the handler's header in
// the file. It returns "" if the handler is defined in another form.
func (i *Instance) optionsTable(p containerd.Problem) string {
	all := i.lines(p.File)
	for n := min(p.Line, len(all)) - 1; n >= 0; n-- {
		if header := all[n]; strings.HasPrefix(header, "[") {
			if name, ok := strings.CutSuffix(header, "]"); ok &&
				strings.HasSuffix(strings.ReplaceAll(name, `"`, ""), ".runtimes."+p.Handlers[0]) {
				return name + ".options]"
			}
			return ""
		}
	}
	return ""
}

// moved returns the edit that moves a misplaced option to the start of the options table, or into a new table at the
// end of the file.
func (i *Instance) moved(p containerd.Problem) *Edit {
	header, all := i.optionsTable(p), i.lines(p.File)
	if header == "" || !i.editable(p.File) || p.Line >= len(all) || strings.ContainsAny(header, "|\\&\n'") {
		return nil
	}
	take := fmt.Sprintf("%d{h;d}", p.Line)
	if n := slices.Index(all, header); n+1 > p.Line {
		return &Edit{p.File, take + fmt.Sprintf(";%dG", n+1)}
	} else if n >= 0 {
		return nil // the line would have to move up, which sed cannot do in one pass
	}
	return &Edit{p.File, take + ";${p;s|.*|" + header + "|;G}"}
}
