package containerd

import (
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// missingHandler removes all definitions of the handler.
func (p *plan) missingHandler() error {
	if err := p.remove(); err != nil {
		return err
	}
	p.summary = fmt.Sprintf("removes the handler %s from %s", p.handler, where(p.c, p.changes))
	return nil
}

func (p *plan) remove() error {
	handlers := p.before.runtimes()
	isLast := len(handlers) == 1 && !p.c.Release.AtLeast(2, 0)
	if p.handler == "runc" && (p.c.Release.AtLeast(2, 0) || isLast) {
		return p.c.refuse(0, "runc is built into containerd and exists even if no file declares it",
			"use binary-missing or wrong-runtime-type")
	}
	for i, doc := range p.docs {
		for _, plugin := range plugins {
			p.changes[i] = append(p.changes[i], doc.remove(handlerPath(plugin, p.handler))...)
		}
	}
	p.target(nil)
	p.landed = func(m *Merged) error {
		if _, ok := m.Handlers[p.handler]; ok {
			return fmt.Errorf("containerd still has the handler %s in memory", p.handler)
		}
		return nil
	}
	return nil
}

// NewDecoy is the file that wrong-instance creates on a node without another containerd.
const NewDecoy = "/etc/containerd-decoy.toml"

// wrongInstance moves the handler to a file of another instance.
func (p *plan) wrongInstance(decoy File) error {
	if decoy.Path == "" {
		return fmt.Errorf(
			"wrong-instance requires the configuration file of another containerd, to which the handler is moved",
		)
	}
	for _, f := range p.c.Files {
		if sameFile(f.Path, decoy.Path) {
			return fmt.Errorf(
				"%s is loaded by the kubelet's containerd: specify a file of another containerd",
				decoy.Path,
			)
		}
	}
	if refused := Refuse(decoy); refused != nil {
		return refused
	}
	if err := p.remove(); err != nil {
		return err
	}
	p.summary = fmt.Sprintf("moves the handler %s from %s to %s, which the kubelet's containerd does not load",
		p.handler, where(p.c, p.changes), decoy.Path)
	stanza, plugin, version := p.stanza()
	want, _ := dig(p.before.tree, handlerPath(p.before.plugin, p.handler)...)
	if decoy.Data == nil {
		eol := "\n"
		if strings.Contains(stanza, "\r\n") {
			eol = "\r\n"
		}
		if version != "" {
			version += eol + eol
		}
		data := []byte(version + stanza)
		p.fresh = &fresh{Edited{Path: decoy.Path, After: data, Edits: edit(change{text: string(data)})}, -1}
	} else {
		doc, tree, err := p.c.parse(decoy)
		if err != nil {
			return &RefusedError{
				decoy.Path, "invalid TOML: " + err.Error(), "specify another file, or a file that does not exist yet",
			}
		}
		for _, id := range plugins {
			if _, ok := dig(tree, handlerPath(id, p.handler)...); ok {
				return nil // the decoy already contains the handler, so only remove it from the correct file
			}
		}
		added := doc.appended(stanza)
		if added.text[0] != '\r' && added.text[0] != '\n' && len(decoy.Data) > doc.bom {
			added.text = doc.newline() + added.text
		}
		edits := edit(added)
		data, err := applied(decoy.Data, edits)
		if err != nil {
			return err
		}
		p.fresh = &fresh{Edited{decoy.Path, decoy.Data, data, edits}, -1}
		after, err := p.c.decode(data)
		if err != nil || !same(without(tree, p.targets), without(after, p.targets)) {
			return &RefusedError{
				decoy.Path, "the handler cannot be added without changing other settings",
				"specify another file, or a file that does not exist yet",
			}
		}
	}
	after, err := p.c.decode(p.fresh.file.After)
	if got, ok := dig(after, handlerPath(plugin, p.handler)...); err != nil || !ok ||
		len(p.docs) == 1 && len(p.places()) == 1 && !same(got, want) {
		return &RefusedError{
			decoy.Path,
			"the handler cannot be added to this file",
			"specify another file, or a file that does not exist yet",
		}
	}
	return nil
}

// place is a file and a plugin table in it that define the handler.
type place struct {
	file   int
	plugin string
}

func (p *plan) places() []place {
	var all []place
	for i, tree := range p.trees {
		for _, plugin := range plugins {
			if _, ok := dig(tree, handlerPath(plugin, p.handler)...); ok {
				all = append(all, place{i, plugin})
			}
		}
	}
	return all
}

// stanza returns the text of the handler's effective definition, which is in the last file, under the plugin ID that is
// read. If the definition does not consist of entire tables, stanza encodes the handler again. stanza also returns the
// plugin ID, and the version line of the file.
func (p *plan) stanza() (text, plugin, version string) {
	from := p.last()
	doc := p.docs[from.file]
	if e := doc.exactly([]string{"version"}); e != nil {
		version = doc.text(e.all)
	}
	path := handlerPath(from.plugin, p.handler)
	whole := true
	for _, e := range doc.at(path) {
		header := e
		if !e.header {
			header = e.table
		}
		whole = whole && e.of == nil && header != nil && hasPrefix(header.path, path)
	}
	if whole {
		for _, change := range doc.edits(doc.remove(path)) {
			text += string(change.Old)
			if !strings.HasSuffix(text, "\n") {
				text += doc.newline()
			}
		}
		return text, from.plugin, version
	}
	table, _ := dig(p.trees[from.file], path...)
	return written(path, table, doc.newline()), from.plugin, version
}

// last returns the place of the handler's effective definition. It is in the last file that defines the handler, under
// the plugin ID that is read, or under the other ID if only that one contains the handler.
func (p *plan) last() place {
	all := p.places()
	sorting.StableFunc(all, func(a, b place) int {
		if a.file != b.file {
			return b.file - a.file
		}
		switch {
		case a.plugin == b.plugin:
			return 0
		case a.plugin == p.before.plugin:
			return -1
		case b.plugin == p.before.plugin:
			return 1
		}
		return 0
	})
	return all[0]
}
