#!/usr/bin/env bash
# The whole way of `xid --via kmod`, from the client to a module that is loaded, on a test cluster in a virtual machine, whose kernel loads modules
# as those of real nodes do. The machine's disk is this machine's, which it only reads. Packages are unpacked where hack/test-kmod.sh has them, too.
# The last line is `kernel module on a cluster: A of B`, and the exit code is 1 when A is less than B. It needs bin/ and root.
#   ONLY=REGEXP  only these tests
# On Debian it needs: apt-get install qemu-system-x86 cpio
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
# shellcheck source=test/kmod/settings.sh
. test/kmod/settings.sh
[ -x bin/kubectl-gpu_fault ] || { echo 'test-kmod-cluster: no bin/kubectl-gpu_fault: make build makes it' >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086 # a list
unpack bookworm $bookworm
test/kmod/fetch "$cache/userland" bookworm rsyslog systemd busybox-static
test/cluster/build >&2
tree=$cache/bookworm
kernel=$(release bookworm amd64)

go test -c -ldflags '-s -w' -tags kmod -o "$work/vmtest" ./test/kmod
go test -c -ldflags '-s -w' -tags e2e,kmod -o "$work/e2e" ./test/e2e
test/kmod/build "$tree" "$kernel" "$work/vmtest" "$work/gpu_fault_xid.ko"

# An image with make and gcc, as the default one, of no more than building takes.
layer=$work/builder/layer.tar
mkdir "$work/builder"
tar -C "$tree" --exclude=./boot --exclude=./usr/src --exclude=./usr/lib/modules --exclude='./usr/lib/linux-*' --exclude='./usr/lib/gcc/*/*/lto*' \
  --exclude='./usr/lib/gcc/*/*/cc1plus' --exclude='./usr/lib/gcc/*/*/*.a' --exclude='./usr/lib/*/lib*san.so*' --exclude=./usr/share --exclude='./usr/lib/systemd' \
  --exclude=./var --exclude=./node --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./tmp -cf "$layer" .
digest=$(sha256sum "$layer" | cut -d' ' -f1)
printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/bin:/usr/sbin:/bin"],"Cmd":["sh"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$digest" >"$work/builder/config.json"
printf '[{"Config":"config.json","RepoTags":["docker.io/gpu-fault/builder:1"],"Layers":["layer.tar"]}]' >"$work/builder/manifest.json"
tar -C "$work/builder" -cf "$work/builder.tar" manifest.json config.json layer.tar
rm -r "$work/builder"

# What the machine boots into has only what it needs to see the disk.
init=$work/init
mkdir -p "$init/bin" "$init/lib/modules/$kernel/kernel"/{fs,net,drivers}
busybox=$cache/userland/bin/busybox
cp "$busybox" "$init/bin/"
cp test/kmod/cluster-init "$init/init"
"$busybox" depmod -b "$tree" "$kernel"
for part in fs/9p fs/netfs fs/fscache fs/overlayfs net/9p drivers/virtio; do
  [ ! -d "$tree/lib/modules/$kernel/kernel/$part" ] || cp -r "$tree/lib/modules/$kernel/kernel/$part" "$init/lib/modules/$kernel/kernel/$(dirname "$part")/"
done
"$busybox" depmod -b "$init" "$kernel"
mkdir "$init/dev"
mknod "$init/dev/console" c 5 1
(cd "$init" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

echo "kernel $kernel, $accelerator: a cluster of two nodes"
said=$work/said
boot 3000 "$work/initrd" "$tree/boot/vmlinuz-$kernel" \
  "then=$PWD/test/kmod/cluster-tests work=$work tree=$tree home=$HOME path=$PATH cache=${GPU_FAULT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-fault} only=${ONLY:-^TestVM}" -smp 2 -m 6144 \
  -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=root,mount_tag=root | tee "$said" >&2
passed=$(grep -cE '^--- PASS: TestVM' "$said" || true) all=$(grep -cE '^=== RUN +TestVM[A-Za-z]+$' "$said" || true)
ended=$(grep -cx 'VM ended: 0' "$said" || true)
echo "kernel module on a cluster: $passed of $all"
[ "$ended" = 1 ] && [ "$all" -gt 0 ] && [ "$passed" = "$all" ]
