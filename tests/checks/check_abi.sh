#!/usr/bin/env bash
# check_abi.sh LIBRARY: it exports what tests/c/abi.txt lists, at the version of vitrum/c/exports.map, no more and no less.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^\([A-Z_0-9]*\) {$/\1/p' "$here/../../vitrum/c/exports.map")
found=$(nm -D --defined-only "$1" | awk '$2 != "A" {print $NF}' | sort)
diff <(sed "s/\$/@@$version/" "$here/../c/abi.txt" | sort) <(echo "$found") || {
  echo "the C interface changed: a function that is gone needs a new SOVERSION, a new one a line in tests/c/abi.txt"
  exit 1
}
