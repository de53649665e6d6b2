package containerd

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// Request describes the fault to compute.
type Request struct {
	Mode    Mode
	Handler string // not used by default-missing and unparsable
	// Decoy is another containerd's configuration file, to which wrong-instance moves the handler. If Data is not set,
	// the file is created.
	Decoy File
}

// Broken is a computed fault that has not been applied yet.
type Broken struct {
	Summary string // one sentence that describes the change and its location
	Files   []Edited
	// NodeLoss means that CRI or the daemon will not start with these files. It can be true even if ModeInfo.NodeLoss
	// is false, because CRI does not load without its default handler.
	NodeLoss bool

	landed func(*Merged) error
}

// Edited is one file that a fault edits.
type Edited struct {
	Path   string
	Before []byte // nil if the file does not exist
	After  []byte
	Edits  []patch.Edit // edits from Before to After
}

// Break computes a fault. The error is a *RefusedError if a file must not or cannot be edited. If the handler does not
// exist, the error lists the existing handlers.
func (c *Config) Break(r Request) (*Broken, error) {
	if _, err := ParseMode(string(r.Mode)); err != nil {
		return nil, err
	}
	if len(c.Files) == 0 {
		return nil,
			fmt.Errorf("containerd has no configuration file to break, because it uses its defaults")
	}
	for _, f := range c.Files {
		if isTemplate(f) {
			return nil, Refuse(f) // templates rarely parse, and this error is clearer than a syntax error
		}
	}
	before, err := c.effective()
	if err != nil {
		return nil, c.refuse(
			0,
			"the current configuration does not load: "+err.Error(),
			"repair the configuration first",
		)
	}
	if err := before.loads(c.Release); err != nil {
		return nil, c.refuse(
			0,
			"the CRI plugin does not load with the current configuration: "+err.Error(),
			"repair the configuration first",
		)
	}
	p := &plan{c: c, before: before, handler: r.Handler, changes: map[int][]change{}}
	for _, f := range c.Files {
		doc, tree, err := c.parse(f)
		if err != nil {
			return nil, fmt.Errorf("containerd cannot load %s: %w", f.Path, err)
		}
		p.docs, p.trees = append(p.docs, doc), append(p.trees, tree)
	}
	if r.Mode != ModeDefaultMissing && r.Mode != ModeUnparsable {
		if _, ok := before.runtimes()[r.Handler]; !ok {
			return nil, p.noHandler()
		}
	}
	switch r.Mode {
	case ModeMissingHandler:
		err = p.missingHandler()
	case ModeWrongInstance:
		err = p.wrongInstance(r.Decoy)
	case ModeBinaryMissing:
		err = p.binaryMissing()
	case ModeWrongRuntimeType:
		err = p.wrongRuntimeType()
	case ModeCgroupDriver:
		err = p.cgroupDriver()
	case ModeOptionMisplaced:
		err = p.optionMisplaced()
	case ModeDropinShadow:
		err = p.dropinShadow()
	case ModeDefaultMissing:
		err = p.defaultMissing()
	case ModeUnparsable:
		return p.unparsable()
	}
	if err != nil {
		return nil, err
	}
	return p.finish()
}

func (p *plan) noHandler() error {
	names := sortedKeys(p.before.runtimes())
	if len(names) == 0 {
		return fmt.Errorf("runtime handler %q not found: containerd's configuration has no handlers", p.handler)
	}
	return fmt.Errorf("runtime handler %q not found in containerd's configuration; supported values: %s", p.handler,
		strings.Join(names, ", "))
}

func (c *Config) refuse(i int, reason, way string) *RefusedError {
	return &RefusedError{Path: c.Files[i].Path, Reason: reason, Way: way}
}

// plan is a fault that is being computed.
type plan struct {
	c       *Config
	before  *effective
	docs    []*document
	trees   []map[string]any
	handler string

	changes map[int][]change // by file index
	fresh   *fresh
	imports []any // imports of the root file, if they change
	targets []target
	summary string
	landed  func(*Merged) error
}

// fresh is a file that is not loaded before the fault: a decoy or a drop-in.
type fresh struct {
	file   Edited
	loadAt int // position in the load order, or -1 if it will not be loaded
}

