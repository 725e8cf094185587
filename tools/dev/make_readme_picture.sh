#!/usr/bin/env bash
# make_readme_picture.sh VITRUM RUN: docs/images/report.png, parts of the report of RUN as chromium shows them. RUN is one of
# recipes/fashion-mnist.toml, so that its images may be shown. Needs chromium and python3 with pillow (PYTHON says which).
set -euo pipefail
vitrum=$1 run=$2 python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$vitrum" report "$run" --output "$scratch/page.html" --quiet > /dev/null
# Five figures fill a row; how long it took says more of the machine that made the picture than of the program.
hidden='.figure:nth-child(3), .figure:nth-child(4), nav, .head > button, #classes, #uncertain, [data-chart="Learning rate"], [data-chart="Images a second"]'
sed -i "s|</style>|$hidden { display: none !important; } h2 { margin-top: 20px; } .axis-name, #confusion p, #mistakes p, #mistakes .bar { display: none; }</style>|" "$scratch/page.html"
# A scale of 1.5 stays sharp on dense screens.
chromium --headless --no-sandbox --hide-scrollbars --force-device-scale-factor=1.5 --window-size=1000,1600 \
  --virtual-time-budget=2000 --screenshot="$scratch/page.png" "file://$scratch/page.html" 2> /dev/null
"$python" - "$scratch/page.png" "$root/docs/images/report.png" <<'PY'
import sys
from PIL import Image
source, target = sys.argv[1:]
page = Image.open(source).convert("RGB")
page.crop((0, 0, page.width, int(1.5 * 1344))).quantize(200, dither=Image.Dither.NONE).save(target, optimize=True)
PY
ls -l "$root/docs/images/report.png"
