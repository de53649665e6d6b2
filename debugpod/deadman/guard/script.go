//go:build linux

package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// script returns restore.sh for the record in the directory dir. The script is a fallback for when neither the client
// nor the dead man's switch is available, so it requires only tools that every node has. It may be run repeatedly and
// concurrently, because it skips files that are already restored.
func (h Host) script(r *record, dir string) string {
	var files strings.Builder
	var beside []string
	for i, f := range r.Change.Files {
		p := r.Places[i]
		way := "rename"
		switch {
		case f.Before == deadman.Absent:
			way = "remove"
		case p.InPlace:
			way = "overwrite"
		}
		fmt.Fprintf(&files, "put_back %s %s %s %s %s\n", way, quote(p.Real), quote(preparedPath(dir, p, p.Before)),
			or(f.Before, "absent"), or(f.After, "absent"))
		for _, name := range []string{p.Before, p.After} {
			if isBeside(name) {
				beside = append(beside, quote(preparedPath(dir, p, name)))
			}
		}
	}
	unit := ""
	if r.Change.Service != nil {
		unit = r.Change.Service.Unit
	}
	boot := h.bootUnit(r.Run)
	return strings.NewReplacer(
		"@RUN@", r.Run, "@DIR@", quote(dir), "@PARENT@", quote(filepath.Dir(dir)), "@UNIT@", quote(unit),
		"@FILES@", files.String(), "@REST@", strings.Join(append(beside, quote(boot.path), quote(boot.link)), " "),
		"@PROC@", quote(h.Proc), "@ROOT@", quote(h.Root),
	).Replace(scriptText)
}

const scriptText = `#!/bin/sh
# Restores what kubectl gpu-fault changed on this node in run @RUN@, and removes this record.
#   sh restore.sh        manually: also restarts the service
#   sh restore.sh boot   before the service starts
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
run=@RUN@ dir=@DIR@ unit=@UNIT@ root=@ROOT@ me=$(id -u) done=0 left=0
say() { echo "gpu-fault $run: $*"; }
if ! command -v sha256sum >/dev/null 2>&1; then
  say "sha256sum not found, so nothing is restored; the previous files are in $dir" >&2
  exit 1
fi
sum() {
  if [ -e "$1" ]; then sha256sum <"$1" | cut -d' ' -f1; else echo absent; fi
}
# owned TYPE PATH succeeds if PATH is of this type, as ls shows it, and only root can change it.
owned() {
  ls -ldn "$2" 2>/dev/null | (
    read -r mode links uid gid rest || exit 1
    case $mode in
    "$1"*) ;;
    *) exit 1 ;;
    esac
    case $mode in
    ????????w* | ?????w????+*) exit 1 ;; # + is an access control list
    ?????w*) [ "$gid" = 0 ] || exit 1 ;;
    esac
    [ "$uid" = "$me" ]
  )
}
# safe PATH succeeds if only root can determine which file this is. Links are not followed.
safe() {
  at=$1 type=-
  while :; do
    if [ -L "$at" ] || [ -e "$at" ]; then owned $type "$at" || return 1; fi
    if [ "$at" = "$root" ] || [ "$at" = / ]; then return 0; fi
    at=${at%/*}
    at=${at:-/}
    type=d
  done
}
# put_back WAY PATH PREPARED BEFORE AFTER
put_back() {
  if ! safe "$2" || ! safe "${3:-$2}"; then
    if [ -n "$3" ]; then was="its previous content is in $3"; else was="it did not exist before"; fi
    say "$2 is not restored: it or a directory above it is a link, or a user other than root can change it; $was" >&2
    left=1
    return
  fi
  now=$(sum "$2")
  if [ "$now" = "$4" ]; then
    say "$2 is already restored"
    done=1 # possibly by an interrupted run of this script
    return
  fi
  if [ "$now" != "$5" ]; then
    say "$2 was changed by another client (checksum $now), and is kept" >&2
    left=1
    return
  fi
  case $1 in
  remove) rm -f "$2" ;;
  rename)
    if [ "$(sum "$3")" = "$4" ]; then mv -f "$3" "$2"; fi
    ;;
  overwrite)
    if [ "$(sum "$3")" = "$4" ]; then
      cat "$3" >"$2" && chown "$(stat -c %u:%g "$3")" "$2" && chmod "$(stat -c %a "$3")" "$2" && touch -r "$3" "$2"
    fi
    ;;
  esac
  if [ "$(sum "$2")" = "$4" ]; then
    say "$2 restored"
    done=1
  else
    say "$2 could not be restored; its previous content is in $3" >&2
    left=1
  fi
}
# Kill the dead man's switch, which would do the same.
for p in @PROC@/[0-9]*; do
  line=$({ tr '\000' ' ' <"$p/cmdline"; } 2>/dev/null) || continue # the process may have exited
  case $line in
  "gpu-fault-deadman $run guard $run "*) kill -9 "${p##*/}" 2>/dev/null ;;
  esac
done
@FILES@sync
if [ "${1:-}" != boot ] && [ -n "$unit" ] && [ $done = 1 ]; then
  if command -v systemctl >/dev/null 2>&1; then
    systemctl reset-failed "$unit" 2>/dev/null
    if systemctl restart "$unit"; then say "$unit restarted"; else say "$unit does not start: see systemctl status $unit" >&2; left=1; fi
  else
    say "restart $unit, so that it loads the restored files" >&2
  fi
fi
if [ $left != 0 ]; then
  say "the record stays in $dir" >&2
  exit 1
fi
rm -f @REST@
rm -rf "$dir"
rmdir @PARENT@ 2>/dev/null
say "all files are restored"
`

