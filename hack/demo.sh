#!/usr/bin/env bash
# The main job, for real: inject an XID on a node, see the line read back, say how it is undone, clean up. Ends with "demo: ok".
#   CONTEXT=NAME  on a cluster of yours, by the context's name, such as kind-kind: XID 31, which no detector acts upon, with your consent
#   NODE=NAME     the node; by default node-b, or the first worker of your cluster
# Without CONTEXT it starts the test cluster: XID 79 there, and what node-problem-detector makes of it.
set -euo pipefail
cd "$(dirname "$0")/.."

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
show() { printf '$ %s\n' "$*"; "$@"; }

# own: on a cluster of the user's.
own() {
  local context=$1 node=${NODE:-} allow=() fault=(kubectl-gpu_fault --context "$1") before run gpu
  export PATH=$PWD/bin:$PATH
  command -v kubectl >/dev/null || { echo 'demo: kubectl not found: install it, or run `make demo` without CONTEXT' >&2; exit 1; }
  [ -n "$node" ] || node=$(kubectl --context "$context" get nodes -l '!node-role.kubernetes.io/control-plane' -o 'jsonpath={.items[0].metadata.name}' 2>/dev/null) || true
  if [ -z "$node" ]; then # a cluster of one node, as kind and k3s make it
    node=$(kubectl --context "$context" get nodes -o 'jsonpath={.items[0].metadata.name}')
    allow=(--allow-control-plane)
  fi
  gpu=0000:17:00 # of a node without GPUs any address will do
  [ -z "$(kubectl --context "$context" get node "$node" -o 'jsonpath={.status.capacity.nvidia\.com/gpu}')" ] || gpu=0
  before=$("${fault[@]}" list -o name)
  say "An application's page fault on node $node: a line in its kernel log, no more"
  show "${fault[@]}" xid 31 "$node" --gpu "$gpu" "${allow[@]}"
  say "Who did it"
  show "${fault[@]}" list
  say "Clean up"
  run=$("${fault[@]}" list -o name | grep -vxF -- "$before")
  [ "$(wc -l <<<"$run")" = 1 ] || { echo "demo: another client has started a run, too: revert your own with kubectl gpu-fault revert RUN" >&2; exit 1; }
  show "${fault[@]}" revert "$run" --yes
  printf '\ndemo: ok\n'
}
if [ -n "${CONTEXT:-}" ]; then
  own "$CONTEXT"
  exit
fi

if ! compgen -G "${GPU_FAULT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-fault}/cluster/bundle-*" >/dev/null; then
  cat >&2 <<'HINT'
The demo starts a Kubernetes of two nodes, which is built first, once: about eight minutes on two cores.
To use a cluster of yours in its place: make demo CONTEXT=NAME     (kubectl config get-contexts lists the names)
Or with Docker and kind:                kind create cluster && make demo CONTEXT=kind-kind
HINT
fi
test/cluster/up
export KUBECONFIG=$PWD/.cluster/kubeconfig PATH=$PWD/bin:$PWD/.cluster/bin:$PATH
NODE=${NODE:-node-b}

condition() { kubectl get node "$NODE" -o 'jsonpath={.status.conditions[?(@.type=="GPUXid")].'"$1"'}'; }
# await WHAT STATUS: until the detector's condition has the status.
await() {
  local i
  for ((i = 0; i < 300; i++)); do
    [ "$(condition status)" != "$2" ] || return 0
    sleep 0.1
  done
  printf 'demo: %s did not happen within 30 s; the condition is "%s"\n' "$1" "$(condition status)" >&2
  exit 1
}

# The detector's condition stays True until it restarts: begin as on a healthy node.
[ "$(condition status)" = False ] || test/cluster/node sh "$NODE" systemctl restart node-problem-detector
await 'the healthy state' False

say "A healthy node, as node-problem-detector sees it"
show kubectl get node "$NODE" -o 'custom-columns=NODE:.metadata.name,GPUS:.status.allocatable.nvidia\.com/gpu,GPU-XID:.status.conditions[?(@.type=="GPUXid")].status,REASON:.status.conditions[?(@.type=="GPUXid")].reason'

say "GPU 0 falls off the bus"
show kubectl gpu-fault xid 79 "$NODE" --yes

say "What the detector made of it"
await "the detector's verdict" True
show kubectl get node "$NODE" -o 'jsonpath={.status.conditions[?(@.type=="GPUXid")].reason}: {.status.conditions[?(@.type=="GPUXid")].message}{"\n"}'

say "Who did it"
show kubectl gpu-fault list

say "Clean up"
run=$(kubectl gpu-fault list -o name)
for r in $run; do show kubectl gpu-fault revert "$r" --yes; done
test/cluster/node sh "$NODE" systemctl restart node-problem-detector
await 'the return to the healthy state' False
kubectl wait pods --all --for=delete -n gpu-fault --timeout=30s >/dev/null
show kubectl get pods -n gpu-fault

printf '\ndemo: ok\n'
