package cluster

import (
	"os/exec"
	"runtime"
	"testing"
)

// TestDownLooksBetweenOthersSteps: when two clusters come down at once, the one must not take for its own what the
// other is about to put back. The other's record goes first, then the limit that it had raised, all under a lock;
// `down` once looked in between, and found something left over.
func TestDownLooksBetweenOthersSteps(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the scripts are for Linux: run the tests there")
	}
	const script = `set -euo pipefail
. lib/settings.sh
. lib/ours.sh
RECORD=$1/mine
exec 8</run; flock 8 # the other one: its record is gone, and the limit is as it was while clusters ran
echo 128 >"$1/.inotify"
{ machine_state || true; } >"$1/said" 8<&- &
looks=$!
while [ -e "/proc/$looks" ] && ! grep -q -- '-> FLOCK' /proc/locks && [ ! -s "$1/said" ]; do read -rt 0.01 <> <(:) || true; done
rm "$1/.inotify"
exec 8<&-
wait "$looks"
! grep -F inotify "$1/said"`
	if out, err := exec.Command("bash", "-c", script, "bash", t.TempDir()).CombinedOutput(); err != nil {
		t.Errorf("%v: what another cluster has not put back yet counts as left over:\n%s", err, out)
	}
}
