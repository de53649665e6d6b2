#!/bin/sh
# Makes docs/doctor.png, and doctor-dark.png and doctor-phone.png beside it: what `kubectl gpu-fault doctor --html` shows of a snapshot. It
# needs chromium and python3, no cluster and no network. With a page that exists, such as the one of `scenario grade --html`, it makes NAME.png
# of that.
#
#   hack/screenshot.sh [SNAPSHOT.txtar | BUNDLE] [FOLDER]
#   hack/screenshot.sh PAGE.html [FOLDER]
set -eu
cd "$(dirname "$0")/.."
what=${1:-pkg/doctor/testdata/positive/runtime-two-containerds.txtar}
docs=${2:-docs}
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
	echo "hack/screenshot.sh: chromium is not installed (apt-get install chromium)" >&2
	exit 1
}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

shoot() { # NAME WIDTH,HEIGHT PAGE [FLAG...]
	name=$1 size=$2 page=$3
	shift 3
	"$chromium" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files --user-data-dir="$tmp/profile" \
		--window-size="$size" --screenshot="$docs/$name" "$@" "file://$tmp/$page" >/dev/null 2>&1
	echo "$docs/$name"
}
case $what in
*.html)
	cp "$what" "$tmp/page.html"
	shoot "$(basename "$what" .html).png" 1080,1180 page.html
	exit
	;;
*.txtar)
	mkdir "$tmp/snapshot"
	python3 - "$what" "$tmp/snapshot" <<'PYTHON'
import os, re, sys
source, folder = sys.argv[1:]
out = None
for line in open(source, encoding="utf-8"):
    name = re.fullmatch(r"-- (.+) --\n?", line)
    if name:
        path = os.path.join(folder, name[1].strip())
        if not os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep):
            sys.exit("not a path of a snapshot: " + name[1])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        out = open(path, "w", encoding="utf-8")
    elif out:
        out.write(line)
meta = os.path.join(folder, "snapshot.json")
if not os.path.exists(meta):  # as in the tests of pkg/doctor
    with open(meta, "w", encoding="utf-8") as f:
        f.write('{"apiVersion":"gpufault.dev/v1alpha1","kind":"Snapshot","created":"2026-01-01T12:00:00Z"}')
PYTHON
	what=$tmp/snapshot
	;;
esac

# The exit code is 2 when something is wrong, which is what the picture is to show.
go run ./cmd/kubectl-gpu_fault doctor --from-bundle "$what" --html "$tmp/page.html" --fail-on never >/dev/null
# A window of chromium is at least 500 pixels wide; a frame is as narrow as a phone.
echo '<body style="margin:0"><iframe src="page.html" width="390" height="1688" style="border:0"></iframe></body>' >"$tmp/phone.html"

shoot doctor.png 1280,1500 page.html
shoot doctor-dark.png 1280,1500 page.html --blink-settings=preferredColorScheme=0
shoot doctor-phone.png 390,1688 phone.html
