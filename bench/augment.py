"""DeiT's training pipeline against timm's, on one thread, in turns.

    tools/python.sh bench/augment.py --images DIR [--binary build/release/bench/bench_augment]

Both sides get the bytes of the files and make a tensor of 224 x 224: decode, RandomResizedCrop (bicubic), flip,
rand-m9-mstd0.5-inc1 with timm's default of no colour jitter beside it, erase 0.25. timm normalises on the host and
erases floats, its default; Vitrum's tensor is bytes, and the device normalises. Prints processor milliseconds per photo,
the best of the rounds. A second line is timm with its prefetcher's transforms, which also leaves normalising and
erasing to the device. Needs timm and torchvision.
"""

import argparse
import io
import json
import pathlib
import random
import subprocess
import time

import numpy as np
import PIL
import timm
import torch
from PIL import Image
from timm.data import create_transform


def timm_once(files, transform):
    decode = total = 0.0
    for data in files:
        start = time.thread_time()
        image = Image.open(io.BytesIO(data)).convert("RGB")
        decode += time.thread_time() - start
        transform(image)
        total += time.thread_time() - start
    return total, decode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--binary", default="build/release/bench/bench_augment")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    paths = sorted(str(p) for p in pathlib.Path(args.images).iterdir() if p.suffix.lower() in (".jpeg", ".jpg"))
    files = [pathlib.Path(p).read_bytes() for p in paths]
    settings = dict(is_training=True, auto_augment="rand-m9-mstd0.5-inc1", interpolation="bicubic")
    full = create_transform(224, re_prob=0.25, re_mode="pixel", **settings)
    bare = create_transform(224, use_prefetcher=True, **settings)

    rows = {"timm": [], "timm, bytes": [], "Vitrum": []}
    for _ in range(args.rounds):
        rows["timm"].append(timm_once(files, full))
        rows["timm, bytes"].append(timm_once(files, bare))
        answer = json.loads(subprocess.run([args.binary, "time", "1", *paths], check=True, capture_output=True).stdout)
        rows["Vitrum"].append((answer["total"] * len(files) / 1000, answer["decode"] * len(files) / 1000))
    print(f"{len(files)} photos, timm {timm.__version__}, Pillow {PIL.__version__}")
    print(f"{'':14}{'decode':>9}{'rest':>9}{'total':>9}   ms per photo on one thread, and images per second")
    best = {name: min(times) for name, times in rows.items()}
    for name, (total, decode) in best.items():
        total, decode = 1000 * total / len(files), 1000 * decode / len(files)
        ratio = best["timm"][0] / best[name][0]
        print(f"{name:14}{decode:9.3f}{total - decode:9.3f}{total:9.3f}{1000 / total:9.0f}   {ratio:.2f} x timm")


if __name__ == "__main__":
    main()