// target is a path whose value the fault changes. All other values must stay the same.
type target struct {
	path []string
	want any // value in the merged configuration; nil means absent
}

// target adds a target under each plugin ID.
func (p *plan) target(want any, below ...string) {
	for _, plugin := range plugins {
		p.targets = append(p.targets, target{handlerPath(plugin, p.handler, below...), want})
	}
}

// finish applies the changes, and verifies that they produce exactly the fault.
func (p *plan) finish() (*Broken, error) {
	b := &Broken{Summary: p.summary, landed: p.landed}
	after := &Config{Release: p.c.Release, Files: slices.Clone(p.c.Files)}
	for i, f := range p.c.Files {
		changes := p.changes[i]
		if len(changes) == 0 {
			continue
		}
		if refused := Refuse(f); refused != nil {
			return nil, refused
		}
		edits := p.docs[i].edits(changes)
		data, err := applied(f.Data, edits)
		if err != nil {
			return nil, p.c.refuse(i, "this notation cannot be edited safely: "+err.Error(), wayByHand)
		}
		after.Files[i].Data = data
		b.Files = append(b.Files, Edited{Path: f.Path, Before: f.Data, After: data, Edits: edits})
		tree, err := p.c.decode(data)
		if err != nil || !same(without(p.trees[i], p.targets), without(tree, p.targets)) ||
			i == 0 && p.imports != nil && !same(tree["imports"], p.imports) {
			return nil, p.c.refuse(i,
				"this notation cannot be edited safely: other settings would also change", wayByHand)
		}
	}
	if p.fresh != nil {
		b.Files = append(b.Files, p.fresh.file)
		if at := p.fresh.loadAt; at >= 0 {
			after.Files = slices.Insert(after.Files, at, File{Path: p.fresh.file.Path, Data: p.fresh.file.After})
		}
	}
	if len(b.Files) == 0 {
		return nil, p.c.refuse(0, "this change is not possible in any loaded file", wayByHand)
	}
	if err := p.verifyMerged(after, b); err != nil {
		return nil, err
	}
	return b, nil
}

const wayByHand = "edit the file manually, or choose another mode"

// verifyMerged verifies that the daemon's new merged configuration consists of the old one plus the fault.
func (p *plan) verifyMerged(after *Config, b *Broken) error {
	now, err := after.effective()
	if err != nil {
		return p.c.refuse(0, "with this change, containerd would not start: "+err.Error(), wayByHand)
	}
	if p.fresh == nil || p.fresh.loadAt < 0 { // a shadowing drop-in has its own check
		if !same(without(p.before.tree, p.targets), without(now.tree, p.targets)) {
			return p.c.refuse(0, "some files override parts of others, so other settings would also change", wayByHand)
		}
	}
	for _, t := range p.targets {
		if len(t.path) < 2 || t.path[1] != now.plugin {
			continue
		}
		if got, ok := dig(now.tree, t.path...); ok != (t.want != nil) || !same(got, t.want) {
			return p.c.refuse(0, fmt.Sprintf("the change to %s would not take effect", dottedKey(t.path)), wayByHand)
		}
	}
	if err := now.loads(p.c.Release); err != nil {
		b.NodeLoss = true
		b.Summary += "; the CRI plugin will not load: " + err.Error()
	}
	return nil
}

// applied applies the edits, and checks that the inverse edits restore the data.
func applied(data []byte, edits []patch.Edit) ([]byte, error) {
	out, err := patch.Apply(data, edits)
	if err != nil {
		return nil, err
	}
	back, err := patch.Apply(out, patch.Invert(edits))
	if err != nil {
		return nil, err
	}
	if !slices.Equal(back, data) {
		return nil, fmt.Errorf("the change cannot be reverted exactly")
	}
	return out, nil
}

// without returns a copy of the tree without the targets.
func without(tree map[string]any, targets []target) map[string]any {
	tree = cloneTable(tree)
	for _, t := range targets {
		cut(tree, t.path)
	}
	return tree
}

// where returns the names of the edited files.
func where(c *Config, changes map[int][]change) string {
	var names []string
	for i, f := range c.Files {
		if len(changes[i]) > 0 {
			names = append(names, f.Path)
		}
	}
	return strings.Join(names, ", ")
}

func sameFile(a, b string) bool { return path.Clean(a) == path.Clean(b) }
