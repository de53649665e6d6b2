package facts

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// TestServicesNamed verifies that only names of Services are found in logs and commands.
func TestServicesNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ServiceRef{
		`Get "http://license.house.svc.cluster.local/": dial tcp: i/o timeout`: {"house", "license", 80},
		"https://registry.infra.svc/v2/":                                       {"infra", "registry", 443},
		"db.data.svc.cluster.local:5432 - no response":                         {"data", "db", 5432},
		"until nc -z redis.cache.svc 6379; do sleep 1; done":                   {"cache", "redis", 6379},
		"nslookup redis.cache.svc 10.96.0.10":                                  {"cache", "redis", 0},
		"worker-0.workers.ml.svc:29500":                                        {"ml", "workers", 29500},
		"Name:\tlicense.house.svc.cluster.local":                               {"house", "license", 0},
		"http://a.b.svc:99999/":                                                {"b", "a", 80},
	} {
		if got := servicesNamed(text); len(got) != 1 || got[0] != want {
			t.Errorf("%q names %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{"huggingface.co:443", "my.svc", "pkg.mod.svcs.x", "-a.b.svc;reboot", ""} {
		for _, ref := range servicesNamed(text) {
			if !shell.IsSubdomain(ref.Name) || !shell.IsSubdomain(ref.Namespace) || text != "-a.b.svc;reboot" {
				t.Errorf("%q names %+v", text, ref)
			}
		}
	}
	if got := servicesNamed("a.b.svc a.b.svc:80 c.d.svc"); len(got) != 2 || got[0].Port != 80 {
		t.Errorf("named twice: %+v", got)
	}
}

func FuzzServicesNamed(f *testing.F) {
	f.Add("http://license.house.svc.cluster.local:80/")
	f.Add("a.b.svc:65536")
	f.Fuzz(func(t *testing.T, text string) {
		for _, ref := range servicesNamed(text) {
			if !shell.IsSubdomain(ref.Name) || !shell.IsSubdomain(ref.Namespace) || ref.Port < 0 ||
				!strings.Contains(text, ref.Name+"."+ref.Namespace+".svc") {
				t.Errorf("%q names %+v", text, ref)
			}
		}
	})
}
