#!/usr/bin/env bash
# Builds the CUDA shim, libgpufault.so and libgpufault-cudart.so for both architectures, without linking anything: any glibc, and musl, loads them.
# Also builds crash, the program that makes an error on a GPU, which runs with any glibc.
#   hack/shim.sh build             into cudafault/lib (committed)
#   hack/shim.sh verify            builds again elsewhere and compares byte for byte with what is committed
#   hack/shim.sh check [DIR]       what every file must be: exports, undefined symbols, no constructors, size
#   hack/shim.sh test              unit tests of the pure parts and fuzzing of the state reader, with sanitizers
#   hack/shim.sh export-only DIR   x86_64 with plain exports only, no routing of lookups: to compare with
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

readonly source=cudafault/shim lib=cudafault/lib limit=98304 crash_limit=16384
readonly needed='gcc 12.2.0 and aarch64-linux-gnu-gcc 12.2.0 with binutils 2.40, as in Debian 12: gcc, gcc-aarch64-linux-gnu'
readonly common=(-std=gnu11 -Os -ffreestanding -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-stack-protector -fno-asynchronous-unwind-tables
  -fno-unwind-tables -fno-tree-loop-distribute-patterns -fno-ident -fno-builtin -mgeneral-regs-only "-ffile-prefix-map=$PWD=."
  -Wall -Wextra -Werror -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wshadow)
readonly link=(-nostdlib -shared '-Wl,--hash-style=gnu' '-Wl,--build-id=none' '-Wl,-z,now' '-Wl,-z,noexecstack' '-Wl,-z,noseparate-code'
  '-Wl,--no-undefined-version'
  '-Wl,-e,gf_start' '-Wl,-s' '-Wl,--gc-sections' '-Wl,-Bsymbolic')

die() { echo "shim.sh: $*" >&2; exit 1; }

# Names that a file exports besides its hooks.
others() { case $1 in *export-only*) ;; *) echo dlsym dlclose la_version la_objopen la_objclose la_symbind64 execve execv execvp execvpe fexecve posix_spawn posix_spawnp ;; esac; }

hooks() { sed -n 's/^HOOK(\([^,]*\),.*/\1/p' "$source/$1"; }

# compile CC ARCH FILE [FLAG...]
compile() {
  local cc=$1 arch=$2 file=$3 list=hooks.def flags=() map
  shift 3
  case $file in *cudart*) list=hooks-cudart.def ;; esac
  # No GPU hangs on a Cortex-A53, and the linker's way around its erratum can cost a page.
  # relro would round the data up to a page: with the 64 KiB pages that aarch64 kernels may have, that alone is the size limit.
  case $arch in
  x86_64) flags=(-fcf-protection=none '-Wl,-z,relro' '-Wl,-z,max-page-size=4096') ;;
  aarch64) flags=(-mno-outline-atomics -mno-fix-cortex-a53-843419 -mno-fix-cortex-a53-835769 -mbranch-protection=none
    '-Wl,-z,norelro' '-Wl,-z,max-page-size=65536' '-Wl,-z,common-page-size=64') ;;
  esac
  map=$(mktemp)
  { echo '{ global:'; { hooks "$list"; others "$file" | tr ' ' '\n'; } | sed 's/$/;/'; echo 'local: *; };'; } >"$map"
  (cd "$source" && "$cc" "${common[@]}" "${flags[@]}" "${link[@]}" -Wl,--version-script="$map" "$@" -o "$file" "stubs-$arch.S" \
    ./shim.c identity.c elf.c lookup.c objects.c look.c trigger.c effects.c memory.c copy.c nvml.c nvml_values.c nvml_events.c run.c maps.c exec.c sweep.c clock.c say.c audit.c start.c)
  rm -f "$map"
  chmod 755 "$file"
}

# compile_crash CC ARCH FILE. It is linked with stand-ins for the C library, which have the names and no versions: with the real ones, it would
# require a C library as new as this machine's.
compile_crash() {
  local cc=$1 arch=$2 file=$3 stubs flags=()
  stubs=$(mktemp -d)
  [ "$arch" != x86_64 ] || flags=(-fcf-protection=none)
  printf 'void %s(void) {}\n' __libc_start_main snprintf open write access getenv strstr strcmp memcmp strlen _exit memset memcpy >"$stubs/c.c"
  printf 'void %s(void) {}\n' dlopen dlsym dlerror >"$stubs/dl.c"
  "$cc" -w -fno-builtin -nostdlib -shared -Wl,-soname,libc.so.6 -o "$stubs/libc.so" "$stubs/c.c"
  "$cc" -w -fno-builtin -nostdlib -shared -Wl,-soname,libdl.so.2 -o "$stubs/libdl.so" "$stubs/dl.c"
  (cd "${source%/*}/crash" && "$cc" -std=gnu11 -Os -ffreestanding -fno-builtin -fPIE -fno-stack-protector -fno-asynchronous-unwind-tables -fno-ident \
    "-ffile-prefix-map=$PWD=." -Wall -Wextra -Werror "${flags[@]}" -nostdlib -nostartfiles -pie -Wl,--hash-style=gnu -Wl,--build-id=none \
    -Wl,-z,now -Wl,-z,noexecstack -Wl,-z,noseparate-code -Wl,-z,norelro -Wl,-z,common-page-size=64 -Wl,-s -o "$file" "start-$arch.S" crash.c \
    "$stubs/libdl.so" "$stubs/libc.so")
  rm -rf "$stubs"
  chmod 755 "$file"
}

