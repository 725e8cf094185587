#!/usr/bin/env bash
# make_gallery.sh VITRUM MODEL_DIR PHOTOS: the pictures of docs/explain.md, in docs/images. MODEL_DIR holds
# timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k. The photo that is explained is drawn by draw_balloon.py; of PHOTOS, a
# folder, only the mean attention distance is shown. Needs python3 with numpy and pillow (PYTHON says which).
set -euo pipefail
vitrum=$1 model=$2 photos=$3 python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" "$root/tools/dev/draw_balloon.py" "$scratch/balloon.jpg"
explain() { "$vitrum" explain "$@" --model "$model" --output "$scratch" --quiet > /dev/null; }
explain "$scratch/balloon.jpg" --method attention
explain "$scratch/balloon.jpg" --method rollout --size 360
explain "$scratch/balloon.jpg" --method gradient --size 360
explain "$scratch/balloon.jpg" --method attention --layer 3 --size 360
explain "$photos" --method distance
explain --weight-pictures

# Small files: photos as JPEG, drawings with a palette.
mkdir -p "$root/docs/images"
"$python" - "$scratch" "$root/docs/images" <<'PY'
import pathlib, sys
from PIL import Image
source, target = map(pathlib.Path, sys.argv[1:])
for name in ("rollout", "gradient", "attention-layers", "attention-heads", "attention-03-heads"):
    Image.open(source / f"balloon-{name}.png").save(target / f"balloon-{name}.jpg", quality=80, optimize=True)
Image.open(source / "balloon.jpg").resize((480, 360), Image.LANCZOS).save(target / "balloon.jpg", quality=80, optimize=True)
for name in ("distance", "positions", "positions-centre", "filters"):
    Image.open(source / f"{name}.png").quantize(128).save(target / f"{name}.png", optimize=True)
PY
ls -l "$root/docs/images"
