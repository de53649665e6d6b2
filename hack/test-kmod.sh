#!/usr/bin/env bash
# The tests of the kernel module on real kernels, each in a virtual machine: the helper builds it against their headers, loads it, writes every
# line of the catalog, and much else; see test/kmod. The faults of the network run on those of bookworm, as machines of developers lack netem. The last line is `records equal A of B`, and the exit code is 1 when A is less than B or
# any test failed. Kernels and programs are Debian's, unpacked in ~/.cache/gpu-fault/kmod, where the next run finds them. It needs root, as
# packages are unpacked with their owners and built in roots of their own.
#   KERNELS    which: SUITE/FLAVOUR ...; "more" for those that are tried by hand, too
#   SIDE=FILE  gets what both ways look like to those who read the log, for docs/kmod.md
# On Debian it needs: apt-get install qemu-system-x86 cpio
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

usual='bookworm/cloud-amd64 bookworm/amd64 bookworm-backports/cloud-amd64'
kernels=${KERNELS:-$usual}
# shellcheck source=test/kmod/settings.sh
. test/kmod/settings.sh
[ "$kernels" != more ] || kernels="$usual bullseye/cloud-amd64 trixie/cloud-amd64 trixie-backports/cloud-amd64"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
declare -A flavours=([bookworm]=$bookworm)
for kernel in $kernels; do
  case " ${flavours[${kernel%%/*}]-} " in *" ${kernel#*/} "*) ;; *) flavours[${kernel%%/*}]+=" ${kernel#*/}" ;; esac
done
for suite in "${!flavours[@]}"; do
  # shellcheck disable=SC2086 # a list
  unpack "$suite" ${flavours[$suite]}
done
test/kmod/fetch "$cache/userland" bookworm rsyslog systemd busybox-static iproute2 util-linux

go build -trimpath -ldflags '-s -w -buildid=' -o "$work/helper" ./cmd/gpu-fault-node
go test -c -ldflags '-s -w' -tags kmod -o "$work/vmtest" ./test/kmod
go test -c -ldflags '-s -w' -o "$work/nettest" ./debugpod/node/firewall

# one SUITE FLAVOUR: builds for one kernel, boots it, runs the tests there; what it says goes to a file.
one() {
  local suite=$1 flavour=$2 kernel dir image module network=()
  kernel=$(release "$suite" "$flavour")
  dir=$work/$suite-$flavour
  mkdir -p "$dir"
  image=$cache/$suite/boot/vmlinuz-$kernel
  [ -e "$image" ] || image=$cache/$suite/lib/modules/$kernel/vmlinuz # since Linux 7.3
  echo "kernel $kernel ($suite, $flavour), $accelerator"
  test/kmod/build "$cache/$suite" "$kernel" "$work/vmtest" "$dir/gpu_fault_xid.ko" || return 1
  if [ "$suite" = bookworm ]; then # the only one that is unpacked with its modules
    network=("$work/nettest=/bin/nettest" "$cache/$suite/lib/modules/$kernel/modules.builtin=/lib/modules/$kernel/modules.builtin")
    for module in $(cd "$cache/$suite/lib/modules/$kernel/kernel" && find net/{netfilter,sched,ipv4,ipv6} lib arch crypto drivers/net/veth.ko -name '*.ko'); do
      network+=("$cache/$suite/lib/modules/$kernel/kernel/$module=/lib/modules/$kernel/kernel/$module")
    done
  fi
  test/kmod/initramfs "$dir/initrd" "$cache/userland" test/kmod/init \
    "$work/vmtest=/bin/vmtest" "$work/helper=/bin/gpu-fault-node" "$dir/gpu_fault_xid.ko=/mod/gpu_fault_xid.ko" "$dir/gpu_fault_xid.ko.signed=/mod/signed.ko" "${network[@]}"
  boot 600 "$dir/initrd" "$image" '' -smp 1 -m 512 >"$dir/said"
  grep -aqx 'VM ended: 0' "$dir/said" || { cat "$dir/said" >&2; return 1; }
  if [ ${#network[@]} -gt 0 ] && ! grep -aq -- '^--- PASS: TestLatencyInTheKernel' "$dir/said"; then
    echo "the tests of the network did not run" >&2
    return 1
  fi
  grep -aE '^(--- |RECORDS)' "$dir/said" | sed "s/^/$kernel: /"
}

# As many at a time as there are processors.
status=0
mkdir "$work/said"
for kernel in $kernels; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || status=1; done
  one "${kernel%%/*}" "${kernel#*/}" >"$work/said/${kernel//\//-}" 2>&1 &
done
while [ -n "$(jobs -p)" ]; do wait -n || status=1; done

for kernel in $kernels; do
  file=$work/said/${kernel//\//-}
  if grep -q RECORDS "$file"; then grep -vE -- '--- PASS|RECORDS' "$file" || true; else cat "$file"; fi
  printf '%d tests passed\n\n' "$(grep -c -- '--- PASS' "$file")"
done
if [ -n "${SIDE:-}" ]; then
  first=${kernels%% *}
  sed -n 's/^SIDE //p' "$work/${first//\//-}/said" >"$SIDE"
fi
wanted=$(wc -w <<<"$kernels")
awk -v wanted="$wanted" -v status="$status" '
  /: RECORDS / { equal += $(NF - 1); all += $NF; kernels++ }
  END {
    bad = equal < all || kernels < wanted || status
    if (kernels < wanted) printf "only %d of %d kernels got to the end\n", kernels, wanted
    printf "records equal %d of %d\n", equal, all
    exit bad
  }' "$work"/said/*
