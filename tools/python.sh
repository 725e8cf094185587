#!/usr/bin/env bash
# tools/python.sh SCRIPT [ARGUMENTS]: runs a script of tools/ or bench/ with the packages of tools/requirements.txt, in a virtual
# environment that is made on first use (build/venv, or VITRUM_VENV).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${VITRUM_VENV:-$root/build/venv}
if [[ ! -x $venv/bin/python ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --requirement "$root/tools/requirements.txt"
fi
exec "$venv/bin/python" "$@"
