package containerd

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
	"github.com/pelletier/go-toml/v2"
)

// defaultMissing sets the default handler to one that does not exist.
func (p *plan) defaultMissing() error {
	value := quoted(missingRuntime, "")
	for i, doc := range p.docs {
		for _, plugin := range plugins {
			if e := doc.exactly([]string{"plugins", plugin, "containerd", "default_runtime_name"}); e != nil &&
				!e.header {
				p.changes[i] = append(p.changes[i], change{e.value, quoted(missingRuntime, doc.text(e.value))})
			}
		}
	}
	for _, plugin := range plugins {
		p.targets = append(p.targets,
			target{[]string{"plugins", plugin, "containerd", "default_runtime_name"}, missingRuntime})
	}
	if p.before.defaultRuntime() == "" {
		if err := p.addDefault(value); err != nil {
			return err
		}
	}
	p.summary = "makes " + missingRuntime + " the default handler, although it does not exist, in " +
		"" + where(p.c, p.changes)
	p.landed = func(*Merged) error { return nil }
	return nil
}

// addDefault adds default_runtime_name if no file contains it. It adds the setting to the last file with CRI settings
// or, if there is none, at the end of the root file.
func (p *plan) addDefault(value string) error {
	for i := len(p.docs) - 1; i >= 0; i-- {
		for _, plugin := range []string{pluginRuntime, pluginGRPC, pluginShort} {
			if digTable(p.trees[i], "plugins", plugin, "containerd") == nil ||
				p.c.unread(p.before, plugin, p.trees[i]) != "" {
				continue
			}
			path := []string{"plugins", plugin, "containerd", "default_runtime_name"}
			if changes := p.docs[i].put(path, value, containerdDepth); changes != nil {
				p.changes[i] = append(p.changes[i], changes...)
				return nil
			}
		}
	}
	plugin := p.before.plugin
	switch version := fileVersion(p.trees[0]); {
	case version == 1:
		plugin = pluginShort
	case version == 2:
		plugin = pluginGRPC
	}
	for _, id := range plugins {
		if digTable(p.trees[0], "plugins", id) != nil && p.c.unread(p.before, id, p.trees[0]) == "" {
			plugin = id
		}
	}
	eol := p.docs[0].newline()
	text := "[" + dottedKey([]string{"plugins", plugin, "containerd"}) + "]" + eol + "default_runtime_name = " + value +
		eol
	p.changes[0] = append(p.changes[0], p.docs[0].appended(text))
	return nil
}

// unparsable adds a line that is not valid TOML at the end of the root file, outside of any string or table.
func (p *plan) unparsable() (*Broken, error) {
	f := p.c.Files[0]
	if refused := Refuse(f); refused != nil {
		return nil, refused
	}
	line :=
		"gpu-fault-unparsable = = # added by kubectl gpu-fault, which removes it again; to repair the file, remove this line"
	edits := edit(p.docs[0].appended(line + p.docs[0].newline()))
	after, err := applied(f.Data, edits)
	if err != nil {
		return nil, p.c.refuse(0, err.Error(), wayByHand)
	}
	if _, err := p.c.decode(after); err == nil {
		return nil, p.c.refuse(0, "the added line would not break the file", wayByHand)
	}
	return &Broken{
		Summary:  "adds a line that is not TOML to " + f.Path + "; containerd will not start",
		Files:    []Edited{{f.Path, f.Data, after, edits}},
		NodeLoss: true,
		landed:   func(*Merged) error { return nil },
	}, nil
}

// dropinShadow adds a drop-in that contains only the handler.
func (p *plan) dropinShadow() error {
	if p.c.Release.AtLeast(2, 0) {
		return p.c.refuse(0,
			fmt.Sprintf("containerd %s merges drop-ins, so a drop-in does not hide the settings of other files", p.c.Release),
			"use --mode missing-handler, or --mode default-missing to prevent the CRI plugin from loading")
	}
	if p.handler == "runc" {
		return p.c.refuse(0, "a drop-in with only runc contains the default handler, so the CRI plugin loads", "specify another handler")
	}
	for _, tree := range p.trees[1:] {
		if list, _ := tree["imports"].([]any); len(list) > 0 {
			return p.c.refuse(0, "an imported file has imports, so a drop-in would not be loaded last", wayByHand)
		}
	}
	from := p.last()
	name, err := p.importDropin()
	if err != nil {
		return err
	}
	doc := p.docs[from.file]
	version := fileVersion(p.before.tree)
	eol := doc.newline()
	table := p.before.runtimes()[p.handler]
	text := written(handlerPath(p.before.plugin, p.handler), table, eol)
	if version > 1 {
		text = fmt.Sprintf("version = %d", version) + eol + eol + text
	}
	p.fresh = &fresh{Edited{Path: name, After: []byte(text), Edits: edit(change{text: text})}, len(p.c.Files)}
	p.targets = []target{{[]string{"imports"}, nil}}
	p.summary = fmt.Sprintf(
		"adds the drop-in %s with only the handler %s, which hides the CRI settings of all other files", name,
		p.handler,
	)
	p.landed = func(*Merged) error { return nil }
	return p.checkShadow(table)
}

