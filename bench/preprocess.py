"""Decoding, resizing and cropping photos against Pillow, on one thread, in turns.

    tools/python.sh bench/preprocess.py --model DIR --images DIR [--binary build/release/bench/bench_preprocess]

Both sides get the bytes of the files and do what timm does for evaluation: RGB, the shorter side to floor(size /
crop_pct), centre crop. Prints processor milliseconds per photo, the best of the rounds, and the ratio. Needs Pillow.
"""

import argparse
import io
import json
import math
import pathlib
import subprocess
import time

import PIL
from PIL import Image, features

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR, "lanczos": Image.Resampling.LANCZOS}


def pillow_once(files, size, resize, filter):
    decode = total = 0.0
    for data in files:
        start = time.thread_time()
        image = Image.open(io.BytesIO(data)).convert("RGB")
        image.load()
        decode += time.thread_time() - start
        w, h = image.size
        target = (resize, int(resize * h / w)) if w <= h else (int(resize * w / h), resize)
        image = image.resize(target, filter)
        left, top = round((target[0] - size) / 2), round((target[1] - size) / 2)
        image.crop((left, top, left + size, top + size)).load()
        total += time.thread_time() - start
    return total, decode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", required=True)
    parser.add_argument("--binary", default="build/release/bench/bench_preprocess")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    paths = sorted(str(p) for p in pathlib.Path(args.images).iterdir() if p.suffix.lower() in (".jpeg", ".jpg", ".png"))
    files = [pathlib.Path(p).read_bytes() for p in paths]
    config = json.loads((pathlib.Path(args.model) / "config.json").read_text())["pretrained_cfg"]
    size = config["input_size"][1]
    resize = math.floor(size / config["crop_pct"])

    pillow, ours = [], []
    for _ in range(args.rounds):
        pillow.append(pillow_once(files, size, resize, FILTERS[config["interpolation"]]))
        command = [args.binary, args.model, "time", "1", *paths]
        ours.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    total, decode = min(pillow)
    total, decode = 1000 * total / len(files), 1000 * decode / len(files)
    best = min(ours, key=lambda t: t["total"])
    print(f"{len(files)} photos, Pillow {PIL.__version__} with libjpeg-turbo {features.version('libjpeg_turbo')}")
    print(f"{'':10}{'decode':>9}{'resize':>9}{'total':>9}   ms per photo on one thread")
    print(f"{'Pillow':10}{decode:9.3f}{total - decode:9.3f}{total:9.3f}")
    print(f"{'Vitrum':10}{best['decode']:9.3f}{best['resize']:9.3f}{best['total']:9.3f}")
    print(f"ratio     {decode / best['decode']:9.2f}{(total - decode) / best['resize']:9.2f}{total / best['total']:9.2f}")


if __name__ == "__main__":
    main()
