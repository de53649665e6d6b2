# shellcheck shell=bash
# Packages of other Debian releases and architectures, downloaded with the machine's own apt sources into a folder of ours and unpacked there:
# nothing is installed, and no file of the machine is touched. To be sourced.

# sources CODENAME SUITE COMPONENT: the machine's entries for its own release (CODENAME), for another suite and component, one line each. A suite
# that ends in -security is looked for where the machine's own one is. A key that is written into the entry is left out: apt has it too.
sources() {
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -e "$file" ] || continue
    case $file in
    *.sources)
      awk -v own="$1" -v suite="$2" -v component="$3" '
        BEGIN { if (suite ~ /-security$/) own = own "-security" }
        function flush(  i, n, uris) {
          if (types ~ /(^| )deb( |$)/ && index(" " suites " ", " " own " ")) {
            n = split(where, uris, " ")
            for (i = 1; i <= n; i++) print "deb " (signed ~ /^\// ? "[signed-by=" signed "] " : "") uris[i] " " suite " " component
          }
          types = where = suites = signed = ""
        }
        /^[[:space:]]*$/ { flush(); next }
        { key = tolower($1); $1 = ""; sub(/^ /, "") }
        key == "types:" { types = $0 }  key == "uris:" { where = $0 }  key == "suites:" { suites = $0 }  key == "signed-by:" { signed = $0 }
        END { flush() }' "$file"
      ;;
    *)
      awk -v own="$1" -v suite="$2" -v component="$3" '
        BEGIN { if (suite ~ /-security$/) own = own "-security" }
        $1 == "deb" {
          options = ""
          if ($2 ~ /^\[/) for (i = 2; i <= NF; i++) { options = options $i " "; if ($i ~ /\]$/) break } else i = 1
          gsub(/arch=[^] ]*/, "", options) # which may not be the one that is asked for
          if ($(i + 2) == own) print "deb " options $(i + 1) " " suite " " component
        }' "$file"
      ;;
    esac
  done | sort -u
}

# fetch CACHE ARCHITECTURE COMPONENT "SUITE..." PACKAGE...: prints the folder with the unpacked packages, each in the newest version of those suites.
# 1: the archive does not have them. What was fetched once stays in CACHE; remove the folder to fetch it anew.
fetch() {
  local cache=$1 architecture=$2 component=$3 suites=$4 suite codename dir work deb
  shift 4
  dir=$cache/${suites%% *}-$component-$architecture/$(tr ' ' + <<<"$*")
  if [ -d "$dir" ]; then
    echo "$dir"
    return
  fi
  # shellcheck disable=SC1091
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  mkdir -p "${dir%/*}"
  work=$(mktemp -d "${dir%/*}/new-XXXXXX")
  mkdir -p "$work"/{parts,debs,root,state/lists/partial,cache/archives/partial}
  for suite in $suites; do sources "$codename" "$suite" "$component"; done >"$work/parts/other.list"
  if [ ! -s "$work/parts/other.list" ]; then
    rm -rf "$work"
    echo "no entry for Debian's ${codename:-own} release in /etc/apt: this needs a Debian machine" >&2
    return 1
  fi
  local apt=(apt-get -qq -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o APT::Default-Release=
    -o Dir::Etc::SourceList=/dev/null
    -o Dir::Etc::SourceParts="$work/parts" -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
    -o Dir::State="$work/state" -o Dir::State::Lists="$work/state/lists" -o Dir::State::Status=/dev/null -o Dir::Cache="$work/cache"
    -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::http::Timeout=30 -o Acquire::Retries=1)
  # apt's own user cannot write into a folder of root's.
  [ "$(id -u)" != 0 ] || apt+=(-o APT::Sandbox::User=root)
  if ! { timeout 300 "${apt[@]}" update && (cd "$work/debs" && timeout 600 "${apt[@]}" download "$@"); } >"$work/log" 2>&1 </dev/null; then
    sed 's/^/  apt: /' "$work/log" >&2
    rm -rf "$work"
    return 1
  fi
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
  mv "$work/root" "$dir"
  rm -rf "$work"
  echo "$dir"
}