// quote quotes a word for the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

func or(word, instead string) string {
	if word == "" {
		return instead
	}
	return word
}

// bootUnit returns the path of the systemd unit that restores the files at boot, and of the link that enables it.
func (h Host) bootUnit(run string) struct{ path, link string } {
	name := "gpu-fault-" + run + ".service"
	return struct{ path, link string }{
		filepath.Join(h.Units, name), filepath.Join(h.Units, "multi-user.target.wants", name),
	}
}

const unitText = `# Created by kubectl gpu-fault, which also removes it. See %[1]s.
[Unit]
Description=Restore what gpu-fault changed in run %[2]s
Before=%[3]s
RequiresMountsFor=%[4]s
ConditionPathExists=%[1]s

[Service]
Type=oneshot
ExecStart=/bin/sh %[1]s boot

[Install]
WantedBy=multi-user.target
`

// armBoot installs a systemd unit that restores the files when the node boots, before the service starts. It does
// nothing without systemd.
func (h Host) armBoot(r *record) error {
	if info, err := os.Stat(h.Systemd); err != nil || !info.IsDir() {
		return nil
	}
	unit := h.bootUnit(r.Run)
	needs := []string{unitQuote(h.dir(r.Run))}
	for _, p := range r.Places {
		needs = append(needs, unitQuote(p.Real))
	}
	// This is the default for a change without a service. A unit that does not exist is not an error.
	before := "containerd.service kubelet.service"
	if service := r.Change.Service; service != nil {
		before = service.Unit
	}
	text := fmt.Sprintf(unitText, filepath.Join(h.dir(r.Run), scriptFile), r.Run, before, strings.Join(needs, " "))
	units, err := h.directory(h.Units, followLinks)
	if err != nil {
		return err
	}
	defer func() { _ = units.Close() }()
	if err := (file{units, filepath.Base(unit.path)}).writeWhole([]byte(text), 0o644); err != nil {
		return err
	}
	wants := filepath.Base(filepath.Dir(unit.link))
	if err := units.mkdir(wants, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	wanted, err := units.child(wants)
	if err != nil {
		return err
	}
	defer func() { _ = wanted.Close() }()
	if err := unix.Symlinkat(unit.path, int(wanted.Fd()), filepath.Base(unit.link)); err != nil {
		return &os.LinkError{Op: "symlink", Old: unit.path, New: unit.link, Err: err}
	}
	return wanted.sync()
}

// unitQuote quotes a path for a unit file, in which % starts a specifier.
func unitQuote(path string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%").Replace(path) + `"`
}

func (h Host) disarmBoot(run string) error {
	unit := h.bootUnit(run)
	var failed []error
	for _, path := range []string{unit.link, unit.path} {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		failed = append(failed, h.removeFile(path))
	}
	return errors.Join(failed...)
}
