#!/usr/bin/env bash
# check_weak_symbols.sh OBJECT...: none of the objects defines a weak symbol. The linker keeps one copy of each,
# so a copy compiled for a newer instruction set could be the one that baseline code calls.
# DW.ref.__gxx_personality_v0 is allowed: it is a pointer for unwinding, not code.
set -euo pipefail
(($# > 0)) || { echo "no object files given" >&2; exit 1; }
status=0
for object in "$@"; do
  [[ $object == *.gch ]] && continue  # a precompiled header, which CMake counts among the objects
  symbols=$(nm --defined-only "$object")
  weak=$(awk '$2 ~ /^[WVu]$/ && $3 != "DW.ref.__gxx_personality_v0"' <<<"$symbols" | c++filt)
  if [[ -n $weak ]]; then
    printf '%s defines weak symbols:\n%s\n' "$object" "$weak"
    status=1
  fi
done
exit $status
