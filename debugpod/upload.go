package debugpod

import (
	"fmt"
	"strings"
)

// directories are where the helper may lie in the container, the first that takes a file and lets it be executed.
// Policies make root file systems read-only, and some runtimes mount /tmp or /dev/shm noexec; /dev itself is a tmpfs of
// every container.
const directories = "/tmp /dev /run /var/tmp"

const fileName = "gpu-fault-node"

// uploadCommand takes size bytes from standard input, makes them a program, and runs it.
//
// It counts the bytes instead of waiting for the end of the input, for two reasons. The input stays open while the
// helper works, and its end tells the helper that the client is gone. And containerd closes the input when the first of
// the output streams ends: a shell that has become `cat >file` ends its standard output at once, and the file is
// silently cut. Here the shell keeps both until the helper has taken them over. The size is checked all the same, as a
// cut ELF file crashes before it can check itself; the helper then checks its SHA-256.
func uploadCommand(directories string, size int) []string {
	script := strings.NewReplacer("DIRECTORIES", directories, "FILE", fileName, "SIZE", fmt.Sprint(size)).Replace(`
for d in DIRECTORIES; do
  f=$d/FILE
  (printf '#!/bin/sh\n' >"$f" && chmod 700 "$f" && "$f") </dev/null >/dev/null 2>&1 && break
  rm -f "$f" 2>/dev/null
  f=
done
if [ -z "$f" ]; then
  echo '{"protocol":1,"error":{"code":"no-place-to-execute","message":"no directory of the container takes a program: none of DIRECTORIES is writable and not mounted noexec"}}'
  exit 1
fi
head -c SIZE >"$f"
n=$(wc -c <"$f")
if [ "$n" -ne SIZE ]; then
  echo '{"protocol":1,"error":{"code":"truncated","message":"the helper did not arrive whole: '"$n"' of SIZE bytes"}}'
  exit 1
fi
exec "$f" attached
`)
	return []string{"sh", "-c", script}
}

// runCommand runs the helper that is there, with its request on standard input.
func runCommand(directories string) []string {
	script := strings.NewReplacer("DIRECTORIES", directories, "FILE", fileName).Replace(`
for d in DIRECTORIES; do
  [ -x "$d/FILE" ] && exec "$d/FILE" stdin
done
echo '{"protocol":1,"error":{"code":"truncated","message":"the helper is not in the container any more"}}'
exit 1
`)
	return []string{"sh", "-c", script}
}
