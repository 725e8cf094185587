#!/usr/bin/env bash
# check_python.sh BUILD_DIR: the tests of python/ against what was built; without pytest the basics of them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
export VITRUM_BUILD=$1 PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || { echo "skipped: no python3 of 3.9 or later"; exit 77; }
if python3 -c 'import pytest' 2>/dev/null; then exec python3 -m pytest -q -p no:cacheprovider "$root/python/tests"; fi
exec python3 "$root/python/tests/basics.py"
