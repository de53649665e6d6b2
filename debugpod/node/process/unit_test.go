package process

import (
	"strings"
	"testing"
)

func TestUnitsOf(t *testing.T) {
	t.Parallel()
	for cgroup, want := range map[string]string{
		"0::/system.slice/containerd.service\n":                                  "containerd.service",
		"9:name=systemd:/system.slice/k3s.service\n0::/system.slice/k3s.service": "k3s.service",
		"0::/system.slice/docker-1.scope/system.slice/containerd.service/init":   "containerd.service",
		"0::/a.service/b.service":                                                "b.service a.service",
		"0::/":                                                                   "",
		"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n":        "",
		"":         "",
		"nonsense": "",
	} {
		if got := strings.Join(UnitsOf(cgroup), " "); got != want {
			t.Errorf("%q: %q, want %q", cgroup, got, want)
		}
	}
}
