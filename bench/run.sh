#!/bin/sh
# The training benchmark against PyTorch: makes a virtual environment on first use, then hands over to compare.py.
#   bench/run.sh [compare.py's options]
set -eu
cd "$(dirname "$0")/.."
venv=${VITRUM_BENCH_VENV:-build/bench-venv}
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet torch timm numpy
fi
exec "$venv/bin/python" bench/compare.py "$@"
