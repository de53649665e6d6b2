# shellcheck shell=bash
# Sourced by the scripts that boot virtual machines: their tools, where packages are unpacked, and how fast a machine is.
missing=()
while read -r tool package; do
  command -v "$tool" >/dev/null || missing+=("$package")
done <<'TOOLS'
qemu-system-x86_64 qemu-system-x86
cpio cpio
apt-get apt
TOOLS
if [ ${#missing[@]} -gt 0 ]; then
  echo "${0##*/}: tools are missing; on Debian: apt-get install ${missing[*]}" >&2
  exit 1
fi
if [ "$(uname -m)" != x86_64 ] || [ "$(id -u)" != 0 ]; then
  echo "${0##*/}: these tests run as root on an x86_64 machine" >&2
  exit 1
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-fault/kmod
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two runs would unpack into the same folders

# What the kernel's build system needs beside the headers and their compiler.
tools='make gcc binutils coreutils bash dash sed grep mawk findutils diffutils libelf1 perl gzip openssl sparse'

# unpack SUITE FLAVOUR...: the kernels, their headers, and the tools, into $cache/SUITE. Packages of a suite are unpacked at once, as they share most.
unpack() {
  local suite=$1 packages=$tools flavour drivers=0
  shift
  for flavour in "$@"; do packages+=" linux-image-$flavour linux-headers-$flavour"; done
  [ "$suite" != bookworm ] || drivers=1 # the cluster's machine has a disk, of a kind
  # shellcheck disable=SC2086 # a list
  DRIVERS=$drivers test/kmod/fetch "$cache/$suite" "$suite" $packages
}
# shellcheck disable=SC2034
bookworm='cloud-amd64 amd64' # the flavours of that suite: both scripts unpack the same

# release SUITE FLAVOUR: the newest kernel there is of it.
release() {
  local name
  for name in "$cache/$1"/usr/src/linux-headers-*-"$2"; do echo "${name##*/linux-headers-}"; done | grep -E "^[0-9][0-9.a-z+]*(-[0-9]+)?-$2\$" | sort -V | tail -1
}

# A device that only looks like KVM, as in some clouds, interprets each instruction of a guest: the processor must be able to.
accelerator=tcg
if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accelerator=kvm; fi

# boot SECONDS INITRD IMAGE PARAMETERS ARGUMENT...: a machine, until it turns itself off; prints what its console says. Waiting for grace periods is what
# loading and unloading takes, so they are sped up. Without cx16, as QEMU 7.2 sometimes loses the flags behind cmpxchg16b, in which the memory
# allocator of Linux 6.12 then dies.
# no_timer_check: while it boots, the kernel counts the ticks of the timer for a moment. On
# a busy machine, a virtual machine gets too few, and the kernel panics.
boot() {
  local seconds=$1 initrd=$2 image=$3 parameters=$4
  shift 4
  timeout "$seconds" qemu-system-x86_64 -accel "$accelerator" -cpu max,-cx16 -machine q35 -nographic -no-reboot -nic none -kernel "$image" -initrd "$initrd" \
    -append "console=ttyS0 quiet panic=-1 loglevel=1 rcupdate.rcu_expedited=1 no_timer_check $parameters" "$@" </dev/null 2>&1 | sed -u 's/\r//g' || true
}
