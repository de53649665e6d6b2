#!/usr/bin/env bash
# Holds the style: gofmt, go vet and staticcheck (also of the end-to-end tests), shellcheck where it is installed.
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
go vet -tags e2e,scenario,shim ./...
go tool -modfile=hack/tools/go.mod staticcheck -tags e2e,scenario,shim ./...
if command -v shellcheck >/dev/null; then
  # Scripts say what they are in their first line, not in their names.
  git ls-files --cached --others --exclude-standard | xargs -r grep -lIE '^#!.*\b(ba)?sh$' 2>/dev/null | xargs -r shellcheck -x -S warning
else
  echo 'lint: shellcheck is not installed: shell scripts were not looked at' >&2
fi
