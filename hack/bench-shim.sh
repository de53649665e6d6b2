#!/usr/bin/env bash
# What the shim adds to a driver call: calls of functions that do nothing, directly, through the shim (no state; disarmed; armed with a trigger that
# is far away), and through an interposer that reads a toggle file on each call. Best of ROUNDS rounds of CALLS calls in 20 parts; the ways take turns.
# The last line is `pass-through +X ns armed +Y ns`: what is added to the direct call, the larger of cuMemAlloc (2 arguments) and cuLaunchKernel (11).
#   CALLS=N ROUNDS=N   calls per measurement (20000000) and rounds (7)
#   LIBRARY=FILE       the shim to measure (default: the committed one for this machine)
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
calls=${CALLS:-20000000} rounds=${ROUNDS:-7}
library=${LIBRARY:-$PWD/cudafault/lib/$(uname -m)/libgpufault.so}
case $library in /*) ;; *) library=$here/$library ;; esac
command -v gcc >/dev/null || { echo 'bench-shim: no gcc: apt-get install gcc libc6-dev' >&2; exit 1; }
[ -s "$library" ] || { echo "bench-shim: no $library: hack/shim.sh build makes it" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-std=gnu11 -O2 -Wall -Wextra -Werror)
gcc "${flags[@]}" -shared -fPIC "-Wl,-soname,libcuda.so.1" "-Wl,-Bsymbolic" -o "$work/libcuda.so.1" cudafault/probe/bench/driver.c
gcc "${flags[@]}" -shared -fPIC -o "$work/toggle.so" cudafault/probe/bench/toggle.c
gcc "${flags[@]}" -o "$work/bench" cudafault/probe/bench/bench.c -L"$work" -l:libcuda.so.1
export LD_LIBRARY_PATH=$work GPU_FAULT_RUN=$work/processes TOGGLE_FILE=$work/toggle
echo 0 >"$work/toggle"
"$work/bench" state "$work/disarmed" 0
"$work/bench" state "$work/armed" $((16 | 256))  # allocations and launches
"$work/bench" state "$work/elsewhere" $((16384)) # calls that are not made here

ways=(direct no-state disarmed armed armed-elsewhere toggle-file)
measure() { # WAY: prints the two numbers
  case $1 in
  direct) "$work/bench" "$calls" ;;
  no-state) GPU_FAULT_STATE=$work/none LD_PRELOAD=$library "$work/bench" "$calls" ;;
  disarmed) GPU_FAULT_STATE=$work/disarmed LD_PRELOAD=$library "$work/bench" "$calls" ;;
  armed) GPU_FAULT_STATE=$work/armed LD_PRELOAD=$library "$work/bench" "$calls" ;;
  armed-elsewhere) GPU_FAULT_STATE=$work/elsewhere LD_PRELOAD=$library "$work/bench" "$calls" ;;
  toggle-file) LD_PRELOAD=$work/toggle.so "$work/bench" $((calls / 200)) ;;
  esac
}
for ((round = 0; round < rounds; round++)); do
  for way in "${ways[@]}"; do
    echo "$way $(measure "$way")"
  done
done >"$work/results"

awk -v calls="$calls" -v rounds="$rounds" '
  !($1 in a) { order[++n] = $1; a[$1] = $2; l[$1] = $3 }
  $2 < a[$1] { a[$1] = $2 }
  $3 < l[$1] { l[$1] = $3 }
  function added(way,   x, y) {
    x = a[way] - a["direct"]; y = l[way] - l["direct"]
    return x > y ? x : y
  }
  END {
    printf "ns per call, best of %d x %d calls  cuMemAlloc (2 args)  cuLaunchKernel (11 args)  added at most\n", rounds, calls
    split("direct,shim without a state,shim disarmed,shim armed for these calls,shim armed for other calls,toggle file on each call", names, ",")
    for (i = 1; i <= n; i++)
      printf("%-36s %20.2f %25.2f %14s\n", names[i], a[order[i]], l[order[i]], (i == 1 ? "" : sprintf("%+.2f", added(order[i]))))
    x = added("no-state"); y = added("disarmed")
    printf("pass-through %+.2f ns armed %+.2f ns\n", (x > y ? x : y), added("armed"))
  }' "$work/results"
