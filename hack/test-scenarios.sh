#!/usr/bin/env bash
# All scenarios on real clusters: each is broken, solved and wrongly mended with the candidate's own rights, graded and put back, for each
# seed. Prints the table; the last line is `scenarios right A of B`, and the exit code is 1 when A is less than B or nothing ran.
#   SEEDS=1,2        the seeds
#   LABS=3           clusters at a time: exercises that use GPUs have a cluster for themselves
#   SCENARIOS='a b'  only these
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${SEEDS:-1,2} labs=${LABS:-3}
plugin=$PWD/bin/kubectl-gpu_fault
[ -x "$plugin" ] || { echo "test-scenarios: no $plugin: make build makes it" >&2; exit 1; }

work=$(mktemp -d)
state() { echo "$work/lab$1"; }
finish() {
  local code=$? i
  for i in $(seq "$labs"); do
    STATE=$(state "$i") test/cluster/down >"$work/down$i" 2>&1 || { code=1; cat "$work/down$i" >&2; }
  done
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

names=${SCENARIOS:-$("$plugin" scenario list -o name | sed 's,^scenario/,,')}
# Those that take longest come first, so that no lab waits for one at the end.
for name in $names; do echo "$(grep -c '^ *- name:' "pkg/scenario/packs/$name.yaml") $name"; done | sort -rn | cut -d' ' -f2 >"$work/queue"
next() { flock "$work/lock" sh -c 'head -n 1 "$0"; sed -i 1d "$0"' "$work/queue"; }

# lab I: a cluster, on which one scenario after the other is played.
lab() {
  local name config
  config=$(state "$1")/kubeconfig
  CLUSTER=lab$1 SUBNET=10.8$1.0 STATE=$(state "$1") test/cluster/up >"$work/up$1" 2>&1 || { cat "$work/up$1" >&2; return 1; }
  STATE=$(state "$1") test/cluster/addon all >"$work/addon$1" 2>&1 || { cat "$work/addon$1" >&2; return 1; }
  STATE=$(state "$1") test/cluster/trainer >/dev/null 2>"$work/trainer$1" || { cat "$work/trainer$1" >&2; return 1; }
  while name=$(next) && [ -n "$name" ]; do
    KUBECONFIG=$config "$plugin" scenario selftest "$name" --seeds "$seeds" --yes --allow-control-plane --allow-majority --allow-last-gpu-node \
      >"$work/table-$name" 2>"$work/log-$name" || { echo "--- $name" >&2; grep -E '^(WRONG|error)' "$work/log-$name" >&2 || tail -n 20 "$work/log-$name" >&2; }
  done
}

test/cluster/build >&2
jobs=()
for i in $(seq "$labs"); do lab "$i" & jobs+=($!); done
failed=0
for job in "${jobs[@]}"; do wait "$job" || failed=1; done

head -qn 1 "$work"/table-* | head -n 1
for name in $names; do tail -n +2 "$work/table-$name" 2>/dev/null || { echo "$name: did not run"; failed=1; }; done
sed -n 's/^scenarios right \([0-9]*\) of \([0-9]*\)$/\1 \2/p' "$work"/log-* |
  awk -v failed="$failed" '{ a += $1; b += $2 } END { printf "scenarios right %d of %d\n", a, b; exit b == 0 || a < b || failed }'
