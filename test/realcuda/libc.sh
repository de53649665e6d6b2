#!/usr/bin/env bash
# The shim on the C libraries of several Debian releases, for amd64, and for arm64 by qemu-user: programs built here, with references to the oldest
# versions of libc's functions only, are run by each release's own loader, on the fake driver. musl's loader runs a program without CUDA: there the
# shim has to do no harm. The packages are downloaded from the machine's own Debian archive into ${XDG_CACHE_HOME:-~/.cache}/gpu-fault/libc, once;
# nothing is installed (40 MB). The last line is `C libraries: N of M as wanted`, and the exit code is 1 when N is less than M.
#   LIBRARY_DIR=FOLDER  the shims to test (FOLDER/x86_64/libgpufault.so, ...) in place of the committed ones
#   LIBC_ROOTS="DIR.."  further C libraries: folders with an unpacked libc6 each, of releases that the archive does not have any more
# On Debian 12 it needs: apt-get install gcc libc6-dev gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user musl-tools, and Go
set -euo pipefail
library=$(realpath "${LIBRARY_DIR:-$(dirname "$0")/../../cudafault/lib}")
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=${GOFLAGS--trimpath -buildvcs=false}
here=$PWD/test/realcuda/programs cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-fault/libc
# shellcheck source=test/realcuda/debian.sh
. test/realcuda/debian.sh

for tool in gcc aarch64-linux-gnu-gcc qemu-aarch64 musl-gcc go apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || { echo "libc.sh: $tool is missing; its first lines say what to install" >&2; exit 1; }
done
[ "$(uname -m)" = x86_64 ] || { echo 'libc.sh: this runs on an x86_64 machine (aarch64 is run by qemu-user)' >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

roots=() arm_musl=
for architecture in amd64 arm64; do
  for suite in bullseye bookworm trixie forky; do
    if root=$(fetch "$cache" "$architecture" main "$suite" libc6); then
      roots+=("$root")
    else
      echo "libc.sh: left out: libc6 $suite $architecture" >&2
    fi
  done
  packages=(musl) # for arm64 with what a program needs to be built, which musl-gcc has for this machine only
  [ "$architecture" = amd64 ] || packages+=(musl-dev)
  for suite in bullseye bookworm trixie; do
    if root=$(fetch "$cache" "$architecture" main "$suite" "${packages[@]}"); then
      roots+=("$root")
      [ "$architecture" = amd64 ] || arm_musl=${arm_musl:-$root}
    else
      echo "libc.sh: left out: musl $suite $architecture" >&2
    fi
  done
done
for root in ${LIBC_ROOTS-}; do roots+=("$(realpath "$root")"); done

# A compiler whose programs run on old releases: oldest.h and older.c say how.
mkdir "$work/cc"
for cc in gcc aarch64-linux-gnu-gcc; do
  "$cc" -O2 -fPIC -c -o "$work/cc/$cc.o" "$here/older.c"
  cat >"$work/cc/$cc" <<CC
#!/bin/sh
exec '$(command -v "$cc")' -include '$here/oldest.h' "\$@" '$work/cc/$cc.o' \\
  -Wl,--push-state,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--pop-state
CC
  chmod +x "$work/cc/$cc"
done
flags=(-std=gnu11 -O2 -Wall -Wextra)
for arch in x86_64 aarch64; do
  cc=gcc
  [ $arch = x86_64 ] || cc=aarch64-linux-gnu-gcc
  out=$work/bin/$arch
  mkdir -p "$out"
  PATH=$work/cc:$PATH cudafault/fakecuda/build.sh "$out" $arch
  for program in linked loaded cudart nvml idle; do
    extra=()
    [ $program != linked ] || extra=(-l:libcuda.so.1)
    [ $program != idle ] || extra=(-rdynamic)
    "$work/cc/$cc" "${flags[@]}" -nostartfiles -o "$out/$program" cudafault/probe/$program.c "$here/start.c" -L"$out" "${extra[@]}"
  done
  "$work/cc/$cc" "${flags[@]}" -shared -fPIC -o "$out/plugin.so" cudafault/probe/plugin.c -L"$out" -l:libcuda.so.1
  "$work/cc/$cc" "${flags[@]}" -shared -fPIC -DSTATIC -o "$out/static.so" cudafault/probe/plugin.c
done
mkdir -p "$work/bin/musl-x86_64" "$work/bin/musl-aarch64"
musl-gcc "${flags[@]}" -rdynamic -o "$work/bin/musl-x86_64/idle" cudafault/probe/idle.c
if [ -n "$arm_musl" ]; then
  lib=$arm_musl/usr/lib/aarch64-linux-musl
  aarch64-linux-gnu-gcc "${flags[@]}" -nostdinc -isystem "$arm_musl/usr/include/aarch64-linux-musl" -nostdlib \
    -fno-stack-protector -mno-outline-atomics -rdynamic -o "$work/bin/musl-aarch64/idle" "$lib/Scrt1.o" cudafault/probe/idle.c -L"$lib" -lc -lgcc
fi
go build -o "$work/realcuda" ./test/realcuda
"$work/realcuda" libc -bin "$work/bin" -lib "$library" -lookups cudafault/probe/testdata "${roots[@]}"
