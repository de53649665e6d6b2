#!/usr/bin/env bash
# All scenarios on real clusters: each is broken, solved and wrongly mended with the candidate's own rights, graded and put back, for each
# seed. Beside them, on a cluster of their own, the end-to-end tests of the engine (those with the tags e2e and scenario). Prints the table; the
# last line is `scenarios right A of B`, and the exit code is 1 when A is less than B, a test failed, or nothing ran.
#   SEEDS=1,2        the seeds
#   UNTIL=1795400000 no play of another seed than the first begins later (seconds since 1970); what is left out is told
#   LABS=4           clusters at a time: exercises that use GPUs have a cluster for themselves
#   SCENARIOS='a b'  only these, and no tests
#   PLUGIN=F         the plugin to test (default bin/kubectl-gpu_fault)
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${SEEDS:-1,2} until=${UNTIL:-} labs=${LABS:-4}
plugin=${PLUGIN:-$PWD/bin/kubectl-gpu_fault}
[ -x "$plugin" ] || { echo "test-scenarios: no $plugin: make build makes it" >&2; exit 1; }

work=$(mktemp -d) jobs=()
: >"$work/table-" # so that there is one, also when nothing ran
unset CLUSTER SUBNET STATE # nothing of this is the caller's cluster
state() { echo "$work/lab$1"; }
finish() {
  local code=$? i job
  trap - EXIT
  for job in "${jobs[@]}"; do kill -- -"$job" 2>/dev/null || true; done
  for i in $(seq 0 "$labs"); do
    [ -e "$work/up$i" ] || continue
    STATE=$(state "$i") test/cluster/down >"$work/down$i" 2>&1 || { code=1; cat "$work/down$i" >&2; }
  done
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

names=${SCENARIOS:-$("$plugin" scenario list -o name | sed 's,^scenario/,,')}
# One seed after the other, and of each first those that take longest, so that no lab waits for one at the end.
for seed in ${seeds//,/ }; do
  for name in $names; do echo "$(grep -c '^ *- name:' "pkg/scenario/packs/$name.yaml") $name $seed"; done | sort -rn | cut -d' ' -f2-
done >"$work/queue"
next() { flock "$work/lock" sh -c 'head -n 1 "$0"; sed -i 1d "$0"' "$work/queue"; }

# cluster I: with all that scenarios need.
cluster() {
  export STATE KUBECONFIG CLUSTER=lab$1 SUBNET=10.8$1.0
  STATE=$(state "$1") KUBECONFIG=$(state "$1")/kubeconfig
  test/cluster/up >"$work/up$1" 2>&1 || { cat "$work/up$1" >&2; return 1; }
  test/cluster/addon all >"$work/addon$1" 2>&1 || { cat "$work/addon$1" >&2; return 1; }
  test/cluster/trainer >/dev/null 2>"$work/trainer$1" || { cat "$work/trainer$1" >&2; return 1; }
}

# play NAME SEED: on the cluster of the lab. What is wrong is told.
play() {
  local log=$work/log-$1-$2
  "$plugin" scenario selftest "$1" --seeds "$2" --yes --allow-control-plane --allow-majority --allow-last-gpu-node >"$work/table-$1-$2" 2>"$log" && return
  { echo "--- $1, seed $2"; grep -E '^(WRONG|error)' "$log" | cut -c1-600 || tail -n 20 "$log"; } >&2
  return 1
}

# evidence is what the services of the lab's nodes said last; of a containerd that hangs, also what it does.
evidence() {
  local node log
  for node in "$STATE"/nodes/*/; do
    node=$(basename "$node")
    if ! test/cluster/node sh "$node" systemctl is-active -q containerd; then
      test/cluster/node sh "$node" systemctl kill -s USR1 containerd || true # it writes its stacks into its log
    fi
    for log in node containerd kubelet; do
      printf -- '--- %s: %s\n' "$node" "$log"
      tail -n 15 "$STATE/nodes/$node/log/$log.log" | tail -c 20000
    done
  done >&2
}

# lab I: a cluster on which one scenario after the other is played. They race against real clusters on machines that others use, too: one that
# went wrong is played once more, on a new cluster, and is told of as flaky; more than two are no bad luck.
lab() {
  local name seed failed=0
  cluster "$1" || return
  while read -r name seed < <(next); do
    if [ "$seed" != "${seeds%%,*}" ] && [ -n "$until" ] && [ "$(date +%s)" -ge "$until" ]; then
      echo "left out, as the time is up: $name, seed $seed" >"$work/log-$name-$seed"
      continue
    fi
    play "$name" "$seed" && continue
    evidence || true
    echo "$name, seed $seed" >>"$work/flaky"
    # Without a cluster it is no lab: the others play what there is.
    test/cluster/down >"$work/down$1" && cluster "$1" || return 1
    [ "$(wc -l <"$work/flaky")" -le 2 ] && play "$name" "$seed" || failed=1
  done
  return "$failed"
}

# tests are those of the engine. What doctor says of the scenarios (test/e2e: TestDoctorFindsWhatScenariosBreak) is for people to run, alone: all
# clusters of a machine have one kernel log, and it takes twenty minutes.
tests() {
  local files names
  cluster 0 || return
  mapfile -t files < <(git grep -lE '^//go:build .*\bscenario\b' -- '*_test.go' ':!test/e2e')
  names=$(grep -hoE '^func Test\w+' "${files[@]}" | cut -c6- | paste -sd'|')
  [ -n "$names" ] || { echo 'test-scenarios: there are no tests' >&2; return 1; }
  CGO_ENABLED=1 go tool -modfile=hack/tools/go.mod gotestsum --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=2 \
    --packages "$(dirname "${files[@]}" | sort -u | sed 's,^,./,' | paste -sd' ')" -- -race -tags e2e,scenario -count=1 -timeout 30m -p 1 -run "^($names)\$" >"$work/tests" 2>&1 ||
    { cat "$work/tests" >&2; return 1; }
  grep '^DONE' "$work/tests"
}

# summary TABLE...: a line for each scenario, with what took longest.
summary() {
  awk -F '  +' '
    function seconds(s) { return s ~ /m/ ? 60 * s + substr(s, index(s, "m") + 1) : s + 0 }
    FNR > 1 && NF >= 8 {
      if (!($1 in broken)) { names[++n] = $1; broken[$1] = 0 }
      count[$1, $4]++
      right[$1, $4] += $4 == $5
      if (seconds($6) > broken[$1]) broken[$1] = seconds($6)
      if ($4 == "passed" && seconds($7) > graded[$1]) graded[$1] = seconds($7)
    }
    END {
      printf "%-20s  %9s  %11s  %12s  %s\n", "SCENARIO", "SOLUTIONS", "WRONG FIXES", "BROKEN AFTER", "SOLUTION GRADED IN (the longest, stability included)"
      for (i = 1; i <= n; i++) { s = names[i]
        printf "%-20s  %9s  %11s  %11.1fs  %.1fs\n", s, right[s, "passed"] + 0 " of " count[s, "passed"] + 0, right[s, "failed"] + 0 " of " count[s, "failed"] + 0, broken[s], graded[s] }
    }' "$@"
}

test/cluster/build >&2
set -m # each job is a process group, which finish ends with all that is in it
[ -n "${SCENARIOS:-}" ] || { tests </dev/null & jobs+=($!); }
for i in $(seq "$labs"); do lab "$i" </dev/null & jobs+=($!); done
failed=0
for job in "${jobs[@]}"; do wait "$job" || failed=1; done

[ ! -s "$work/flaky" ] || { echo 'FLAKY: these failed at first; mend them:'; cat "$work/flaky"; }
awk 'FNR == 1 { print; exit }' "$work"/table-*
for name in $names; do
  for seed in ${seeds//,/ }; do tail -n +2 "$work/table-$name-$seed" 2>/dev/null || grep -s '^left out' "$work/log-$name-$seed" || { echo "$name, seed $seed: did not run"; failed=1; }; done
done
summary "$work"/table-*
sed -n 's/^scenarios right \([0-9]*\) of \([0-9]*\)$/\1 \2/p' "$work"/log-* |
  awk -v failed="$failed" '{ a += $1; b += $2 } END { printf "scenarios right %d of %d\n", a, b; exit b == 0 || a < b || failed }'
