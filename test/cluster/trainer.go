package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Trainer returns the image of the sample CUDA workload, and sees to it that all nodes which run have it; a node that
// is killed later loses it. Its program /trainer works with the fake driver that is in the image, without a GPU, and
// ends with exit code 1 at the first CUDA error. The image has no shell.
func (c *Cluster) Trainer(t testing.TB) string {
	t.Helper()
	image, err := c.trainer()
	if err != nil {
		t.Fatalf("the image of the sample workload: %v", err)
	}
	return image
}

// loadTrainer is done once per process.
func loadTrainer(scripts, state string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(scripts, "trainer"))
	cmd.Env = append(os.Environ(), "STATE="+state)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd.Path, err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}
