package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Addons starts what only scenarios need, where it does not run yet: enforcement of NetworkPolicies, a registry, the
// images of kubectl and Prometheus. They stay until the cluster goes; a node that is killed later loses them.
func (c *Cluster) Addons(t testing.TB) {
	t.Helper()
	if err := c.addons(); err != nil {
		t.Fatalf("what scenarios need in the cluster: %v", err)
	}
}

// WithoutPolicies lets nothing enforce NetworkPolicies until the test ends.
func (c *Cluster) WithoutPolicies(t testing.TB) {
	t.Helper()
	_, err := c.Nodes()[0].TrySh(t.Context(), "test", "-e", "/run/network-policy.ready")
	if enforced := err == nil; !enforced {
		return
	}
	if err := c.addon("no-policy"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.addon("policy"); err != nil {
			t.Error(err)
		}
	})
}

// runAddon runs the script.
func runAddon(scripts, state, what string) error {
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(scripts, "addon"), what)
	cmd.Env = append(os.Environ(), "STATE="+state)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out.String())
	}
	return nil
}
