# shellcheck shell=bash disable=SC2034
# Sourced by the entry points: the settings of one cluster, and the names made from
# them. Every name that the machine sees comes from CLUSTER and SUBNET, so clusters
# that differ in both (and in STATE) run side by side. `up` keeps the settings in
# $STATE/settings; from then on those hold.
#
#   NODES    how many nodes, 1 to 10; node-a is also the control plane  (default 2)
#   CLUSTER  prefix of links and cgroups: [a-z0-9-], 12 letters at most  (gpu-fault)
#   SUBNET   the first three numbers of the nodes' network               (10.99.0)
#   STATE    where kubeconfig, keys and logs lie                         (<repository>/.cluster)
#   PROXY    kube-proxy: iptables, nftables or none                      (iptables)
#   DNS, NPD  1 or 0: CoreDNS; node-problem-detector on each node        (1 1)
#   JOURNALD 1, persistent or 0: systemd-journald on each node; persistent: with its
#            journal in /var/log/journal instead of /run/log/journal     (1)
#   GPUS     1 or 0: the nodes' simulated GPUs, with labels and device plugin    (1)
#   PATIENCE how many times as long as usual `up` waits, on a slow machine       (1)
#   KEEP_LOGS  a folder into which `down` copies the nodes' logs first   (none)

# (SC2034: most names are for the scripts that source this file.)
export LC_ALL=C # EPOCHREALTIME has a comma in some languages
: "${HOME:=/root}"
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ASKED_STATE=${STATE:-}
STATE=$(realpath -m -- "${STATE:-$HERE/../../.cluster}")
SETTINGS="CLUSTER SUBNET NODES PROXY DNS NPD JOURNALD GPUS"
declare -A ASKED=() DEFAULT=([CLUSTER]=gpu-fault [SUBNET]=10.99.0 [NODES]=2 [PROXY]=iptables [DNS]=1 [NPD]=1 [JOURNALD]=1 [GPUS]=1)
for v in $SETTINGS; do ASKED[$v]=${!v:-}; done
settings_asked() { local v; for v in $SETTINGS; do declare -g "$v=${ASKED[$v]:-${DEFAULT[$v]}}"; done; }
settings_asked
# shellcheck disable=SC1091
[ ! -f "$STATE/settings" ] || . "$STATE/settings"

make_names() {
  BRIDGE=$CLUSTER-br
  HOST_IP=$SUBNET.1
  SERVICE_CIDR=10.96.0.0/16 SERVICE_IP=10.96.0.1 DNS_IP=10.96.0.10 POD_NET=10.244
  CGROUP=gpu-fault-test.$CLUSTER       # below every cgroup hierarchy
  LINK_GROUP=28262                     # marks our links from the moment they exist: `down` touches no others
  RECORD=/run/gpu-fault-test/$CLUSTER  # outlives a deleted STATE: who runs, and what was there before
  MARK=GPU_FAULT_TEST_CLUSTER          # in the environment of every process that we start
  LOCK=/run/gpu-fault-test.$CLUSTER.lock
  # All clusters of a machine share its kernel log, so no two have GPUs at the same PCI address.
  PCI_DOMAIN=0000
  [ "$SUBNET" = "${DEFAULT[SUBNET]}" ] || PCI_DOMAIN=$(IFS=. read -r _ a b <<<"$SUBNET" && printf '%02x%02x' "$a" "$b")
}
make_names

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

check_settings() {
  [[ $CLUSTER =~ ^[a-z0-9][a-z0-9-]{0,11}$ ]] || die "CLUSTER=$CLUSTER: 1 to 12 of a-z, 0-9 and -"
  [[ $SUBNET =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "SUBNET=$SUBNET: wanted three numbers, such as 10.99.0"
  [[ $NODES =~ ^([1-9]|10)$ ]] || die "NODES=$NODES: wanted 1 to 10"
  [[ $PROXY =~ ^(iptables|nftables|none)$ ]] || die "PROXY=$PROXY: wanted iptables, nftables or none"
  local v
  [[ $JOURNALD =~ ^(0|1|persistent)$ ]] || die "JOURNALD=$JOURNALD: wanted 0, 1 or persistent"
  for v in DNS NPD GPUS; do [[ ${!v} =~ ^[01]$ ]] || die "$v=${!v}: wanted 0 or 1"; done
  [ -z "${ASKED[CLUSTER]}" ] || [ "${ASKED[CLUSTER]}" = "$CLUSTER" ] ||
    die "$STATE belongs to the cluster $CLUSTER: set another STATE for ${ASKED[CLUSTER]}"
}

require_root() {
  [ "$(uname -s)" = Linux ] || die "the test cluster needs Linux (namespaces, overlayfs); this is $(uname -s)"
  [ "$(id -u)" = 0 ] || die "the test cluster needs root (namespaces, mounts, cgroups): run it with sudo -E, or in a privileged container"
}

# lives PID: not gone, and no zombie either (PID 1 of many a container reaps none).
lives() { case $(sed -n 's/^State:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null) in '' | [ZX]*) return 1 ;; esac; }

LETTERS=abcdefghij
node_name() { echo "node-${LETTERS:$1:1}"; }                           # 0 -> node-a
node_index() { # node-a -> 0; fails for what is no node of this cluster
  local before=${LETTERS%%"${1#node-}"*}
  [ "$(node_name ${#before})" = "$1" ] && [ ${#before} -lt "$NODES" ] && echo ${#before}
}
node_ip() { echo "$SUBNET.$(($1 + 2))"; }
pod_cidr() { echo "$POD_NET.$1.0/24"; }
all_nodes() { local i; for ((i = 0; i < NODES; i++)); do node_name $i; done; }
node_link() { echo "$CLUSTER-${1#node-}"; }

# cgroup_dirs: this cluster's directory in each cgroup hierarchy (v1), or in the one (v2).
cgroup_dirs() {
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then echo "/sys/fs/cgroup/$CGROUP"; return; fi
  local h
  for h in /sys/fs/cgroup/*/; do [ -L "${h%/}" ] || echo "$h$CGROUP"; done
}

# run_marked ARG...: starts the calling script anew with the cluster's mark in its
# environment, unless it has it. What it starts inherits the mark, so that `down`
# finds all of it even after a SIGKILL.
run_marked() {
  [ "${!MARK:-}" != "$CLUSTER" ] || return 0
  local v asked=() # not what STATE says: the caller's settings
  for v in $SETTINGS; do asked+=("$v=${ASKED[$v]}"); done
  exec env "${asked[@]}" "$MARK=$CLUSTER" "$BASH" "$0" "$@"
}
