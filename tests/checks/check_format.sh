#!/usr/bin/env bash
# check_format.sh ROOT: all sources are as clang-format 14 leaves them (other versions differ in details).
set -euo pipefail
cd "$1"
tool=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $tool ]] || ! "$tool" --version | grep -q 'version 14\.'; then
  echo "skipped: clang-format 14 is not installed"
  exit 77
fi
{ find vitrum tests bench examples fuzz \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null || true; } |
  xargs -0 -r "$tool" --dry-run -Werror
