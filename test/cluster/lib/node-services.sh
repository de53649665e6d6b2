#!/bin/bash
# The second half of a node's PID 1, in the node's own root: its network, then its
# services, each started again whenever it ends. `systemctl` (lib/systemctl) steers
# them by the files in /run/service/UNIT:
#   pid      of the running program          stopped  exists while it shall not run
#   now      skips the pause before a start  ready    a command: is it ready?
#   restarts how often it was started again
set -euo pipefail
B=/opt/gpu-fault-cluster/bin LOGS=/var/log/services PKI=/etc/kubernetes/pki
export PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
trap 'exit 1' TERM
log() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*"; }

# --- network ---------------------------------------------------------------------
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done # `node start` moves it in
ip addr add "$NODE_IP/24" dev eth0
ip link set eth0 up
ip route add default via "$HOST_IP"
for r in $ROUTES; do ip route add "${r%=*}" via "${r#*=}"; done
sysctl -qw net.ipv4.ip_forward=1
# A pod that reaches, through a Service, a pod on the same bridge: without this the
# answer stays on the bridge, and nobody translates its address back.
sysctl -qwe net.bridge.bridge-nf-call-iptables=1 || true

# Until kube-proxy knows a Service, connections to it would hang in retries of the first
# packet, for up to half a minute: refuse them at once. (Pods' packets to a Service that
# it does know have got another address before they come here.)
[ "$PROXY" = none ] || ip rule add to "$SERVICE_CIDR" iif cni0 unreachable

# --- services --------------------------------------------------------------------
# By these names, so that pgrep, pkill and ps show containerd as containerd.
for a in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet containerd ctr kubectl; do
  ln -sf "$B/kubebox" "/usr/local/bin/$a"
done
ln -sf "$B/containerd-shim-runc-v2" "$B/node-problem-detector" /usr/local/bin/
ln -sf /lib/systemd/systemd-journald /usr/local/bin/

# service UNIT READY PROGRAM...: READY is a command that succeeds when it serves.
service() {
  local unit=$1 s=/run/service/$1 pid rc restarts=0
  mkdir -p "$s"
  echo "$2" >"$s/ready"
  shift 2
  (
    trap - TERM
    while :; do
      while [ -e "$s/stopped" ]; do sleep 0.1; done
      rm -f "$s/now"
      "$@" >>"$LOGS/$unit.log" 2>&1 &
      pid=$!
      echo $pid >"$s/.pid" && mv "$s/.pid" "$s/pid"
      echo $restarts >"$s/restarts"
      rc=0; wait $pid || rc=$?
      rm -f "$s/pid"
      log "$unit ended ($rc)"
      restarts=$((restarts + 1))
      # systemd's containerd.service waits 5s; tests have less patience.
      for _ in {1..10}; do [ ! -e "$s/now" ] || break; sleep 0.1; done
    done
  ) &
}
dial() { "$B/clusterkit" dial "$@"; }

if [ "$JOURNALD" != 0 ]; then
  # Debian's journald without systemd: it opens its own sockets and reads /dev/kmsg
  # from the start of the kernel's buffer.
  storage=volatile
  mkdir -p /run/systemd/journald.conf.d
  if [ "$JOURNALD" = persistent ]; then
    storage=persistent
    # systemd-journal-flush.service creates this file; without it, journald stays in /run.
    mkdir -p /run/systemd/journal
    touch /run/systemd/journal/flushed
  fi
  ln -sf /run/systemd/journal/dev-log /dev/log # for logger and syslog()
  printf '[Journal]\n%s\n' Storage=$storage ReadKMsg=yes Audit=no ForwardToSyslog=no RateLimitBurst=0 >/run/systemd/journald.conf.d/10-node.conf
  service systemd-journald "$B/clusterkit dial unix /run/systemd/journal/stdout" systemd-journald
