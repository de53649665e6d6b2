package driver

import "testing"

// TestCompareVersions tests that versions are compared numerically, not as strings.
func TestCompareVersions(t *testing.T) {
	t.Parallel()
	for _, versions := range [][2]string{
		{"580.95.05", "580.105.08"}, {"575.57.08", "580.65.06"}, {"580.95", "580.95.05"},
	} {
		if compareVersions(versions[0], versions[1]) >= 0 || compareVersions(versions[1], versions[0]) <= 0 {
			t.Errorf("%s is not older than %s", versions[0], versions[1])
		}
	}
}
