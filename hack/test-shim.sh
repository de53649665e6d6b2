#!/usr/bin/env bash
# The tests of the CUDA shim (test/shim) against the fake driver, without a GPU: each way to the driver, each effect, each rule. Prints the matrix of
# paths; the last line is `paths hit A of B`, and the exit code is 1 when A is less than B or any test failed. Arguments go to the test program:
# -test.run TestHang.
#   LIBRARY_DIR=FOLDER  the shims to test (FOLDER/x86_64/libgpufault.so, ...) in place of the committed ones
#   CACHED=1            as `go test` does: if nothing has changed since the tests passed, print that result again
# On Debian 12 it needs: apt-get install gcc libc6-dev gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user musl-tools strace
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

missing=()
while read -r tool package; do
  command -v "$tool" >/dev/null || missing+=("$package")
done <<'TOOLS'
gcc gcc libc6-dev
aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
qemu-aarch64 qemu-user
musl-gcc musl-tools
strace strace
TOOLS
if [ ${#missing[@]} -gt 0 ]; then
  echo "test-shim: tools are missing; on Debian: apt-get install ${missing[*]}" >&2
  exit 1
fi
if [ "$(uname -m)" != x86_64 ]; then
  echo 'test-shim: these tests run on an x86_64 machine (aarch64 is run by qemu-user)' >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case ${LIBRARY_DIR:-/} in /*) ;; *) export LIBRARY_DIR=$here/$LIBRARY_DIR ;; esac
hack/shim.sh export-only "$work/export-only" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

status=0
go test -c -tags shim -o "$work/test" ./test/shim
passed=
if [ "${CACHED:-}" = 1 ] && [ $# = 0 ] && [ -z "${LIBRARY_DIR:-}" ]; then
  # The test program, everything that it compiles, preloads or runs, and the tools for that
  key=$({
    sha256sum <"$work/test"
    git ls-files -z --cached --others -- cudafault hack/shim.sh hack/test-shim.sh | xargs -0 sha256sum
    gcc --version; aarch64-linux-gnu-gcc --version; qemu-aarch64 --version; strace --version; ldd --version; uname -r
    find "$work/export-only" -type f -exec sha256sum {} + | sed "s,$work,,"
  } | sha256sum | cut -d' ' -f1)
  passed=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-fault/shim-passed/$key
  if [ -s "$passed" ]; then
    cat "$passed"
    exit 0
  fi
fi
(cd test/shim && EXPORT_ONLY_DIR=$work/export-only PATHS_REPORT=$work/report "$work/test" -test.timeout 20m "$@") >"$work/log" 2>&1 || status=1
if [ "$status" != 0 ]; then cat "$work/log" >&2; fi
[ ! -s "$work/report" ] || cat "$work/report"
if [ "$status" = 0 ] && [ -n "$passed" ]; then
  rm -rf "${passed%/*}" # of other versions
  mkdir -p "${passed%/*}"
  cp "$work/report" "$passed"
fi
exit "$status"