// checkShadow verifies that with the drop-in, the CRI table contains only the handler, and all other tables are
// unchanged.
func (p *plan) checkShadow(handler any) error {
	after := &Config{
		Release: p.c.Release, Files: append(slices.Clone(p.c.Files), File{p.fresh.file.Path, p.fresh.file.After}),
	}
	now, err := after.effective()
	if err != nil {
		return p.c.refuse(0, "with the drop-in, containerd would not start: "+err.Error(), wayByHand)
	}
	alone := map[string]any{"containerd": map[string]any{"runtimes": map[string]any{p.handler: handler}}}
	cri := []string{"plugins", p.before.plugin}
	rest := []target{{path: cri}, {path: []string{"version"}}}
	if !same(digTable(now.tree, cri...), alone) || !same(without(p.before.tree, rest), without(now.tree, rest)) ||
		now.loads(p.c.Release) == nil {
		return p.c.refuse(0, "the drop-in would not hide the other files", wayByHand)
	}
	return nil
}

const dropinName = "zz-gpu-fault.toml"

// OwnDropin returns the path of the drop-in that a fault creates next to the root file and imports explicitly.
func OwnDropin(root string) string { return path.Join(path.Dir(root), dropinName) }

// importDropin returns the path of a drop-in that is loaded last. If the last import in the root file is a drop-in
// directory, the path is in this directory. Otherwise, it is next to the root file, with an additional import.
func (p *plan) importDropin() (string, error) {
	root := p.c.Files[0].Path
	list, _ := p.trees[0]["imports"].([]any)
	if len(list) > 0 {
		last, _ := list[len(list)-1].(string)
		folder := path.Dir(last)
		name := path.Join(folder, dropinName)
		matches, err := path.Match(last, name)
		inUse := err == nil && matches && path.IsAbs(last) && len(p.c.Files) > 1
		for _, f := range p.c.Files[1:] {
			inUse = inUse && (path.Dir(f.Path) != folder || f.Path < name)
		}
		if inUse && path.Dir(p.c.Files[len(p.c.Files)-1].Path) == folder {
			return name, nil
		}
	}
	// Import a glob, so that the daemon still starts after the file is deleted.
	own := quoted(path.Join(path.Dir(root), "zz-gpu-fault*.toml"), "")
	doc := p.docs[0]
	p.imports = append(slices.Clone(list), path.Join(path.Dir(root), "zz-gpu-fault*.toml"))
	e := doc.exactly([]string{"imports"})
	switch {
	case e == nil:
		// Top-level keys must precede the first table.
		line, eol := "imports = ["+own+"]", doc.newline()
		at := doc.bom
		for _, other := range doc.exprs {
			if other.table != nil || other.header {
				break
			}
			at = doc.lineEnd(other.all.to)
		}
		if at > 0 && at > doc.bom && doc.data[at-1] != '\n' {
			line = eol + line
		} else {
			line += eol
		}
		p.changes[0] = append(p.changes[0], change{span{at, at}, line})
	default:
		end := e.value.to - 1 // the closing bracket
		before := strings.TrimRight(doc.text(span{e.value.from, end}), " \t\r\n")
		if strings.Contains(doc.text(e.value), "#") {
			return "", p.c.refuse(0, "the imports contain comments",
				"add \""+path.Join(path.Dir(root), "zz-gpu-fault*.toml")+"\" to imports manually")
		}
		at := e.value.from + len(before)
		text := ", " + own
		if strings.HasSuffix(before, "[") || strings.HasSuffix(before, ",") {
			text = own
		}
		p.changes[0] = append(p.changes[0], change{span{at, at}, text})
	}
	return OwnDropin(root), nil
}

// written formats a table as TOML under a single header.
func written(path []string, table any, eol string) string {
	var b strings.Builder
	encoder := toml.NewEncoder(&b)
	encoder.SetTablesInline(true)
	if err := encoder.Encode(table); err != nil {
		return "" // decoded values can always be encoded; otherwise, later checks fail
	}
	return "[" + dottedKey(path) + "]" + eol + strings.ReplaceAll(b.String(), "\n", eol)
}

func edit(c change) []patch.Edit {
	return (&document{data: make([]byte, c.at.from)}).edits([]change{c})
}

// Landed returns an error unless the running configuration, CRI's info["config"], contains the fault. With NodeLoss,
// CRI does not respond, and a nil criConfig is the expected result.
func (b *Broken) Landed(criConfig []byte) error {
	if b.NodeLoss {
		if len(criConfig) == 0 {
			return nil
		}
		return errors.New("CRI still responds: containerd is using its configuration in memory, or does not load these files")
	}
	if len(criConfig) == 0 {
		return errors.New("CRI does not respond, so the fault cannot be verified")
	}
	m, err := Running(criConfig)
	if err != nil {
		return err
	}
	if b.landed == nil {
		return errors.New("this fault was not computed by this tool and cannot be verified")
	}
	return b.landed(m)
}
