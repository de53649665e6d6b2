#!/usr/bin/env bash
# Tests the CUDA shim with NVIDIA's own user-space libraries, without a GPU: libcuda, libnvidia-ml and nvidia-smi 535 and 550, and the dynamic
# cudart 11.2, 11.8 and 12.4. For people who choose to: nothing else in this repository runs it.
#
# The libraries are downloaded from Debian's non-free component, with the machine's own apt sources, into
# ${XDG_CACHE_HOME:-~/.cache}/gpu-fault/nvidia, once (9 MB). They are proprietary. Nothing is installed, and nothing of them belongs into this
# repository, an image or a release: the licenses allow use, not redistribution.
# The last line is `real libraries: N of M as wanted`, and the exit code is 1 when N is less than M.
#   LIBRARY_DIR=FOLDER  the shim to test (FOLDER/x86_64/libgpufault.so) in place of the committed one
#   NCCL=1              NCCL 2.22 too, which has a static cudart inside: another 120 MB
# On Debian 12 it needs: apt-get install gcc libc6-dev, and Go
set -euo pipefail
library=$(realpath "${LIBRARY_DIR:-$(dirname "$0")/../cudafault/lib}")
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=${GOFLAGS--trimpath -buildvcs=false}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-fault/nvidia
# shellcheck source=test/realcuda/debian.sh
. test/realcuda/debian.sh

for tool in gcc go apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || { echo "test-real-libraries: $tool is missing" >&2; exit 1; }
done
[ "$(uname -m)" = x86_64 ] || { echo 'test-real-libraries: this runs on an x86_64 machine' >&2; exit 1; }

cat <<TEXT
This test uses NVIDIA's proprietary libraries, downloaded from Debian's archive into
  $cache
under the NVIDIA driver license and the CUDA toolkit's EULA, which are beside them in usr/share/doc/*/copyright.
Nothing is redistributed, modified or installed; to be rid of them, remove that folder.

TEXT

# fetched COMPONENT SUITES PACKAGE...: adds to the folders to test with, where the archive has them still.
roots=()
fetched() {
  local root component=$1 suites=$2
  shift 2
  if root=$(fetch "$cache" amd64 "$component" "$suites" "$@"); then
    roots+=("$root")
  else
    echo "test-real-libraries: left out: $* of ${suites%% *}" >&2
  fi
}
fetched non-free 'bookworm bookworm-security' libcuda1 libnvidia-ml1 nvidia-smi libcudart11.0
fetched non-free trixie libcuda1 libnvidia-ml1 nvidia-smi libcudart12
fetched non-free bullseye libcudart11.0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
extra=()
if [ "${NCCL:-}" = 1 ]; then
  # It needs a newer glibc than Debian 12 has, and is run by that one's loader.
  fetched contrib trixie libnccl2
  extra=(-libc "$(fetch "$cache" amd64 main trixie libc6 libstdc++6 libgcc-s1)")
fi
flags=(-std=gnu11 -O2 -Wall -Wextra)
programs=test/realcuda/programs
mkdir "$work/recorder"
# A driver to link with, of which only the names count.
cudafault/fakecuda/build.sh "$work/fake"
gcc "${flags[@]}" -o "$work/calls" $programs/calls.c -L"$work/fake" -l:libcuda.so.1
for program in lookups runtime nccl; do gcc "${flags[@]}" -o "$work/$program" $programs/$program.c -ldl; done
gcc "${flags[@]}" -shared -fPIC -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -o "$work/recorder/libcuda.so.1" $programs/recorder.c -ldl
go build -o "$work/realcuda" ./test/realcuda
"$work/realcuda" nvidia -bin "$work" -shim "$library/x86_64/libgpufault.so" -lookups cudafault/probe/testdata "${extra[@]}" "${roots[@]}"
