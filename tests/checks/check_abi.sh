#!/usr/bin/env bash
# check_abi.sh LIBRARY: it exports what tests/c/abi.txt lists, each at its version, no more and no less.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
found=$(nm -D --defined-only "$1" | awk '$2 != "A" {print $NF}' | sort)
diff <(sort "$here/../c/abi.txt") <(echo "$found") || {
  echo "the C interface changed: a function that is gone needs a new SOVERSION, a new one a line in tests/c/abi.txt"
  exit 1
}
