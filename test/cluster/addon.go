package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Addons starts what only scenarios need, where it does not run yet: enforcement of NetworkPolicies, a registry, the images of kubectl and
// Prometheus. They stay until the cluster goes; a node that is killed later loses them.
func (c *Cluster) Addons(t testing.TB) {
	t.Helper()
	if err := c.addons(); err != nil {
		t.Fatalf("what scenarios need in the cluster: %v", err)
	}
}

// startAddons is done once per process.
func startAddons(scripts, state string) error {
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(scripts, "addon"), "all")
	cmd.Env = append(os.Environ(), "STATE="+state)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd.Path, err, out.String())
	}
	return nil
}
