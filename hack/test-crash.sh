#!/usr/bin/env bash
# The crash matrix (test/crash): kills the built plugin at every step, and what it depends on, and counts how often everything is as it
# was before. The last line is `restored A of B`; the exit code is 1 when A is less than B. Arguments go to test/crash: -group, -only, -exercises.
#   NODES=4        of the cluster that it starts for itself, side by side with others, and takes down (default 6)
#   CRASH_STATE=F  the state folder of a running cluster of ours to use in its place
#   PLUGIN=F       the plugin to test (default bin/kubectl-gpu_fault)
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
plugin=${PLUGIN:-bin/kubectl-gpu_fault}
[ -x "$plugin" ] || { echo "test-crash: no $plugin: make build makes it" >&2; exit 1; }

work=$(mktemp -d)
state=${CRASH_STATE:-}
finish() {
  local code=$?
  [ -n "${CRASH_STATE:-}" ] || STATE=$work/cluster test/cluster/down >"$work/down" 2>&1 || { code=1; cat "$work/down" >&2; }
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

go build -o "$work/crash" ./test/crash
if [ -z "$state" ]; then
  state=$work/cluster
  # All that shows what happens on a node, and nothing else: it is to be quick on two cores.
  STATE=$state CLUSTER=crash SUBNET=10.89.0 NODES=${NODES:-6} NPD=0 JOURNALD=0 test/cluster/up
fi
"$work/crash" -state "$state" -plugin "$plugin" "$@"
