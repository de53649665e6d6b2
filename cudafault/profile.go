package cudafault

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Profile describes what programs see when the driver reports an XID, or during a named fault without an XID.
type Profile struct {
	XID         int    // 0 for a fault without an XID
	Name        string // the XID's number, or a name such as fabric-not-ready
	Description string

	// Running is the CUresult for processes that are already running; 0 means none.
	Running      int
	RunningBasis Basis
	// Fallback replaces Running if cuDriverGetVersion returns less than MinDriver (12080 is CUDA 12.8), because such a
	// driver does not have the code. A Fallback of 0 means none.
	Fallback, MinDriver int
	// Sticky reports whether all calls of the process fail after the first one that fails.
	Sticky  bool
	Surface Surface
	Classes Class // classes of calls that count for the trigger

	// New is the CUresult of cuInit in processes that start after the fault has tripped; 0 means none.
	New      int
	NewBasis Basis // applies to the NVML codes too
	// NVML is the return code of NVML calls that concern the device, and NVMLInit is the return code of nvmlInit; 0
	// means none.
	NVML, NVMLInit int
	// NVMLEvent reports whether the driver sends an NVML event with the XID for the GPU.
	NVMLEvent bool
	// NVMLECC is the number of uncorrectable ECC errors in NVML's counters, and NVMLRows is what the counters report
	// about rows.
	NVMLECC  int
	NVMLRows Rows

	// Latency is how long calls in LatencyClasses are delayed.
	Latency        time.Duration
	LatencyClasses Class
	// HangClasses are the classes of calls that do not return.
	HangClasses Class

	// Evidence lists the sources: owner/repository#number on GitHub, a URL or a title.
	Evidence []string
	// Note has additional information. For a profile without errors, it gives the reason.
	Note string
}

// Basis is the kind of evidence for the claim that programs see an error.
type Basis string

// The values of Basis.
const (
	Documented Basis = "documented" // shown by a report or documentation
	Assumed    Basis = "assumed"    // inferred from the meaning of the XID
)

const profileColumns = "name description running running_basis fallback min_driver new new_basis nvml nvml_init nvml_event nvml_values surface sticky classes " +
	"latency latency_classes hang evidence note"

// The names of the profiles without an XID.
const (
	driverMismatch = "driver-mismatch"
	fabricNotReady = "fabric-not-ready"
)

// Profiles returns all profiles: XID profiles by number, then the others.
func Profiles() []Profile {
	all := slices.Clone(loaded().profiles)
	for i := range all {
		all[i].Evidence = slices.Clone(all[i].Evidence)
	}
	return all
}

// FindProfile returns the profile of an XID.
func FindProfile(xid int) (Profile, bool) { return NamedProfile(strconv.Itoa(xid)) }

