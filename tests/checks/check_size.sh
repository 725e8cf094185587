#!/usr/bin/env bash
# check_size.sh FILE LIMIT: the file is smaller than LIMIT bytes.
set -euo pipefail
size=$(stat -c %s "$1")
echo "$1: $size bytes, limit $2"
((size < $2))
