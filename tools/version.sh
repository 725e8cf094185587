#!/usr/bin/env bash
# Prints the version, which is written once: in the project() line of CMakeLists.txt.
set -euo pipefail
sed -n 's/^project(vitrum VERSION \([0-9.]*\).*/\1/p' "$(dirname "$0")/../CMakeLists.txt" | grep .
