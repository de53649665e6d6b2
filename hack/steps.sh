# Sourced by scripts that do several things: runs each as a step, and says at the end what ran and how long it took.
#   step NAME COMMAND...   runs the command; the script goes on when it fails
#   steps_report           prints the table; returns 1 when a step failed
STEP_NAMES=() STEP_SECONDS=() STEP_RESULTS=()

step() {
  local name=$1 start=$SECONDS result=passed
  shift
  printf '\n=== %s\n' "$name" >&2
  "$@" || result=FAILED
  STEP_NAMES+=("$name") STEP_SECONDS+=($((SECONDS - start))) STEP_RESULTS+=("$result")
}

steps_report() {
  local i failed=0
  printf '\n%-28s %8s  %s\n' STEP SECONDS RESULT
  for i in "${!STEP_NAMES[@]}"; do
    printf '%-28s %8d  %s\n' "${STEP_NAMES[i]}" "${STEP_SECONDS[i]}" "${STEP_RESULTS[i]}"
    [ "${STEP_RESULTS[i]}" = passed ] || failed=$((failed + 1))
  done
  printf '%d passed, %d failed\n' $((${#STEP_NAMES[@]} - failed)) "$failed"
  [ "$failed" = 0 ]
}
