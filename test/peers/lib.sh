# shellcheck shell=bash
# What the `run` scripts of peers share. They source it in the root of the repository, with PEER set to their name.

die() { echo "test/peers/$PEER/run: $*" >&2; exit 1; }

# need_source URL FILE...: sets `source` to the directory in SOURCE, which must have the files.
need_source() {
  local f
  [ -n "${SOURCE:-}" ] || die "set SOURCE to a directory with the source of $PEER, such as that of
  git clone $1"
  source=$(realpath -- "$SOURCE") || die "SOURCE=$SOURCE does not exist"
  for f in "${@:2}"; do
    [ -e "$source/$f" ] || die "SOURCE=$SOURCE is not the source of $PEER: $f is missing"
  done
  [ "$(id -u)" = 0 ] || die "the test cluster needs root"
}

# make_programs: sets `programs` to a directory that is kept, for what is built from the source.
make_programs() {
  programs=${GPU_FAULT_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gpu-fault}/peers/$PEER
  mkdir -p "$programs"
  unset GOFLAGS
}

# start_cluster NAME SUBNET: starts a cluster of its own, which is taken down when the script exits, also after Ctrl-C. What run_test has printed
# is printed last.
start_cluster() {
  export CLUSTER=${CLUSTER:-$1} SUBNET=${SUBNET:-$2}
  STATE=$(realpath -m -- "${STATE:-.$PEER}")
  export STATE
  result=$(mktemp) pid=
  trap end EXIT
  trap 'exit 130' INT TERM
  test/cluster/down 2>/dev/null # what a killed run has left
  test/cluster/up
}
end() {
  trap '' INT TERM
  [ -z "$pid" ] || { kill "$pid" 2>/dev/null; wait "$pid"; } || true
  test/cluster/down || true # it reports what is left
  cat "$result"
  rm -f "$result"
}

# run_test ARG...: runs the program of the test, with the mark of the cluster, so that `down` finds what it starts even if it is killed.
run_test() {
  local rc=0
  GPU_FAULT_TEST_CLUSTER=$CLUSTER "$programs/test" -state "$STATE" "$@" >"$result" &
  pid=$!
  wait "$pid" || rc=$?
  pid=
  return "$rc"
}
