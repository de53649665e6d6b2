#!/usr/bin/env bash
# Makes docs/run.svg: a recording of an experiment on the cluster that runs (NODES=3 test/cluster/up), as it was. The GPU of a sample workload falls
# off the bus; its node is cordoned and drained, and the workload runs on another one. Needs script(1), `make build` and bin/kubectl.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=test/cluster/lib/settings.sh
. test/cluster/lib/settings.sh
export KUBECONFIG=$STATE/kubeconfig PATH=$PWD/bin:$STATE/bin:$PATH
if [ "${1:-}" = recorded ]; then
  say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
  show() { printf '$ %s\n' "$*"; "$@"; }
  pods() { show kubectl get pods -n research -o 'custom-columns=POD:.metadata.name,NODE:.spec.nodeName,READY:.status.containerStatuses[0].ready'; }
  say "A training on a GPU node"
  pods
  say "Its GPU falls off the bus. What happens, and when?"
  show kubectl gpu-fault run xid79-workload --pods-of deployment/train -n research --simulate-remediation detect,cordon,drain --yes
  say "Everything is put back"
  kubectl rollout status -n research deployment/train --timeout=60s >/dev/null # the revert replaces its pods as well
  until [ "$(kubectl get pods -n research -o name | wc -l)" = 1 ]; do sleep 0.1; done
  pods
  show kubectl gpu-fault list
  exit
fi
image=$(test/cluster/trainer)
kubectl create namespace research --dry-run=client -o yaml | kubectl apply -f - >&2
kubectl apply -n research -f - >&2 <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: train}
spec:
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train}}
    spec:
      containers:
      - name: train
        image: $image
        imagePullPolicy: Never
        resources: {limits: {nvidia.com/gpu: 1}}
YAML
kubectl rollout status -n research deployment/train --timeout=60s >&2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"; kubectl delete namespace research --wait=false >&2' EXIT
# A dumb terminal: lines stay, and are not drawn over.
script -q -e --log-out "$tmp/out" --log-timing "$tmp/timing" -c 'stty cols 110 rows 60; TERM=dumb hack/record-run.sh recorded' >&2
go run ./hack/recording -columns 110 -title 'kubectl gpu-fault run: a GPU fails, the node is cordoned and drained, the workload runs elsewhere' \
  "$tmp/out" "$tmp/timing" >"$tmp/run.svg"
mv "$tmp/run.svg" docs/run.svg
