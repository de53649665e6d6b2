package containerd

import (
	"fmt"
	"strings"
)

const (
	missingSuffix   = ".gpu-fault-missing"
	missingType     = "io.containerd.gpu-fault-nosuch.v2"
	missingRuntime  = "gpu-fault-missing"
	plainRunc       = "/usr/bin/runc" // program of a handler without BinaryName; only its name matters
	wayOtherMode    = "choose another mode: missing-handler works with any handler"
	handlerDepth    = 5 // number of parts of plugins.ID.containerd.runtimes.HANDLER
	containerdDepth = 3 // number of parts of plugins.ID.containerd
)

func (p *plan) now() Handler { return newHandler(p.handler, p.before.runtimes()[p.handler]) }

// needsRunc returns an error if the handler's shim does not use runc's options.
func (p *plan) needsRunc() error {
	switch t := p.now().Type; t {
	case "", "io.containerd.runc.v1", "io.containerd.runc.v2":
		return nil
	default:
		return p.c.refuse(p.last().file,
			fmt.Sprintf("the handler %s has the runtime_type %s, whose shim does not read runc's options", p.handler,
				t),
			wayOtherMode)
	}
}

// binaryMissing appends a suffix to every BinaryName of the handler.
func (p *plan) binaryMissing() error {
	if err := p.needsRunc(); err != nil {
		return err
	}
	missing := func(path string) string {
		if path == "" {
			path = plainRunc
		}
		return path + missingSuffix
	}
	if strings.HasSuffix(p.now().BinaryName, missingSuffix) {
		return p.c.refuse(p.last().file, "its BinaryName is already broken", "restore the BinaryName first")
	}
	want := missing(p.now().BinaryName)
	p.setEach(func(old any, raw string) (string, bool) {
		text, ok := old.(string)
		return quoted(missing(text), raw), ok
	}, quoted(want, ""), "options", "BinaryName")
	p.target(want, "options", "BinaryName")
	p.summary = fmt.Sprintf("sets BinaryName of the handler %s to %s, which does not exist, in %s", p.handler, want,
		where(p.c, p.changes))
	p.landed = func(m *Merged) error { return differs("BinaryName", m.Handlers[p.handler].BinaryName, want) }
	return nil
}

// wrongRuntimeType sets a shim that does not exist. Neither 1.7 nor 2.x looks for the shim before the first pod starts:
// when containerd starts, 2.x queries the features of each shim but ignores errors.
func (p *plan) wrongRuntimeType() error {
	table := digTable(p.before.runtimes(), p.handler)
	for _, key := range []string{"runtime_path", "runtime_engine", "runtime_root"} {
		if value := digText(table, key); value != "" {
			return p.c.refuse(p.last().file, fmt.Sprintf(
				"the handler %s has %s = %q, so runtime_type has no effect or the CRI plugin does not load", p.handler, key,
				value,
			), wayOtherMode)
		}
	}
	p.setEach(func(_ any, raw string) (string, bool) { return quoted(missingType, raw), true }, quoted(missingType, ""),
		"runtime_type")
	p.target(missingType, "runtime_type")
	p.summary = fmt.Sprintf("sets runtime_type of the handler %s to %s, which has no shim, in %s", p.handler,
		missingType, where(p.c, p.changes))
	p.landed = func(m *Merged) error { return differs("runtime_type", m.Handlers[p.handler].Type, missingType) }
	return nil
}

// cgroupDriver inverts SystemdCgroup, whose default is false.
func (p *plan) cgroupDriver() error {
	if err := p.needsRunc(); err != nil {
		return err
	}
	old := p.now().SystemdCgroup
	want := old == nil || !*old
	text := fmt.Sprint(want)
	p.setEach(func(any, string) (string, bool) { return text, true }, text, "options", "SystemdCgroup")
	p.target(want, "options", "SystemdCgroup")
	p.summary = fmt.Sprintf("sets SystemdCgroup of the handler %s to %s in %s", p.handler, text, where(p.c, p.changes))
	p.landed = func(m *Merged) error {
		if got := m.Handlers[p.handler].SystemdCgroup; got == nil || *got != want {
			return fmt.Errorf("containerd does not have SystemdCgroup = %s for the handler %s in memory", text,
				p.handler)
		}
		return nil
	}
	return nil
}

// optionMisplaced moves BinaryName up one level.
func (p *plan) optionMisplaced() error {
	if err := p.needsRunc(); err != nil {
		return err
	}
	want := p.now().BinaryName
	if want == "" {
		return p.c.refuse(p.last().file,
			fmt.Sprintf("the handler %s has no BinaryName to misplace", p.handler), wayOtherMode)
	}
	for _, at := range p.places() {
		doc, path := p.docs[at.file], handlerPath(at.plugin, p.handler, "options", "BinaryName")
		e := doc.exactly(path)
		if e == nil {
			continue
		}
		up := doc.put(handlerPath(at.plugin, p.handler, "BinaryName"), doc.text(e.value), handlerDepth)
		if up == nil {
			return p.c.refuse(at.file, "an option cannot be added to the handler's settings", wayByHand)
		}
		p.changes[at.file] = append(append(p.changes[at.file], doc.remove(path)...), up...)
	}
	p.target(nil, "options", "BinaryName")
	p.target(want, "BinaryName")
	p.summary = fmt.Sprintf("moves BinaryName of the handler %s out of its options in %s, to a level where "+
		"containerd ignores it",
		p.handler, where(p.c, p.changes))
	p.landed = func(m *Merged) error { return differs("BinaryName", m.Handlers[p.handler].BinaryName, "") }
	return nil
}

// setEach changes the handler's setting wherever it is defined, using renew, which receives the old value and its text.
// If the setting is not defined, setEach adds it with the given value to the handler's effective definition.
func (p *plan) setEach(renew func(old any, raw string) (string, bool), value string, setting ...string) {
	for _, at := range p.places() {
		path := handlerPath(at.plugin, p.handler, setting...)
		old, ok := dig(p.trees[at.file], path...)
		if !ok {
			continue
		}
		doc := p.docs[at.file]
		if e := doc.exactly(path); e != nil && !e.header {
			if text, ok := renew(old, doc.text(e.value)); ok {
				p.changes[at.file] = append(p.changes[at.file], change{e.value, text})
			}
		}
	}
	if _, ok := dig(p.before.runtimes(), append([]string{p.handler}, setting...)...); !ok {
		at := p.last()
		p.changes[at.file] = append(p.changes[at.file],
			p.docs[at.file].put(handlerPath(at.plugin, p.handler, setting...), value, handlerDepth)...)
	}
}

func differs(name, got, want string) error {
	if got != want {
		return fmt.Errorf("containerd has %s = %q in memory, not %q", name, got, want)
	}
	return nil
}
