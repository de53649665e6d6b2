#!/usr/bin/env bash
# Breaks real containerd configurations in every mode, with every handler, and undoes each fault to the last byte: our own in
# pkg/containerd/testdata/nodes, those beside the repository where they are there, and those in CONFIGS=FOLDER[:FOLDER].
# One line per file that is refused, with the reason; the last line counts faults undone exactly, files refused, and faults gone wrong.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

# The test runs in its own folder.
folders=
IFS=: read -ra given <<<"${CONFIGS:-}"
for folder in "${given[@]}"; do
  case $folder in /*) ;; *) folder=$here/$folder ;; esac
  folders+=${folders:+:}$folder
done
report=$(mktemp)
trap 'rm -f "$report" "$report.log"' EXIT
status=0
CONFIGS=$folders CORPUS_REPORT=$report go test -count=1 -run '^TestCorpus$' ./pkg/containerd >"$report.log" 2>&1 || status=$?
[ -s "$report" ] || cat "$report.log" >&2
cat "$report"
exit "$status"
