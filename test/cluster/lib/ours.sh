# shellcheck shell=bash
# Sourced after settings.sh: finds what this cluster has on the machine, by marks
# that it had from its first moment, and removes exactly that.

# marked_pids: processes with this cluster's mark, without the caller and its parents.
marked_pids() {
  local own=" $BASHPID " p=$BASHPID file # and the subshells between it and the script
  while p=$(awk '/^PPid:/{print $2}' "/proc/$p/status" 2>/dev/null) && [ "${p:-0}" -gt 0 ]; do own+="$p "; done
  while read -r file; do
    p=${file#/proc/} p=${p%/environ}
    # grep itself may have the mark, but it is gone by now.
    [[ $own == *" $p "* ]] || { [ -e "/proc/$p" ] && echo "$p"; }
  done <<<"$(grep -lzsx "$MARK=$CLUSTER" /proc/[0-9]*/environ)"
  return 0
}

# kill_marked: SIGKILL to all of them, until none comes after.
kill_marked() {
  local p
  for _ in {1..100}; do
    p=$(marked_pids)
    [ -n "$p" ] || return 0
    # shellcheck disable=SC2086
    kill -9 $p 2>/dev/null
    sleep 0.05
  done
  return 1
}

our_links() {
  ip -o link show group "$LINK_GROUP" 2>/dev/null |
    awk -F'[ :@]+' -v c="$CLUSTER" '$2 ~ "^" c "-(br|[a-j])$" {print $2}'
}

# remove_cgroups DIR...: removes cgroups, lowest first, once their processes are gone.
# rmdir only: a group that still holds a process stays, and is reported.
remove_cgroups() {
  local left d
  for _ in {1..100}; do
    left=
    for d; do
      [ ! -d "$d" ] || { find "$d" -depth -type d -exec rmdir {} + 2>/dev/null; [ ! -d "$d" ] || left=1; }
    done
    [ -n "$left" ] || return 0
    sleep 0.05
  done
  return 1
}

# remove_state: what `up` put into STATE, and the folder if nothing else is in it.
remove_state() {
  (cd "$STATE" 2>/dev/null && rm -rf nodes pki kubeconfig .kubeconfig settings .settings unhealthy inventory.json apply.log bin kwok.log kwok.pid) || true
  rmdir "$STATE" 2>/dev/null || true
}

# machine_folders: where a kubelet or containerd that ran outside its node would write.
machine_folders() {
  ls -d /var/lib/{kubelet,containerd,etcd,cni,kube-proxy} /run/{containerd,runc,flannel} /etc/{kubernetes,containerd,cni} \
    /var/log/{pods,containers} /opt/cni /opt/gpu-fault-cluster 2>/dev/null
}
# kubelet_sysctls: those of lib/kubelet-sysctls that have the value that a kubelet sets.
kubelet_sysctls() {
  local name value
  while read -r name value; do
    [ "$(cat "/proc/sys/$name" 2>/dev/null)" != "$value" ] || echo "$name $value"
  done <"$HERE/lib/kubelet-sysctls"
}
machine_state() {
  machine_folders | sed 's/^/folder /'
  kubelet_sysctls | sed 's/^/sysctl /'
  # Not while the last of the others leaves, which is gone before it has put the limit back.
  (flock 8; others || [ ! -e "${RECORD%/*}/.inotify" ] || echo "sysctl $INOTIFY $(<$INOTIFY)") 8</run
}
# others: whether the machine has other clusters of ours.
others() { ls -d "${RECORD%/*}"/*/ 2>/dev/null | grep -vqxF -- "$RECORD/"; }

# A user may have so many inotify instances on the whole machine, 128 by default, and two nodes take 22 or more. A kubelet that gets none does not
# start; a containerd runs on without its CRI plugin. So there may be more while there are clusters.
INOTIFY=/proc/sys/fs/inotify/max_user_instances INOTIFY_ENOUGH=8192

# join and leave: this cluster is one of those that the machine has, or is not any more. One of them at a time, of all clusters.
join() {
  local was file=${RECORD%/*}/.inotify # what it was
  exec 8</run
  flock 8
  mkdir -p "$RECORD"
  was=$(cat $INOTIFY) || was=$INOTIFY_ENOUGH
  if [ "$was" -lt "$INOTIFY_ENOUGH" ]; then
    [ -s "$file" ] || echo "$was" >"$file"
    echo "$INOTIFY_ENOUGH" >$INOTIFY || { rm "$file"; say "up: $INOTIFY stays at $was, which is enough for four clusters"; }
  fi
  exec 8<&-
}
leave() {
  local file=${RECORD%/*}/.inotify
  exec 8</run
  flock 8
  rm -rf "$RECORD"
  if ! others && [ -s "$file" ]; then
    # Unless somebody else has set another since.
    [ "$(<$INOTIFY)" != "$INOTIFY_ENOUGH" ] || cat "$file" >$INOTIFY
    [ "$(<$INOTIFY)" = "$INOTIFY_ENOUGH" ] || rm "$file"
  fi
  rmdir "${RECORD%/*}" 2>/dev/null
  exec 8<&-
}

# leftovers BEFORE: one line for each thing of this cluster that is still there, and for
# what machine_state says that is not in the file BEFORE (/dev/null: nothing of that).
leftovers() {
  local p d
  for p in $(marked_pids); do echo "process $p $(cat "/proc/$p/comm" 2>/dev/null)"; done
  our_links | sed 's/^/link /'
  for d in $(cgroup_dirs); do [ ! -d "$d" ] || find "$d" -type d | sed 's/^/cgroup /'; done
  grep -F " $STATE/" /proc/mounts | sed 's/^/mount /'
  for d in "$STATE/settings" "$STATE/nodes" "$STATE/pki" "$RECORD"; do [ ! -e "$d" ] || echo "folder $d"; done
  [ "$1" = /dev/null ] || machine_state | grep -vxFf "$1" | sed 's/$/ (was not so before up)/'
  return 0
}

# running: whether anything at all of this cluster is there.
running() { [ -e "$RECORD" ] || [ -e "$STATE/settings" ] || [ -n "$(leftovers /dev/null)" ]; }

# take_lock: one `up` or `down` of this cluster at a time. `down` deletes the file
# while it holds the lock, so whoever waited looks whether it is still the file.
take_lock() {
  local said="" holder
  while :; do
    exec 9>>"$LOCK"
    until flock -w 0.5 9; do
      [ -n "$said" ] || say "${0##*/}: waiting for another up or down of the cluster $CLUSTER"
      said=1
      holder=$(cat "$LOCK" 2>/dev/null)
      # Killed, and what it had started holds the lock. (A new holder is not marked
      # before its id stands in the file.)
      if [ -n "$holder" ] && ! lives "$holder"; then kill_marked; fi
    done
    [ "$(stat -Lc %i /proc/self/fd/9)" != "$(stat -c %i "$LOCK" 2>/dev/null)" ] || break
  done
  echo $$ >"$LOCK"
}

# clean: removes everything of this cluster, holding the lock.
clean() {
  local link
  kill_marked || say "some processes would not end"
  for link in $(our_links); do ip link del "$link" 2>/dev/null; done
  # shellcheck disable=SC2046
  remove_cgroups $(cgroup_dirs) || say "some cgroups would not go"
  # The kernel takes veth pairs away with their namespace, in its own time.
  for link in $(our_links); do ip link del "$link" 2>/dev/null; done
  remove_state
  leave
  return 0
}
