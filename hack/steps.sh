# Sourced by scripts that do several things: runs each as a step, and says at the end what ran and how long it took.
#   step NAME COMMAND...     runs the command; the script goes on when it fails
#   beside NAME COMMAND...   runs it in the background, with what the steps leave of the machine
#   steps_report             waits for those in the background, tells what they said, and prints the table (CPUS: how busy the machine's were);
#                            returns 1 when a step failed
#   steps_stop               stops those in the background, for a script that ends early
STEP_NAMES=() STEP_SECONDS=() STEP_BUSY=() STEP_RESULTS=()
BESIDE_NAMES=() BESIDE_JOBS=() BESIDE_LOGS=()

step() {
  local name=$1 start=$SECONDS result=passed work idle
  shift
  printf '\n=== %s\n' "$name" >&2
  read -r work idle < <(cpu_time)
  "$@" || result=FAILED
  STEP_NAMES+=("$name") STEP_SECONDS+=($((SECONDS - start))) STEP_RESULTS+=("$result")
  STEP_BUSY+=("$(cpu_time | awk -v w="$work" -v i="$idle" '{ w = $1 - w; i = $2 - i; if (w + i) printf "%.0f%%", 100 * w / (w + i) }')")
}

# cpu_time prints for how long the machine's CPUs have worked and idled since it started.
cpu_time() { awk '$1 == "cpu" { print $2 + $3 + $4 + $7 + $8, $5 + $6 }' /proc/stat; }

beside() {
  local name=$1 log
  shift
  log=$(mktemp)
  # A session of its own, so that it can be stopped with all that it has started; Linux may weigh sessions, and nice within them only.
  setsid nice -n 19 bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null || :; code=0; start=$SECONDS; "$@" || code=$?; echo $((SECONDS - start)) >"$0.seconds"; exit "$code"' "$log" "$@" >"$log" 2>&1 </dev/null &
  BESIDE_NAMES+=("$name") BESIDE_JOBS+=($!) BESIDE_LOGS+=("$log")
}

steps_report() {
  local i failed=0
  for i in "${!BESIDE_NAMES[@]}"; do
    printf '\n=== %s\n' "${BESIDE_NAMES[i]}" >&2
    STEP_RESULTS+=(passed)
    wait "${BESIDE_JOBS[i]}" || STEP_RESULTS[-1]=FAILED
    cat "${BESIDE_LOGS[i]}" >&2
    STEP_NAMES+=("${BESIDE_NAMES[i]} (beside)") STEP_BUSY+=('') STEP_SECONDS+=("$(cat "${BESIDE_LOGS[i]}.seconds" || echo 0)")
    rm -f "${BESIDE_LOGS[i]}" "${BESIDE_LOGS[i]}.seconds"
  done
  BESIDE_NAMES=() BESIDE_JOBS=() BESIDE_LOGS=()
  printf '\n%-34s %8s %5s  %s\n' STEP SECONDS CPUS RESULT
  for i in "${!STEP_NAMES[@]}"; do
    printf '%-34s %8d %5s  %s\n' "${STEP_NAMES[i]}" "${STEP_SECONDS[i]}" "${STEP_BUSY[i]}" "${STEP_RESULTS[i]}"
    [ "${STEP_RESULTS[i]}" = passed ] || failed=$((failed + 1))
  done
  printf '%d passed, %d failed\n' $((${#STEP_NAMES[@]} - failed)) "$failed"
  [ "$failed" = 0 ]
}

steps_stop() {
  local i
  for i in "${!BESIDE_JOBS[@]}"; do
    kill -- -"${BESIDE_JOBS[i]}" 2>/dev/null || true
    rm -f "${BESIDE_LOGS[i]}" "${BESIDE_LOGS[i]}.seconds"
  done
}
