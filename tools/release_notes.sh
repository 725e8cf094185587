#!/usr/bin/env bash
# release_notes.sh [VERSION]: what CHANGELOG.md says of a version, by default the current one, without its heading.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=${1:-$("$root/tools/version.sh")}
notes=$(awk -v heading="## [$version]" '
  /^## / { inside = index($0, heading) == 1; next }
  inside' "$root/CHANGELOG.md" | sed -e '/./,$!d')
[[ -n $notes ]] || { echo "release_notes: CHANGELOG.md says nothing about $version" >&2; exit 1; }
echo "$notes"