build() { # into DIR
  local arch cc
  for arch in x86_64 aarch64; do
    cc=gcc
    [ "$(uname -m)" = "$arch" ] || cc=$arch-linux-gnu-gcc
    command -v "$cc" >/dev/null || die "$cc is missing; needed: $needed"
    mkdir -p "$1/$arch"
    compile "$cc" "$arch" "$(realpath "$1/$arch")/libgpufault.so"
    compile "$cc" "$arch" "$(realpath "$1/$arch")/libgpufault-cudart.so" -DGF_CUDART
    compile_crash "$cc" "$arch" "$(realpath "$1/$arch")/crash"
  done
}

# check_file FILE: what lets it be loaded into anything.
check_file() {
  local file=$1 list=hooks.def arch problem=() size undefined want have
  case $file in *cudart*) list=hooks-cudart.def ;; esac
  case $file in *aarch64*) arch=AArch64 ;; *) arch=X86-64 ;; esac
  size=$(stat -c %s "$file")
  [ "$size" -le "$limit" ] || problem+=("$size bytes, more than $limit")
  readelf -hW "$file" | grep -q "Machine:.*$arch" || problem+=("not for $arch")
  ! readelf -dW "$file" | grep -qE '\((NEEDED|INIT|FINI|INIT_ARRAY|FINI_ARRAY|PREINIT_ARRAY|TEXTREL|VERNEED|VERDEF|SONAME|RPATH|RUNPATH)\)' ||
    problem+=("has NEEDED, constructors, text relocations or symbol versions")
  ! readelf -SW "$file" | grep -qE '\.(init|fini|ctors|dtors|interp)' || problem+=('has constructors or an interpreter')
  ! readelf -lW "$file" | grep -E 'GNU_STACK' | grep -q E || problem+=('wants an executable stack')
  undefined=$(nm -D --undefined-only "$file" | awk '$1 != "w" || $2 ~ /@/ { print $2 }')
  [ -z "$undefined" ] || problem+=("undefined and not weak, or versioned: $undefined")
  want=$({ hooks "$list"; others "$file" | tr ' ' '\n'; } | sort)
  have=$(nm -D --defined-only "$file" | awk '{ print $3 }' | sort)
  [ "$want" = "$have" ] || problem+=("exports differ from $list: $(diff <(echo "$want") <(echo "$have") | tr '\n' ' ')")
  # Run as a program nothing relocates it: the segment with the code must not need it.
  ! readelf -lW "$file" | grep -q INTERP || problem+=('has an interpreter')
  if [ ${#problem[@]} -gt 0 ]; then
    printf '%s: %s\n' "$file" "${problem[@]}" >&2
    return 1
  fi
  printf '%s: %s hooks, %s bytes\n' "$file" "$(hooks "$list" | wc -l)" "$size"
}

# check_crash FILE: what lets it run with any glibc.
check_crash() {
  local file=$1 problem=() size
  size=$(stat -c %s "$file")
  [ "$size" -le "$crash_limit" ] || problem+=("$size bytes, more than $crash_limit")
  ! readelf -dW "$file" | grep -qE '\((VERNEED|TEXTREL|RPATH|RUNPATH)\)' || problem+=('has symbol versions, text relocations or a path')
  [ "$(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')" = 'libc.so.6 libdl.so.2 ' ] ||
    problem+=('needs other libraries than libc and libdl')
  ! readelf -lW "$file" | grep -E 'GNU_STACK' | grep -q E || problem+=('wants an executable stack')
  if [ ${#problem[@]} -gt 0 ]; then
    printf '%s: %s\n' "$file" "${problem[@]}" >&2
    return 1
  fi
  printf '%s: %s bytes\n' "$file" "$size"
}

check() { # every file in DIR
  local file bad=0
  for file in "$1"/{x86_64,aarch64}/libgpufault{,-cudart}.so; do
    check_file "$file" || bad=1
  done
  for file in "$1"/{x86_64,aarch64}/crash; do
    check_crash "$file" || bad=1
  done
  for file in "$source"/hooks*.def; do
    [ -z "$(hooks "${file##*/}" | sort | uniq -d)" ] || die "$file: listed twice: $(hooks "${file##*/}" | sort | uniq -d)"
  done
  [ "$bad" = 0 ] || exit 1
}

verify() {
  local file bad=0
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  build "$work"
  for file in {x86_64,aarch64}/{libgpufault.so,libgpufault-cudart.so,crash}; do
    if cmp -s "$work/$file" "$lib/$file"; then
      printf '%s: as built from source\n' "$lib/$file"
    else
      echo "shim.sh: $lib/$file is not what the source gives" >&2
      bad=1
    fi
  done
  if [ "$bad" = 1 ]; then
    echo "shim.sh: the committed files are built with $needed; here: $(gcc --version | head -1); $(ld --version | head -1)." >&2
    echo "shim.sh: the same versions? Then: hack/shim.sh build" >&2
    exit 1
  fi
  check "$lib"
}

unit_tests() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  gcc -std=gnu11 -g -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all -o "$work/pure_test" "$source/pure_test.c"
  "$work/pure_test"
}

case ${1-} in
build)
  build "$lib"
  check "$lib"
  ;;
verify) verify ;;
check) check "${2:-$lib}" ;;
test) unit_tests ;;
export-only)
  mkdir -p "${2:?folder}"
  compile gcc x86_64 "$(realpath "$2")/libgpufault-export-only.so" -DGF_EXPORT_ONLY
  check_file "$(realpath "$2")/libgpufault-export-only.so"
  ;;
*)
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
  exit 2
  ;;
esac
