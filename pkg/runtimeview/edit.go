package runtimeview

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// Edit mends one file of a configuration: a script of sed, for the lines as they were read.
type Edit struct{ File, Sed string }

// editable reports whether a file may be edited by hand: it is what it was read from, and nothing writes it anew. sed
// would replace a link by a file.
func (i *Instance) editable(file string) bool {
	n := slices.IndexFunc(i.Files, func(f File) bool { return f.Path == file })
	return n >= 0 && i.ConfigError == "" && i.Files[n].Link == "" && i.Files[n].NotEdited == ""
}

// lines returns those of a file, without blanks around them.
func (i *Instance) lines(file string) []string {
	var all []string
	for line := range bytes.Lines(i.data[file]) {
		all = append(all, string(bytes.TrimSpace(line)))
	}
	return all
}

// isPlain reports whether a text means itself to sed, but for dots.
func isPlain(text string) bool { return regexp.MustCompile(`^[A-Za-z0-9._/-]+$`).MatchString(text) }

// pattern returns the regular expression of sed that fits a plain text.
func pattern(text string) string { return strings.ReplaceAll(text, ".", `\.`) }

// setting finds a setting of a handler: in one of its tables, or in that of its options. ok is false where it stands
// otherwise, such as in an inline table.
func (i *Instance) setting(h Handler, key string) (file string, line int, ok bool) {
	for _, place := range h.Places {
		file, begin, ok := cutPlace(place)
		if !ok || !i.editable(file) {
			continue
		}
		all := i.lines(file)
		for n := begin; n < len(all); n++ { // the line after the header, which lines begin with 0 for
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

// replaced returns the edit that puts another value in place of a handler's; nil where that is not known to be right.
func (i *Instance) replaced(h Handler, key, value, by string) *Edit {
	file, line, ok := i.setting(h, key)
	if !ok || !isPlain(value) || !isPlain(by) || !strings.Contains(i.Line(file, line), value) {
		return nil
	}
	return &Edit{file, fmt.Sprintf("%ds|%s|%s|", line, pattern(value), by)}
}

// enabled returns the edit that takes a plugin out of a list in one line; nil where the list is written otherwise.
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

// optionsTable returns the header of the table in which a misplaced option belongs, as the file writes the handler's;
// empty when it writes it otherwise.
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

// moved returns the edit that moves a misplaced option into the table of options: to its beginning, or into a new one
// at the end of the file.
func (i *Instance) moved(p containerd.Problem) *Edit {
	header, all := i.optionsTable(p), i.lines(p.File)
	if header == "" || !i.editable(p.File) || p.Line >= len(all) || strings.ContainsAny(header, "|\\&\n'") {
		return nil
	}
	take := fmt.Sprintf("%d{h;d}", p.Line)
	if n := slices.Index(all, header); n+1 > p.Line {
		return &Edit{p.File, take + fmt.Sprintf(";%dG", n+1)}
	} else if n >= 0 {
		return nil // the line is to go up, and sed goes down
	}
	return &Edit{p.File, take + ";${p;s|.*|" + header + "|;G}"}
}
