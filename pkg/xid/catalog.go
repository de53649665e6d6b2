package xid

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Code is an XID in the catalog.
type Code struct {
	Number      int      `json:"number"`
	Name        string   `json:"name"`              // mnemonic in the driver's header (nverror.h)
	Aliases     []string `json:"aliases,omitempty"` // other names in NVIDIA's catalog
	Description string   `json:"description"`       // description by this project
	Class       string   `json:"class"`             // app | driver_fw | memory | link | gpu_fatal | info | unused
	// Families are the GPU families that can report the code: A100, H100, B100, GB200. It is nil if unknown.
	Families []string `json:"gpuFamilies,omitempty"`

	NVIDIA NVIDIAAction `json:"nvidia"`
	// Detectors maps the ID of a detector (see [Detectors]) to the detector's reaction to the code, regardless of how
	// the code is detected. Detector.Judge returns whether the detector sees an injected line at all.
	Detectors map[string]Reaction `json:"detectors"`

	// Template is the template that [New] uses by default. Variants are all templates, starting with the default.
	Template Template   `json:"template"`
	Variants []Template `json:"variants"`
}

// NVIDIAAction is the operator action in NVIDIA's catalog, which has no actions for XIDs 162 and above.
type NVIDIAAction struct {
	Immediate     string `json:"immediate,omitempty"`     // RESTART_APP, RESET_GPU, RESTART_BM, ...
	Investigatory string `json:"investigatory,omitempty"` // what to investigate afterwards
	// RecoverySince is the first release in which XID 154 follows this code, or "" if it never does.
	RecoverySince string `json:"recoverySince,omitempty"`
}

// Reaction is a detector's reaction to a code.
type Reaction struct {
	// Action is the detector's own term for the action: NVSentinel's recommended action (RESTART_BM, ..., FROM_MESSAGE
	// for 154), gpud's suggested actions, EKS "condition" or "event", the device plugin's "unhealthy" or "ignored".
	Action   string `json:"action,omitempty"`
	Severity string `json:"severity,omitempty"` // gpud's event type: Info, Warning, Fatal; "" if gpud drops the code
	// Fatal is true if the detector considers the node or the GPU broken.
	Fatal bool   `json:"fatal"`
	Note  string `json:"note,omitempty"`
}

// All returns all codes in the catalog, sorted by number.
func All() []Code {
	t, err := tables()
	if err != nil {
		return nil // unreachable: a test verifies that the embedded tables load
	}
	out := make([]Code, len(t.codes))
	for i, c := range t.codes {
		out[i] = c.clone()
	}
	return out
}

// Lookup returns the code with the number n.
func Lookup(n int) (Code, bool) {
	c, ok := lookup(n)
	if !ok {
		return Code{}, false
	}
	return c.clone(), true
}

// Search returns the codes whose number begins with word, followed by the codes whose name or description contains
// word, ignoring case. An empty word matches all codes.
func Search(word string) []Code {
	word = strings.ToLower(strings.TrimSpace(word))
	var byNumber, byText []Code
	for _, c := range All() {
		text := strings.ToLower(c.Name + " " + strings.Join(c.Aliases, " ") + " " + c.Description)
		switch {
		case strings.HasPrefix(strconv.Itoa(c.Number), word):
			byNumber = append(byNumber, c)
		case strings.Contains(text, word):
			byText = append(byText, c)
		}
	}
	return append(byNumber, byText...)
}

// SXid is an NVSwitch error for which a log line is known.
type SXid struct {
	Number   int      `json:"number"`
	Severity Severity `json:"severity"`
	Link     int      `json:"link"`
	Body     string   `json:"body"`
	Evidence Evidence `json:"evidence"`
	Source   string   `json:"source"`
	// Gpud reports whether gpud's table contains the code: "yes", "no", or "?" if unknown.
	Gpud string `json:"gpud"`
}

// SXids returns the known NVSwitch errors, sorted by number.
func SXids() []SXid {
	t, err := tables()
	if err != nil {
		return nil
	}
	return slices.Clone(t.sxids)
}

// LookupSXid returns the NVSwitch error with the number n.
func LookupSXid(n int) (SXid, bool) {
	all := SXids()
	i, ok := slices.BinarySearchFunc(all, n, func(s SXid, n int) int { return cmp.Compare(s.Number, n) })
	if !ok {
		return SXid{}, false
	}
	return all[i], true
}

// lookup is like Lookup, but returns the shared value, which callers must not modify.
func lookup(n int) (Code, bool) {
	t, err := tables()
	if err != nil {
		return Code{}, false
	}
	i, ok := slices.BinarySearchFunc(t.codes, n, func(c Code, n int) int { return cmp.Compare(c.Number, n) })
	if !ok {
		return Code{}, false
	}
	return t.codes[i], true
}

func (c Code) clone() Code {
	c.Aliases = slices.Clone(c.Aliases)
	c.Families = slices.Clone(c.Families)
	c.Detectors = maps.Clone(c.Detectors)
	c.Variants = slices.Clone(c.Variants)
	return c
}

// template returns the template of a variant, or the default for "", in the wording of the given driver generation.
func (c Code) template(variant string, g Generation) (Template, error) {
	if variant == "" {
		variant = c.Template.Variant
	}
	var names []string
	var other *Template
	for i, t := range c.Variants {
		if !slices.Contains(names, t.Variant) {
			names = append(names, t.Variant)
		}
		if t.Variant != variant {
			continue
		}
		if len(t.Drivers) == 0 || slices.Contains(t.Drivers, g) {
			return t, nil
		}
		if other == nil {
			other = &c.Variants[i]
		}
	}
	if other != nil {
		return *other, nil
	}
	return Template{},
		fmt.Errorf("XID %d has no variant %q; supported values: %s", c.Number, variant, strings.Join(names, ", "))
}
