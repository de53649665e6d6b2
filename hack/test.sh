#!/usr/bin/env bash
# All tests: the unit tests with the race detector, real containerd configurations, then what needs a cluster, on the local one: it uses
# the cluster that runs, or starts one and takes it down again. The crash matrix has a cluster of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/steps.sh

# packages_with TAG: those that have tests which are built with the tag alone; the others ran before.
packages_with() {
  local before after
  before=$(test_files '') && after=$(test_files "$1") && LC_ALL=C comm -13 <(echo "$before") <(echo "$after") | cut -d' ' -f1
}
test_files() { go list -tags "$1" -f '{{.ImportPath}} {{.TestGoFiles}} {{.XTestGoFiles}}' ./... | LC_ALL=C sort; }

# One package after the other: some kill nodes, and all share one kernel log. They race against a real cluster on machines that others use
# too: a test that fails is tried once more, alone, and is told of as flaky; more than three failures are no bad luck.
end_to_end() {
  local packages flaky rc=0
  packages=$(packages_with e2e) && flaky=$(mktemp) || return
  KUBECONFIG=$PWD/.cluster/kubeconfig CGO_ENABLED=1 go tool -modfile=hack/tools/go.mod gotestsum --format standard-quiet \
    --rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-report "$flaky" --packages "${packages//$'\n'/ }" \
    -- -race -tags e2e -count=1 -timeout 30m -p 1 || rc=$?
  [ ! -s "$flaky" ] || { echo 'FLAKY: these failed at first; mend them:'; cat "$flaky"; }
  rm -f "$flaky"
  return "$rc"
}

mine=
[ -s .cluster/kubeconfig ] || mine=1
step 'tools' hack/install-tools.sh
step 'unit tests (-race)' env CGO_ENABLED=1 go test -race ./...
step 'containerd configurations' hack/test-containerd.sh
step 'CUDA shim' hack/test-shim.sh
step 'doctor: broken and healthy clusters' hack/test-doctor.sh
step 'cluster up' test/cluster/up
step 'end-to-end tests (-race)' end_to_end
[ -z "$mine" ] || step 'cluster down, nothing left' test/cluster/down
step 'crash matrix' hack/test-crash.sh
# One seed of each; make test-scenarios and CI play two.
step 'scenarios' env SEEDS="${SEEDS:-1}" hack/test-scenarios.sh
steps_report
