#!/usr/bin/env bash
# tools/python.sh SCRIPT [ARGUMENTS]: runs a script of tools/ or bench/ with the packages it compares with, in a virtual environment
# that is made on first use (below build/, or VITRUM_VENV).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
  *check_serve*) list=tools/check/requirements.txt venv=build/venv-serve ;;  # clients of servers pin versions of their own
  *) list=tools/requirements.txt venv=build/venv ;;
esac
venv=${VITRUM_VENV:-$root/$venv}
if [[ ! -x $venv/bin/python ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --requirement "$root/$list"
fi
exec "$venv/bin/python" "$@"
