#!/usr/bin/env bash
# Builds the fake driver and the sample workload: build.sh OUTDIR [x86_64|aarch64]   (default: this machine's)
#   OUTDIR/libcuda.so.1  OUTDIR/libnvidia-ml.so.1  OUTDIR/trainer
#   OUTDIR/compat/libcuda.so.1  as of a cuda-compat package that does not support the node's driver: cuInit returns 803
# Needs gcc (and aarch64-linux-gnu-gcc for aarch64 on another machine) and nothing else; the same sources give the same bytes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { echo 'usage: build.sh OUTDIR [x86_64|aarch64]' >&2; exit 1; }
out=$1 arch=${2:-$(uname -m)}
cc=gcc
[ "$arch" = "$(uname -m)" ] || cc=$arch-linux-gnu-gcc
command -v "$cc" >/dev/null || { echo "build.sh: no $cc: apt-get install ${cc/x86_64-linux-gnu-gcc/gcc-x86-64-linux-gnu}" >&2; exit 1; }

mkdir -p "$out/compat"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -f "$here/generate.awk" "$here/errors.tsv" "$here/api.tsv" >"$work/generated.c"
flags=(-std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -fno-ipa-icf -I "$here" "-ffile-prefix-map=$here=." "-ffile-prefix-map=$work=."
  "-Wl,--build-id=none" "-Wl,-z,defs" -s)
# -Bsymbolic as the real libraries: a call inside of the driver is not seen from outside.
cuda() {
  "$cc" "${flags[@]}" -fno-strict-aliasing -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic "$@" \
    "$work/generated.c" "$here"/{device,context,memory,vmm,copy,stream,event,graph,module,lookup}.c -lpthread
}
cuda -o "$out/libcuda.so.1"
cuda -o "$out/compat/libcuda.so.1" -DDRIVER_VERSION=13000 -DINIT=803
"$cc" "${flags[@]}" -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,-Bsymbolic -o "$out/libnvidia-ml.so.1" "$here/nvml.c" -ldl
"$cc" "${flags[@]}" -fno-pic -pie -fPIE -o "$out/trainer" "$here"/trainer{,-driver,-framework,-memory,-loader,-ranks,-checkpoint,-http,-health,-fabric}.c -lpthread -ldl
