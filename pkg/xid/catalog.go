package xid

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Code is one XID of the catalog.
type Code struct {
	Number      int      `json:"number"`
	Name        string   `json:"name"`              // mnemonic of the driver's header (nverror.h)
	Aliases     []string `json:"aliases,omitempty"` // other names, as in NVIDIA's sheet
	Description string   `json:"description"`       // in our words
	Class       string   `json:"class"`             // app | driver_fw | memory | link | gpu_fatal | info | unused
	// A100, H100, B100, GB200 that can report it; nil also if not known
	Families []string `json:"gpuFamilies,omitempty"`

	NVIDIA NVIDIAAction `json:"nvidia"`
	// Detectors says by the ID of a detector (see [Detectors]) how it reacts once it knows of the code, whatever way it
	// learnt of it. Whether it sees an injected line at all, Detector.Judge says.
	Detectors map[string]Reaction `json:"detectors"`

	// Template is what [New] uses if no variant is asked for; Variants are all, the default first.
	Template Template   `json:"template"`
	Variants []Template `json:"variants"`
}

// NVIDIAAction is what NVIDIA's sheet tells operators to do. The sheet has no actions for 162 and above.
type NVIDIAAction struct {
	Immediate     string `json:"immediate,omitempty"`     // RESTART_APP, RESET_GPU, RESTART_BM, ...
	Investigatory string `json:"investigatory,omitempty"` // what to look into afterwards
	// Since which release XID 154 follows this code; "" it does not
	RecoverySince string `json:"recoverySince,omitempty"`
}

// Reaction is what one detector does about a code.
type Reaction struct {
	// Action is the detector's own word: NVSentinel's recommended action (RESTART_BM, ..., FROM_MESSAGE for 154),
	// gpud's suggested actions, EKS "condition" or "event", the device plugin's "unhealthy" or "ignored".
	Action   string `json:"action,omitempty"`
	Severity string `json:"severity,omitempty"` // gpud's event type: Info, Warning, Fatal; "" if it drops the code
	// Fatal: the node or the GPU counts as broken for the detector.
	Fatal bool   `json:"fatal"`
	Note  string `json:"note,omitempty"`
}

// All returns all codes of the catalog, by number.
func All() []Code {
	t, err := tables()
	if err != nil {
		return nil // a test proves that the embedded tables load
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

// Search returns the codes whose number begins with word, or whose name or description holds it, in any case; numbers
// first. An empty word finds all.
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

// SXid is one error of an NVSwitch of which a line is known.
type SXid struct {
	Number   int      `json:"number"`
	Severity Severity `json:"severity"`
	Link     int      `json:"link"`
	Body     string   `json:"body"`
	Evidence Evidence `json:"evidence"`
	Source   string   `json:"source"`
	// Gpud reports whether gpud's table holds the code: "yes", "no", or "?" where that is not established.
	Gpud string `json:"gpud"`
}

// SXids returns the known errors of NVSwitches, by number.
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

// lookup is Lookup without the copy, for reading only.
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

// template picks the variant (the default for "") as the given driver words it.
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
		fmt.Errorf("XID %d has no variant %q: use one of %s", c.Number, variant, strings.Join(names, ", "))
}
