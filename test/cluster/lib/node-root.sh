#!/bin/bash
# The first half of a node's PID 1: `node start` runs it in fresh mount, PID, network,
# IPC and UTS namespaces with the node's settings in the environment. It builds a root
# file system - the machine's root underneath, everything written on a tmpfs above -
# moves into it and goes on as node-services.sh. When PID 1 dies the kernel kills what
# is left in the namespaces, and mounts, interfaces and files go with them.
set -euo pipefail
log() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*"; }

N=$D/root # a folder that stays empty outside these namespaces
R=$N/root # what becomes /
mkdir -p "$N"
mount -t tmpfs -o size=8g,mode=755 node "$N"
mkdir "$N/upper" "$N/work" "$R" "$N/var"
mount -t overlay -o "lowerdir=/,upperdir=$N/upper,workdir=$N/work" overlay "$R"
mount -t proc proc "$R/proc"
mount -t sysfs sysfs "$R/sys"
mount --rbind /sys/fs/cgroup "$R/sys/fs/cgroup"
mount -t tmpfs -o mode=755 run "$R/run"
mount -t tmpfs -o mode=1777 tmp "$R/tmp"
# An overlay cannot be the upper layer of another one: containerd, etcd and the
# kubelet get plain tmpfs folders.
for d in lib/containerd lib/kubelet lib/etcd lib/cni log; do
  mkdir -p "$N/var/$d" "$R/var/$d"
  mount --bind "$N/var/$d" "$R/var/$d"
done
# The programs, wherever the cache is (it may be on a file system of its own, which
# the overlay does not show), and the log folder, which outlives the node.
mkdir -p "$R/opt/gpu-fault-cluster" "$R/var/log/services"
mount --bind "$BUNDLE" "$R/opt/gpu-fault-cluster"
mount -o remount,bind,ro "$R/opt/gpu-fault-cluster"
mount --bind "$D/log" "$R/var/log/services"

# The kubelet sets these for the whole machine, but only where it does not find the
# value it wants: so it finds it. (pkg/kubelet/cm, setupKernelTunables)
mkdir "$N/sysctl"
while read -r name value; do
  [ -e "$R/proc/sys/$name" ] || continue
  echo "$value" >"$N/sysctl/${name//\//.}"
  mount --bind "$N/sysctl/${name//\//.}" "$R/proc/sys/$name"
done <"$HERE/lib/kubelet-sysctls"

# --- /dev: the node's own; nothing is ever created in the machine's ------------
mount -t tmpfs -o mode=755 dev "$R/dev"
while read -r name major minor mode; do
  mkdir -p "$(dirname "$R/dev/$name")"
  mknod -m "$mode" "$R/dev/$name" c "$major" "$minor"
