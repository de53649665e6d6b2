#!/usr/bin/env bash
# Makes docs/demo.svg: a recording of the demo on the cluster that runs, as it was, four times slower. Needs script(1).
set -euo pipefail
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# A dumb terminal: lines stay, and are not drawn over.
script -q -e --log-out "$tmp/out" --log-timing "$tmp/timing" -c 'stty cols 100 rows 60; TERM=dumb hack/demo.sh' >/dev/null
go run ./hack/recording -slow 4 -title 'kubectl gpu-fault: make demo' "$tmp/out" "$tmp/timing" >"$tmp/demo.svg"
mv "$tmp/demo.svg" docs/demo.svg
