#!/usr/bin/env bash
# Examines every snapshot of pkg/doctor/testdata: of each broken cluster doctor must name exactly the cause, and of each healthy one warn of
# nothing. No bundle may have a planted secret. The last line counts roots that are right, false alarms and leaked secrets.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

report=$(mktemp)
trap 'rm -f "$report" "$report.log" "$report.secrets"' EXIT
status=0
DOCTOR_REPORT=$report go test -count=1 -v -run '^(TestCorpus|TestField)$' ./pkg/doctor >"$report.log" 2>&1 || status=$?
SECRETS_REPORT=$report.secrets go test -count=1 -run '^TestPlantedSecrets$' ./pkg/snapshot >>"$report.log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then cat "$report.log" >&2; fi
grep -o 'field: right .*' "$report.log" || true
echo "$(cat "$report"), $(cat "$report.secrets")"
exit "$status"
