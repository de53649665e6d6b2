package debugpod

import (
	"fmt"
	"strings"
)

// directories are the candidate directories for the helper in the container. The first directory in which a file can be
// written and executed is used. Policies may make the root file system read-only, and some runtimes mount /tmp or
// /dev/shm with noexec; /dev is a tmpfs in every container.
const directories = "/tmp /dev /run /var/tmp"

const fileName = "gpu-fault-node"

// uploadCommand returns a command that reads size bytes from standard input, stores them as an executable, and runs it.
//
// The command counts the bytes instead of reading to the end of the input, for two reasons. First, the input stays open
// while the helper is working, and its end means that the client has disconnected. Second, containerd closes the input
// when the first of the output streams ends: a shell that has executed `cat >file` immediately closes its standard
// output, and the file is silently truncated. With this command, the shell keeps both streams open until the helper has
// taken them over. The command also checks the size, because a truncated ELF file crashes before it can check itself.
// The helper
// then checks its SHA-256.
func uploadCommand(directories string, size int) []string {
	script := strings.NewReplacer("DIRECTORIES", directories, "FILE", fileName, "SIZE", fmt.Sprint(size)).Replace(`
for d in DIRECTORIES; do
  f=$d/FILE
  (printf '#!/bin/sh\n' >"$f" && chmod 700 "$f" && "$f") </dev/null >/dev/null 2>&1 && break
  rm -f "$f" 2>/dev/null
  f=
done
if [ -z "$f" ]; then
  echo '{"protocol":1,"error":{"code":"no-place-to-execute","message":"no directory in the container allows running a program: none of DIRECTORIES is writable and mounted without noexec"}}'
  exit 1
fi
head -c SIZE >"$f"
n=$(wc -c <"$f")
if [ "$n" -ne SIZE ]; then
  echo '{"protocol":1,"error":{"code":"truncated","message":"the helper arrived incomplete: '"$n"' of SIZE bytes"}}'
  exit 1
fi
exec "$f" attached
`)
	return []string{"sh", "-c", script}
}

// runCommand returns a command that runs the uploaded helper, with its request on standard input.
func runCommand(directories string) []string {
	script := strings.NewReplacer("DIRECTORIES", directories, "FILE", fileName).Replace(`
for d in DIRECTORIES; do
  [ -x "$d/FILE" ] && exec "$d/FILE" stdin
done
echo '{"protocol":1,"error":{"code":"truncated","message":"the helper is no longer in the container"}}'
exit 1
`)
	return []string{"sh", "-c", script}
}
