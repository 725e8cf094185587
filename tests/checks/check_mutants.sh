#!/usr/bin/env bash
# check_mutants.sh SOURCE_DIR: every fault of tools/dev/mutants.txt still fits the code.
set -euo pipefail
command -v python3 >/dev/null || { echo "no python3: skipped"; exit 77; }
exec "$1/tools/dev/mutate" --check