// NamedProfile returns the profile with the given name, which is the number of an XID, fabric-not-ready or
// driver-mismatch.
func NamedProfile(name string) (Profile, bool) {
	all := Profiles()
	i := slices.IndexFunc(all, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return all[i], true
}

// None reports whether programs see no effect of the XID, so that there is nothing to inject. Note has the reason.
func (p Profile) None() bool {
	return p.Running == 0 && p.New == 0 && p.NVML == 0 && p.NVMLInit == 0 && !p.NVMLEvent && p.NVMLECC == 0 &&
		p.NVMLRows == 0 && p.Latency == 0 && p.HangClasses == 0
}

// onGitHub matches an issue or a pull request.
var onGitHub = regexp.MustCompile(`^([\w.-]+/[\w.-]+)#(\d+)$`)

// EvidenceURL returns the URL of a source, or "" for a title.
func EvidenceURL(source string) string {
	if m := onGitHub.FindStringSubmatch(source); m != nil {
		return "https://github.com/" + m[1] + "/issues/" + m[2] // GitHub redirects to a pull request
	}
	if strings.HasPrefix(source, "https://") {
		return source
	}
	return ""
}

// profileOf parses a row of the table.
func profileOf(r row) (Profile, error) {
	p := Profile{Name: r["name"], Description: r["description"], Note: r["note"]}
	if p.Name == "" || p.Description == "" {
		return p, errors.New("the name or the description is missing")
	}
	p.XID, _ = strconv.Atoi(p.Name) // remains 0 for a name
	if r["evidence"] != "" {
		p.Evidence = strings.Split(r["evidence"], ",")
	}
	var faults []error
	number := func(column string) (n int) {
		if r[column] == "" {
			return 0
		}
		n, err := strconv.Atoi(r[column])
		if err != nil || n < 1 {
			faults = append(faults, fmt.Errorf("%s is %q", column, r[column]))
		}
		return n
	}
	classes := func(column string) (c Class) {
		if r[column] == "" {
			return 0
		}
		c, err := parseClass(r[column])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", column, err))
		}
		return c
	}
	word := func(column, words string) string {
		if r[column] == "" {
			return ""
		}
		w, err := r.oneOf(column, words)
		if err != nil {
			faults = append(faults, err)
		}
		return w
	}
	p.Running, p.Fallback, p.MinDriver = number("running"), number("fallback"), number("min_driver")
	p.New, p.NVML, p.NVMLInit = number("new"), number("nvml"), number("nvml_init")
	p.RunningBasis, p.NewBasis = Basis(word("running_basis", "documented assumed")),
		Basis(word("new_basis", "documented assumed"))
	p.NVMLEvent = word("nvml_event", "yes no") == "yes"
	if r["nvml_values"] != "" {
		for value := range strings.SplitSeq(r["nvml_values"], ",") {
			if value == "ecc" {
				p.NVMLECC = 1
			} else if i := slices.Index(rowNames, value); i >= 0 {
				p.NVMLRows |= 1 << i
			} else {
				faults = append(faults, fmt.Errorf("nvml_values is %q", r["nvml_values"]))
			}
		}
	}
	p.Sticky = word("sticky", "yes no") == "yes"
	if word("surface", "call sync") == "sync" {
		p.Surface = SurfaceSync
	}
	p.Classes, p.LatencyClasses, p.HangClasses = classes("classes"), classes("latency_classes"), classes("hang")
	if r["latency"] != "" {
		d, err := time.ParseDuration(r["latency"])
		if err != nil || d <= 0 {
			faults = append(faults, fmt.Errorf("latency is %q", r["latency"]))
		}
		p.Latency = d
	}
	return p, errors.Join(faults...)
}

// check returns an error if the profile is inconsistent or uses unknown codes.
func (p Profile) check(d *data) error {
	known := func(code int) bool {
		return code == 0 || slices.ContainsFunc(d.errors, func(e cudaError) bool { return e.code == code })
	}
	sticky := func(code int) bool {
		return slices.ContainsFunc(d.errors, func(e cudaError) bool { return e.code == code && e.sticky })
	}
	nvml := func(code int, init bool) bool {
		return code == 0 ||
			slices.ContainsFunc(d.nvml, func(e nvmlError) bool { return e.code == code && e.init == init })
	}
	for _, rule := range []struct {
		holds bool
		text  string
	}{
		{known(p.Running) && known(p.New) && known(p.Fallback), "a code that is not a CUDA error"},
		{nvml(p.NVML, false) && nvml(p.NVMLInit, true), "a code that NVML does not return from these calls"},
		{len(p.Evidence) > 0, "no evidence"},
		{!p.None() || p.Note != "", "no error, and no note that explains why"},
		{(p.Running == 0) == (p.RunningBasis == ""), "an error for running processes without a basis, or the reverse"},
		{(p.New == 0) == (p.NewBasis == ""), "an error for new processes without a basis, or the reverse"},
		{(p.Running == 0) == (p.Classes == 0), "an error for running processes without classes, or the reverse"},
		{
			(p.Fallback == 0) == (p.MinDriver == 0),
			"a fallback without the driver version that no longer needs it, or the reverse",
		},
		{
			!p.Sticky || sticky(p.Running) && (p.Fallback == 0 || sticky(p.Fallback)),
			"a sticky effect with an error that is not sticky",
		},
		{!p.NVMLEvent || p.XID != 0, "an NVML event, but no XID that it could report"},
		{p.Surface == SurfaceCall || p.Running != 0, "a surface, but no error that could surface"},
		{(p.Latency == 0) == (p.LatencyClasses == 0), "latency without classes, or the reverse"},
		{p.LatencyClasses&^p.Classes == 0, "latency for calls that the trigger ignores"},
	} {
		if !rule.holds {
			return fmt.Errorf("profile %s has %s", p.Name, rule.text)
		}
	}
	return nil
}
