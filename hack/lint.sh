#!/usr/bin/env bash
# Holds the style: gofmt; golangci-lint in one pass over all build tags, with its cache kept (.golangci.yml: vet, staticcheck, gosec); that the client
# compiles for other systems; the licenses of what is linked in; actionlint; shellcheck.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

unformatted=$(git ls-files --cached --others --exclude-standard '*.go' | xargs -r gofmt -l)
if [ -n "$unformatted" ]; then
  printf 'lint: not formatted, run gofmt -w:\n%s\n' "$unformatted" >&2
  exit 1
fi
# In a module of its own: what it needs is more than all that we link.
golangci=$(go tool -modfile=hack/lint/go.mod -n golangci-lint)
# It reads what the compiler says of each package: compiled as `make build` does it, most is in the build cache already.
GOFLAGS="${GOFLAGS-} -gcflags=all=-l -gcflags=std=" "$golangci" run ./...
# The client runs on people's laptops too.
go run ./hack/systems
# Workflows run nowhere but where they are needed; this finds what can be found before.
go tool -modfile=hack/tools/go.mod actionlint
go tool -modfile=hack/tools/go.mod actionlint docs/examples/github-actions.yml
# A module of its own, too.
go vet -C hack/licenses ./...
licenses=$(mktemp)
trap 'rm -f "$licenses"' EXIT
go build -C hack/licenses -o "$licenses" .
"$licenses"
# Scripts say what they are in their first line, not in their names.
git ls-files --cached --others --exclude-standard | xargs -r awk 'FNR == 1 && /^#!.*[\/ ](ba)?sh$/ { print FILENAME } { nextfile }' 2>/dev/null | xargs -r shellcheck -x -S warning
