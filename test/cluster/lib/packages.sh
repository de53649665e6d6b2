# shellcheck shell=bash
# Sourced by `up` after settings.sh: the Debian packages that the nodes use, and
# what the kernel must offer.

# missing_packages: what of it is not installed, by the file that is used of it.
missing_packages() {
  local package file
  while read -r package file; do [ -e "$file" ] || echo "$package"; done <<L
runc /usr/sbin/runc
containernetworking-plugins /usr/lib/cni/bridge
iproute2 /sbin/ip
procps /usr/bin/pgrep
util-linux /usr/bin/unshare
mount /bin/mount
nftables /usr/sbin/nft
L
  [ "$PROXY" != iptables ] || [ -e /usr/sbin/iptables ] || echo iptables
  [ "$JOURNALD" = 0 ] || [ -e /lib/systemd/systemd-journald ] || echo systemd
}

install_packages() {
  [ -n "$(missing_packages)" ] || return 0
  # dpkg refuses a second one, and several clusters may be on their way.
  exec 6>/run/gpu-fault-test.packages.lock
  flock 6
  install_missing
  exec 6>&-
}
install_missing() {
  local packages log
  mapfile -t packages < <(missing_packages)
  [ ${#packages[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null ||
    die "missing, and there is no apt-get to install them: ${packages[*]} (names of Debian 12)"
  say "installing Debian packages: ${packages[*]}"
  log=$(mktemp)
  local get=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}")
  # A fresh machine has no package lists; an old one may have stale ones.
  "${get[@]}" >"$log" 2>&1 || { apt-get update -q >>"$log" 2>&1; "${get[@]}" >>"$log" 2>&1; } ||
    { tail -n 15 "$log" >&2; rm -f "$log"; die "could not install ${packages[*]}"; }
  rm -f "$log"
}

# require_kernel: tries, in namespaces of its own, what every node will need.
require_kernel() {
  local why
  grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || true
  why=$(unshare --mount --pid --net --ipc --uts --fork -- sh -ec '
    mount -t tmpfs probe /mnt
    mkdir /mnt/u /mnt/w /mnt/r
    mount -t overlay -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w overlay /mnt/r
    mknod /mnt/node c 195 0
    ip link add probe type bridge
    ip link add probe0 type veth peer name probe1' 2>&1) ||
    die "the test cluster needs namespaces, overlayfs, mknod, bridges and veth pairs, and this machine refuses: ${why//$'\n'/; }"
}
