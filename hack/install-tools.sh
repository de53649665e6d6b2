#!/usr/bin/env bash
# Installs, on Debian and as root, what the build and the tests need beside Go and is not there; elsewhere it says what that is.
# Kernels, their headers and compilers are not installed: test/kmod/fetch unpacks them.
set -euo pipefail
missing=()
while read -r tool packages; do
  command -v "$tool" >/dev/null || missing+=("$packages")
done <<'TOOLS'
git git
make make
gcc gcc libc6-dev
aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
qemu-aarch64 qemu-user
musl-gcc musl-tools
strace strace
shellcheck shellcheck
busybox busybox
qemu-system-x86_64 qemu-system-x86
cpio cpio
zsh zsh
fish fish
python3 python3
TOOLS
# It has no program.
[ -s /usr/share/bash-completion/bash_completion ] || missing+=(bash-completion)
[ ${#missing[@]} -gt 0 ] || exit 0
read -ra packages <<<"${missing[*]}"
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "install-tools: missing; on Debian, as root: apt-get install ${packages[*]}" >&2
  exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
