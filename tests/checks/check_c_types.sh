#!/usr/bin/env bash
# check_c_types.sh CC CXX [--update]: vitrum/vitrum.h compiles as C99 and C++98, and its functions and structs are those of
# tests/c/vitrum_c.abi, which libabigail's abidw wrote. --update writes that file again.
set -euo pipefail
cc=$1 cxx=$2 root=$(cd "$(dirname "$0")/../.." && pwd)
dump=$root/tests/c/vitrum_c.abi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/user.c" <<'END'
#include "vitrum/vitrum.h"
const vitrum_options options = VITRUM_OPTIONS_INIT;
const vitrum_tensor tensor = VITRUM_TENSOR_INIT;
END
"$cc" -std=c99 -pedantic-errors -Wall -Wextra -Werror -I"$root" -c "$work/user.c" -o "$work/c.o"
# Its numbers have widths, which C++98 has by way of C99's <stdint.h>.
"$cxx" -x c++ -std=c++98 -pedantic-errors -Wall -Wextra -Werror -Wno-long-long -I"$root" -c "$work/user.c" -o "$work/cpp.o"

if ! command -v abidiff >/dev/null; then
  echo "skipped: the types are compared by abidiff, which is not installed (Debian's abigail-tools)"
  exit 77
fi
# A library of the header alone: every function has an empty body, so that debug information has all of the types.
"$cc" -std=c99 -E -P -I"$root" "$root/vitrum/vitrum.h" | tr '\n' ' ' |
  sed -E 's/(__attribute__\(\(visibility\("default"\)\)\)[^;]*\));/\1 { __builtin_trap(); }\n/g' >"$work/empty.c"
"$cc" -std=c99 -g -shared -fPIC -Wl,-soname,libvitrum_c.so.0 "$work/empty.c" -o "$work/libvitrum_c.so.0"
if [[ ${3:-} == --update ]]; then
  (cd "$work" && abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed libvitrum_c.so.0) >"$dump"
  exit
fi
abidiff --no-show-locs "$dump" "$work/libvitrum_c.so.0" || {
  echo "the C interface changed. What is gone or has changed its meaning needs a new SOVERSION; where something was added"
  echo "at the end of a struct or beside the others, run tests/checks/check_c_types.sh cc c++ --update"
  exit 1
}
