#!/usr/bin/env bash
# Examines every snapshot of pkg/doctor/testdata: of each broken cluster doctor must name exactly the cause, and of each healthy one warn of
# nothing. The last line counts roots that are right and false alarms.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

report=$(mktemp)
trap 'rm -f "$report" "$report.log"' EXIT
status=0
DOCTOR_REPORT=$report go test -count=1 -run '^TestCorpus$' ./pkg/doctor >"$report.log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then cat "$report.log" >&2; fi
cat "$report"
exit "$status"
