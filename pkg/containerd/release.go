package containerd

import (
	"fmt"
	"regexp"
	"strconv"
)

// Release is the version of a containerd daemon, which determines how files are merged.
type Release struct{ Major, Minor, Patch int }

var releasePattern = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[^\d.].*)?$`)

// ParseRelease parses a version as printed by `containerd --version`, CRI, or distributions: v2.3.7,
// 1.7.28~ds1-0ubuntu1, v2.1.4-k3s1, 2.3.7+unknown.
func ParseRelease(text string) (Release, error) {
	m := releasePattern.FindStringSubmatch(text)
	if m == nil {
		return Release{}, fmt.Errorf("invalid containerd version %q: must be a version such as 2.1.4 or v1.7.28-k3s1", text)
	}
	var r Release
	for i, n := range []*int{&r.Major, &r.Minor, &r.Patch} {
		*n, _ = strconv.Atoi("0" + m[i+1]) // at most four digits, or empty
	}
	return r, nil
}

func (r Release) String() string { return fmt.Sprintf("%d.%d.%d", r.Major, r.Minor, r.Patch) }

// AtLeast reports whether r is major.minor or later.
func (r Release) AtLeast(major, minor int) bool {
	return r.Major > major || r.Major == major && r.Minor >= minor
}

// schema returns the highest `version` of a configuration file that the release supports.
func (r Release) schema() int {
	switch {
	case r.AtLeast(2, 3):
		return 4
	case r.AtLeast(2, 0):
		return 3
	}
	return 2
}