done <<S
null 1 3 666
zero 1 5 666
full 1 7 666
random 1 8 666
urandom 1 9 666
kmsg 1 11 644
tty 5 0 666
fuse 10 229 666
net/tun 10 200 666
S
mkdir "$R/dev/pts" "$R/dev/shm" "$R/dev/mqueue"
mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts "$R/dev/pts"
mount -t tmpfs -o mode=1777 shm "$R/dev/shm"
mount -t mqueue mqueue "$R/dev/mqueue"
ln -s pts/ptmx "$R/dev/ptmx"
ln -s /proc/self/fd "$R/dev/fd"
for i in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${i%:*}" "$R/dev/${i#*:}"; done

# --- simulated GPUs: what the driver shows in /proc and /dev --------------------
rm -f "$R/usr/bin/nvidia-smi"
rm -rf "$R/usr/local/nvidia"
if [ "$GPUS" = 1 ]; then
  mkdir -p "$N/driver"
  "$BUNDLE/bin/clusterkit" inventory -domain "$PCI_DOMAIN" -driver "$N/driver" "$NODE"
  mount --bind "$N/driver" "$R/proc/driver"
  "$BUNDLE/bin/clusterkit" inventory -minors "$NODE" | while read -r minor; do
    mknod -m 666 "$R/dev/nvidia$minor" c 195 "$minor"
  done
  mknod -m 666 "$R/dev/nvidiactl" c 195 255
  mknod -m 666 "$R/dev/nvidia-uvm" c 511 0       # the driver takes a free major; 511 is the usual one
  mknod -m 666 "$R/dev/nvidia-uvm-tools" c 511 1
  cp "$BUNDLE/bin/nvidia-smi" "$R/usr/bin/nvidia-smi"
  # Where the GPU operator's toolkit container installs it.
  mkdir -p "$R/usr/local/nvidia/toolkit"
  install -m 755 "$HERE/lib/nvidia-container-runtime" "$R/usr/local/nvidia/toolkit/"
fi

# --- configuration --------------------------------------------------------------
buses=$("$BUNDLE/bin/clusterkit" inventory -domain "$PCI_DOMAIN" -bus-pattern "$NODE") # 0000:17:00|0000:1f:00
fill() { # FILE: with the @NAMES@ in it replaced
  sed -e "s#@CGROUP@#$CGROUP#" -e "s#@POD_CIDR@#$POD_CIDR#" -e "s#@CLUSTER_CIDR@#$CLUSTER_CIDR#" -e "s#@NODE@#$NODE#" \
    -e "s#@DNS_IP@#$DNS_IP#" -e "s#@PROXY@#$PROXY#" -e "s#@BUSES@#$buses#" "$HERE/config/$1"
}
etc=$R/etc
rm -rf "$etc/containerd" "$etc/cni" "$etc/kubernetes"
rm -f "$etc/resolv.conf" "$etc/hosts" "$etc/machine-id" # may be links that lead nowhere here
mkdir -p "$etc/containerd/conf.d" "$etc/cni/net.d" "$etc/kubernetes/pki"
fill containerd.toml >"$etc/containerd/config.toml"
fill containerd-10-debug.toml >"$etc/containerd/conf.d/10-debug.toml"
# Workers have the traces of another containerd too.
other=$R/var/lib/k8s-containerd/k8s-containerd/etc/containerd
rm -rf "$R/var/lib/k8s-containerd"
[ "$ROLE" = control-plane ] || { mkdir -p "$other/conf.d"; fill containerd-other.toml >"$other/config.toml"; }
fill cni.conflist >"$etc/cni/net.d/10-bridge.conflist"
fill kubelet.yaml >"$R/var/lib/kubelet/config.yaml"
fill kube-proxy.yaml >"$etc/kubernetes/kube-proxy.yaml"
fill npd-xid.json >"$etc/kubernetes/npd-xid.json"
fill audit.yaml >"$etc/kubernetes/audit.yaml"
if [ "$ROLE" = control-plane ]; then cp "$PKI_FROM"/* "$etc/kubernetes/pki/"
else cp "$PKI_FROM"/{ca.crt,kubelet-"$NODE".kubeconfig,kube-proxy.kubeconfig,npd.kubeconfig,npd.crt,npd.key} "$etc/kubernetes/pki/"; fi
: >"$etc/resolv.conf"
printf '127.0.0.1 localhost\n%s %s\n' "$NODE_IP" "$NODE" >"$etc/hosts"
# The kubelet and journald want a machine-id, and two nodes must not have the same.
echo "$CLUSTER $NODE" | md5sum | cut -c1-32 >"$etc/machine-id"
mkdir -p "$R/usr/local/bin" "$R/usr/local/lib"
cp "$HERE/lib/node-services.sh" "$R/usr/local/lib/"
# In the place of systemd's own too: a caller may use the full path.
rm -f "$R/usr/bin/systemctl"
install -m 755 "$HERE/lib/systemctl" "$R/usr/bin/systemctl"
ln -sf /usr/bin/systemctl "$R/usr/local/bin/systemctl"

mkdir -p "$R/.old"
cd "$R"
pivot_root . .old
cd /
umount -l /.old
rmdir /.old
mount --make-rshared / # pods' mounts must reach containerd, and the other way round
hostname "$NODE"
log "root file system ready"
exec /bin/bash /usr/local/lib/node-services.sh