fi
CONTAINERD=(unix /run/containerd/containerd.sock)
service containerd "$B/clusterkit dial ${CONTAINERD[*]}" containerd --log-level=info
if [ "$ROLE" = control-plane ]; then
  service etcd true etcd --name=node --data-dir=/var/lib/etcd --unsafe-no-fsync \
    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --log-level=warn
  reconciler=lease
  if [ "$PROXY" = none ]; then
    # The API server listens on 443: with its service address on lo, pods of this
    # node (only) reach it at 10.96.0.1:443, as their environment says.
    ip addr add "$SERVICE_IP/32" dev lo
    reconciler=none
  fi
  service kube-apiserver true kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
    --secure-port=443 --bind-address=0.0.0.0 --advertise-address="$NODE_IP" \
    --service-cluster-ip-range="$SERVICE_CIDR" \
    --client-ca-file=$PKI/ca.crt --tls-cert-file=$PKI/apiserver.crt --tls-private-key-file=$PKI/apiserver.key \
    --kubelet-client-certificate=$PKI/apiserver-kubelet-client.crt --kubelet-client-key=$PKI/apiserver-kubelet-client.key \
    --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file=$PKI/sa.key --service-account-signing-key-file=$PKI/sa.key \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --endpoint-reconciler-type=$reconciler --profiling=false \
    --audit-policy-file=/etc/kubernetes/audit.yaml --audit-log-path="$LOGS/audit.json" --audit-log-maxsize=50 --audit-log-maxbackup=1 \
    --feature-gates=DRADeviceTaintRules=true --runtime-config=resource.k8s.io/v1beta2=true
fi
until dial "${CONTAINERD[@]}" 2>/dev/null; do sleep 0.05; done
for i in /opt/gpu-fault-cluster/images/*.tar; do
  ctr -n k8s.io images import --all-platforms "$i" >>$LOGS/import.log 2>&1 || log "import of $i failed"
done
log "images imported"
log "waiting for the API server"
"$B/clusterkit" wait -ca $PKI/ca.crt -server "https://$API_IP" -timeout 10m api 2>/dev/null
log "API server ready"
if [ "$ROLE" = control-plane ]; then
  # The default of 20 requests a second makes 3,000 pods take 150s.
  qps=(--kube-api-qps=300 --kube-api-burst=600 --leader-elect=false --profiling=false --feature-gates=DRADeviceTaintRules=true)
  service kube-controller-manager true kube-controller-manager --kubeconfig=$PKI/controller-manager.kubeconfig \
    --use-service-account-credentials --service-account-private-key-file=$PKI/sa.key --root-ca-file=$PKI/ca.crt \
    --allocate-node-cidrs=false --node-monitor-grace-period=20s "${qps[@]}"
  service kube-scheduler true kube-scheduler --kubeconfig=$PKI/scheduler.kubeconfig "${qps[@]}"
fi
[ "$PROXY" = none ] || service kube-proxy true kube-proxy --config=/etc/kubernetes/kube-proxy.yaml
labels=
[ "$GPUS" = 0 ] || labels=$("$B/clusterkit" inventory -labels "$NODE")
service kubelet "$B/clusterkit dial tcp 127.0.0.1:10248" kubelet --config=/var/lib/kubelet/config.yaml \
  --kubeconfig=$PKI/kubelet-"$NODE".kubeconfig --hostname-override="$NODE" --node-ip="$NODE_IP" \
  --node-labels="$labels"
if [ "$NPD" = 1 ]; then
  # It tries once to write its conditions, and then not for ten seconds: it needs its
  # role (`up` makes the binding) and the kubelet's Node first.
  "$B/clusterkit" wait -ca $PKI/ca.crt -cert $PKI/npd.crt -key $PKI/npd.key -server "https://$API_IP" -timeout 10m "registered/$NODE" 2>/dev/null
  service node-problem-detector true node-problem-detector --hostname-override="$NODE" \
    --address=127.0.0.1 --port=20256 --prometheus-port=0 \
    --config.system-log-monitor=/etc/kubernetes/npd-xid.json \
    --apiserver-override="https://$API_IP?inClusterConfig=false&auth=$PKI/npd.kubeconfig"
fi
log "all started"
while :; do wait || true; sleep 1; done # reaps orphans
