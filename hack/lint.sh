#!/usr/bin/env bash
# Holds the style: gofmt, go vet and staticcheck (also of the end-to-end tests), actionlint, shellcheck where it is installed. Looks for insecure code, and for
# licences that do not let us give away what is linked in.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 # as the binary is built, so that both share the build cache

unformatted=$(git ls-files --cached --others --exclude-standard '*.go' | xargs -r gofmt -l)
if [ -n "$unformatted" ]; then
  printf 'lint: not formatted, run gofmt -w:\n%s\n' "$unformatted" >&2
  exit 1
fi
# The client runs on people's laptops too.
for os in linux darwin windows; do GOOS=$os CGO_ENABLED=0 go vet ./cmd/kubectl-gpu_fault ./plugin/... ./pkg/... ./debugpod/...; done
go vet -tags e2e,scenario,shim,kmod ./...
go tool -modfile=hack/tools/go.mod staticcheck -tags e2e,scenario,shim,kmod ./...
# Workflows run nowhere but where they are needed; this finds what can be found before.
go tool -modfile=hack/tools/go.mod actionlint
# Programs of modules of their own, so that nothing of them is in go.mod.
checks=$(mktemp -d)
trap 'rm -rf "$checks"' EXIT
for check in gosec licenses; do
  go vet -C "hack/$check" ./...
  go build -C "hack/$check" -o "$checks/$check" .
done
"$checks/gosec" ./cmd/... ./plugin/... ./pkg/... ./debugpod/... ./cudafault/... ./kmod/...
"$checks/licenses"
if command -v shellcheck >/dev/null; then
  # Scripts say what they are in their first line, not in their names.
  git ls-files --cached --others --exclude-standard | xargs -r awk 'FNR == 1 && /^#!.*[\/ ](ba)?sh$/ { print FILENAME } { nextfile }' 2>/dev/null | xargs -r shellcheck -x -S warning
else
  echo 'lint: shellcheck is not installed: shell scripts were not looked at' >&2
fi
