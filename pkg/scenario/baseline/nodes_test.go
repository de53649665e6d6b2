package baseline

import (
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// What a candidate leaves on a node is found. What the solution changes, what the kernel loads by itself, and the
// removal of the fault's own table are not held against anybody.
func TestNodeChanges(t *testing.T) {
	t.Parallel()
	const table = "nftables table inet hardening"
	for _, c := range []struct{ item, was, is, want string }{
		{"file /etc/cron.d/x", "-", "1", "the file /etc/cron.d/x is new"},
		{"file /etc/crontab", "1", "2", "the file /etc/crontab was changed"},
		{"file /etc/crontab", "1", "-", "the file /etc/crontab is gone"},
		{"file /etc/containerd/config.toml", "1", "2", ""},
		{"file /etc/containerd", "1", "2", ""},
		{"file /etc/containerd-other/x", "1", "2", "the file /etc/containerd-other/x was changed"},
		{"mount /etc/containerd/config.toml", "-", "/tmp/x", "the mount /etc/containerd/config.toml is new"},
		{"kernel module nvidia", "", "-", "the kernel module nvidia is gone"},
		{"kernel module nf_tables", "-", "", ""},
		{"process sleep 5400", "-", "", "the process sleep 5400 is new"},
		{"process dockerd", "", "-", ""},
		{table, api.StateOfRun, "-", ""},
		{table, api.StateOfRun, api.StateOfRun, ""},
		{table, api.StateOfRun, "1", ""},
		{table, api.StateOfRun, api.StateDrops + "1", "the " + table + " was changed"},
		{table, "-", "1", "the " + table + " is new"},
		{table, "1", "2", ""},
		{"iptables table ip filter", "1", "2", "the iptables table ip filter was changed"},
	} {
		state := func(digest string) *Baseline {
			items := map[string]string{"file /etc/hosts": "1"}
			if digest != "-" {
				items[c.item] = digest
			}
			return &Baseline{Nodes: map[string]map[string]string{"a": items}}
		}
		got := ""
		for _, change := range NodeChanges(state(c.was), state(c.is), []string{"/etc/containerd", "/", ""}) {
			got += change.String()
			if change.Difference().Ref.Name != "a" {
				t.Errorf("%s: %+v", c.item, change.Difference())
			}
		}
		if got != c.want {
			t.Errorf("%s from %q to %q: %q, not %q", c.item, c.was, c.is, got, c.want)
		}
	}
	other := &Baseline{Nodes: map[string]map[string]string{"b": {"file /x": "1"}}}
	if found := NodeChanges(&Baseline{}, other, nil); found != nil {
		t.Errorf("a node that was not read before: %v", found)
	}
}
