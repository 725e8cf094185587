#!/usr/bin/env bash
# check_python.sh BUILD_DIR [all]: the Python package against what was built. Without `all` its basics, which need nothing but
# Python; with it everything in python/tests, by pytest.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
export VITRUM_BUILD=$1 PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || { echo "skipped: no python3 of 3.9 or later"; exit 77; }
[[ ${2:-} == all ]] || exec python3 "$root/python/tests/basics.py"
python3 -c 'import pytest' 2>/dev/null || { echo "skipped: python3 has no pytest (Debian's python3-pytest)"; exit 77; }
exec python3 -m pytest -q -p no:cacheprovider "$root/python/tests"
