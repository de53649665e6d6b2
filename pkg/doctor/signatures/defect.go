package signatures

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// Defect is a bug in certain releases of a program. A signature with a defect applies only if such a release runs in
// the failed pod, or, if the pod does not run the program, elsewhere in the cluster.
type Defect struct {
	// Images are names of the program's images without a registry, such as kueue/kueue. Only whole path elements match.
	Images []string `json:"images" yaml:"images"`
	// Since is the first release with the defect. Empty means all releases before Fixed.
	Since string `json:"since,omitempty" yaml:"since"`
	// Fixed lists the first releases without the defect: at most one for each minor version that received the fix.
	Fixed []string `json:"fixed" yaml:"fixed"`
}

// Program returns the fact that an image runs in the cluster.
func Program(image string) string { return "program: " + image }

// HasName reports whether the set knows a defect in some releases of an image.
func (set *Set) HasName(image string) bool { return endsWith(nameOf(image), set.names) }

// nameOf returns the path of an image without its registry, tag and digest.
func nameOf(image string) string {
	name, _ := splitImage(image)
	if first, rest, ok := strings.Cut(name, "/"); ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return rest
	}
	return name
}

// endsWith reports whether the last elements of an image's path are one of the names.
func endsWith(path string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		before, ok := strings.CutSuffix(path, name)
		return ok && (before == "" || strings.HasSuffix(before, "/"))
	})
}

func splitImage(image string) (name, tag string) {
	image, _, _ = strings.Cut(image, "@")
	slash := strings.LastIndexByte(image, '/') + 1
	last, tag, _ := strings.Cut(image[slash:], ":")
	return image[:slash] + last, tag
}

// release matches the release at the beginning of a tag, such as v0.17.1-ubi9, 25.3.0 or 0.6.3.post1.
var release = regexp.MustCompile(`^v?(\d+)\.(\d+)(?:\.(\d+))?(?:-?rc\.?(\d+))?`)

// canonical returns a release in the form of semver, or "" if the tag does not begin with a release.
func canonical(tag string) string {
	m := release.FindStringSubmatch(tag)
	if m == nil {
		return ""
	}
	version := "v" + number(m[1]) + "." + number(m[2]) + "." + number(m[3])
	if m[4] != "" {
		version += "-rc." + number(m[4])
	}
	return version
}

// number returns a number without leading zeros, which semver does not allow.
func number(digits string) string { return cmp.Or(strings.TrimLeft(digits, "0"), "0") }

// has reports whether a release has the defect.
func (d *Defect) has(tag string) bool {
	version := canonical(tag)
	if version == "" || d.Since != "" && semver.Compare(version, canonical(d.Since)) < 0 {
		return false
	}
	newest := ""
	for _, fixed := range d.Fixed {
		first := canonical(fixed)
		if semver.MajorMinor(first) == semver.MajorMinor(version) {
			return semver.Compare(version, first) < 0
		}
		if newest == "" || semver.Compare(first, newest) > 0 {
			newest = first
		}
	}
	return semver.Compare(version, newest) < 0
}

// in returns the line that names a release with the defect, and this release.
func (d *Defect) in(lines []Line) (found *Line, version string) {
	for _, prefix := range []string{"image: ", "program: "} {
		runs := false
		for i := range lines {
			image, ok := strings.CutPrefix(lines[i].Evidence.Text, prefix)
			if !ok || lines[i].Place != Spec {
				continue
			}
			if !endsWith(nameOf(image), d.Images) {
				continue
			}
			runs = true
			if _, tag := splitImage(image); d.has(tag) {
				return &lines[i], tag
			}
		}
		if runs {
			break // the pod's own image decides
		}
	}
	return nil, ""
}

func (d *Defect) validate() error {
	if len(d.Images) == 0 || slices.Contains(d.Images, "") {
		return errors.New("images: at least one image name is required")
	}
	if len(d.Fixed) == 0 {
		return errors.New("fixed: at least one release is required")
	}
	minors := map[string]bool{}
	for _, text := range d.Fixed {
		minor := semver.MajorMinor(canonical(text))
		switch {
		case minor == "":
			return invalidRelease(text)
		case minors[minor]:
			return fmt.Errorf("fixed: two releases of %s: only the first release with the fix is required", minor)
		}
		minors[minor] = true
	}
	if d.Since != "" && canonical(d.Since) == "" {
		return invalidRelease(d.Since)
	}
	return nil
}

func invalidRelease(text string) error {
	return fmt.Errorf("invalid release %q: must be numbers, such as v1.2.3", text)
}
