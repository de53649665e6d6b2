#!/usr/bin/env bash
# The main job, for real, on the local cluster: inject XID 79 on a node, see the line read back, see node-problem-detector set the
# node's condition, say how it is undone, clean up. Ends with "demo: ok".
set -euo pipefail
cd "$(dirname "$0")/.."
export KUBECONFIG=$PWD/.cluster/kubeconfig PATH=$PWD/bin:$PWD/.cluster/bin:$PATH
NODE=${NODE:-node-b}

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
show() { printf '$ %s\n' "$*"; "$@"; }
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
