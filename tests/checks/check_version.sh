#!/usr/bin/env bash
# check_version.sh ROOT BINARY: the version is written once, everything that is built has it, and the changelog knows it.
set -euo pipefail
version=$("$1/tools/version.sh")
build=$(dirname "$2")
status=0
# expect WHAT WANTED FOUND
expect() { [[ $2 == "$3" ]] || { echo "$1: expected $2, found $3"; status=1; }; }
expect binary "vitrum $version" "$("$2" --version)"
expect pkg-config "Version: $version" "$(grep ^Version: "$build/vitrum.pc")"
expect "newest heading of CHANGELOG.md" "$version" "$(sed -n 's/^## \[\([0-9.]*\)\].*/\1/p' "$1/CHANGELOG.md" | head -1)"
expect "manual page" "vitrum $version" "$("$2" man | sed -n 's/^\.TH .* "\(vitrum [^"]*\)".*/\1/p')"
notes=$("$1/tools/release_notes.sh")
[[ $notes != *"## ["* && $notes == *"### Added"* ]] || { echo "release notes: $notes"; status=1; }
if "$1/tools/release_notes.sh" 99.0 2>/dev/null; then echo "release notes of a version that is none"; status=1; fi
elsewhere=$(grep -rlF "$version" "$1"/{CMakeLists.txt,cmake,packaging,vitrum} --include=CMakeLists.txt --include=*.cmake --include=*.in \
  --include=*.h --include=*.cpp --include=control --include=rules --include=*.sh --include=*.py |
  grep -vx -e "$1/CMakeLists.txt" -e "$1/packaging/debian/symbols.sh" || true)  # that one says when a function came
expect "files with a version of their own" "" "$elsewhere"
exit $status
