"""Compares every augmentation with Pillow, timm and torchvision, byte for byte, on photos and small images.

    tools/python.sh tools/check/check_augment.py --images DIR [--binary build/release/bench/bench_augment]

Edits are compared with Pillow's own calls at many magnitudes; policy operations, from their level, with timm's and
torchvision's; resized crops of files with torchvision's. Needs Pillow, numpy, torch, torchvision and timm.
"""

import argparse
import math
import pathlib
import random
import subprocess
import sys

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

FILTERS = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
IDENTITY = (1, 0, 0, 0, 1, 0)


class Server:
    def __init__(self, binary):
        self.process = subprocess.Popen([binary, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, request, image):
        """Sends a request about `image`; the answer is an image of the same size."""
        pixels = np.asarray(image)
        planar = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        channels, height, width = planar.shape
        self.process.stdin.write(f"{request} {channels} {height} {width}\n".encode() + planar.tobytes())
        self.process.stdin.flush()
        answer = np.frombuffer(self.process.stdout.read(planar.size), np.uint8).reshape(planar.shape)
        return answer[0] if pixels.ndim == 2 else answer.transpose(1, 2, 0)

    def edit(self, image, kind, value=0.0, matrix=IDENTITY, filter="bicubic", fill=(0, 0, 0)):
        numbers = " ".join(repr(float(m)) for m in matrix)
        return self.ask(f"edit {kind} {float(value)!r} {numbers} {filter} {fill[0]} {fill[1]} {fill[2]}", image)


class Tally:
    def __init__(self):
        self.failed = 0
        self.counts = {}

    def check(self, group, what, ours, theirs):
        theirs = np.asarray(theirs)
        seen, wrong = self.counts.get(group, (0, 0))
        off = int((ours.astype(int) != theirs).sum())
        self.counts[group] = (seen + 1, wrong + (off > 0))
        if off:
            self.failed += 1
            if self.failed <= 20:
                worst = np.abs(ours.astype(int) - theirs).max()
                print(f"  {group} {what}: {off} of {theirs.size} bytes differ, by up to {worst}")


def fill_of(image, fill):
    return fill[0] if image.mode == "L" else fill


def check_edits(server, tally, image):
    def same(kind, theirs, value=0.0):
        tally.check(kind, f"{value} {image.size} {image.mode}", server.edit(image, kind, value), theirs)

    same("auto-contrast", ImageOps.autocontrast(image))
    same("equalize", ImageOps.equalize(image))
    same("invert", ImageOps.invert(image))
    for bits in range(1, 9):  # Pillow 13 refuses 0, which older releases made black
        same("posterize", ImageOps.posterize(image, bits), bits)
    for threshold in (0, 0.5, 17, 64.6, 127.5, 128, 200, 255, 256):
        same("solarize", ImageOps.solarize(image, threshold), threshold)
    for add in (0, 1, 33, 60, 110, 128):
        lut = [min(255, i + add) if i < 128 else i for i in range(256)]
        same("solarize-add", image.point(lut * len(image.getbands())), add)
    for factor in (0, 0.01, 0.1, 1 / 3, 0.5, 0.77, 0.999, 1, 1.001, 1.25, 1.9, 2.5):
        same("color", ImageEnhance.Color(image).enhance(factor), factor)
        same("contrast", ImageEnhance.Contrast(image).enhance(factor), factor)
        same("brightness", ImageEnhance.Brightness(image).enhance(factor), factor)
        same("sharpness", ImageEnhance.Sharpness(image).enhance(factor), factor)
    for radius in (0.1, 0.3, 0.5, 0.9, 1.0, 1.3, 1.7, 2.0, 3.3, 8.0):
        same("blur", image.filter(ImageFilter.GaussianBlur(radius)), radius)
    if image.mode == "RGB":
        from torchvision.transforms import functional

        for turn in (-0.5, -0.33, -0.1, -0.004, 0, 0.004, 0.1, 0.27, 0.5):
            same("hue", functional.adjust_hue(image, turn), turn)


def check_affine(server, tally, image, draws):
    fill = (124, 116, 104)
    w, h = image.size
    matrices = [(1, 0, 3.5, 0, 1, 0), (1, 0, 0, 0, 1, -7), (1, 0.3, 0, 0, 1, 0), (1, 0, 0, -0.21, 1, 0), (0.5, 0, 1, 0, 2, 3)]
    for _ in range(draws):
        a, b = random.uniform(-3, 3), random.uniform(-0.5, 0.5)
        matrices.append((math.cos(a), math.sin(a) + b, random.uniform(-w, w), -math.sin(a), math.cos(a), random.uniform(-h, h)))
    for matrix in matrices:
        for name, filter in FILTERS.items():
            theirs = image.transform(image.size, Image.Transform.AFFINE, matrix, filter, fillcolor=fill_of(image, fill))
            ours = server.edit(image, "affine", 0, matrix, name, fill)
            tally.check(f"affine {name}", f"{matrix} {image.size}", ours, theirs)


def check_timm(server, tally, image):
    """Operations from their level, 0 to 10, as timm's RandAugment and AutoAugment have them."""
    from timm.data import auto_augment

    fill = (124, 116, 104)
    for name in auto_augment.NAME_TO_OP:
        if name in ("TranslateX", "TranslateY", "GaussianBlurRand"):  # absolute pixels; a draw of its own
            continue
        ours_name = name.removesuffix("Rel")
        for level in (0, 0.31, 2, 4.77, 5, 8.6, 9, 10):
            for draw in (0.25, 0.75):
                for filter in ("bilinear", "bicubic"):
                    hparams = dict(img_mean=fill_of(image, fill), interpolation=FILTERS[filter])
                    op = auto_augment.AugmentOp(name, prob=1.0, magnitude=level, hparams=hparams)
                    patched, auto_augment.random.random = auto_augment.random.random, lambda: draw
                    try:
                        theirs = op(image)
                    except ValueError as error:  # Pillow 13 refuses to keep 0 bits
                        assert "bits" in str(error)
                        continue
                    finally:
                        auto_augment.random.random = patched
                    request = f"op rand {ours_name} {level} {draw} {filter} {fill[0]} {fill[1]} {fill[2]}"
                    tally.check(f"timm {name}", f"{level} {draw} {filter} {image.size}", server.ask(request, image), theirs)


def check_torchvision(server, tally, image):
    """Operations from their bins, as torchvision's TrivialAugmentWide and AutoAugment have them."""
    from torchvision.transforms import InterpolationMode, autoaugment

    w, h = image.size
    spaces = {"trivial": autoaugment.TrivialAugmentWide()._augmentation_space(31), "auto-cifar10": autoaugment.AutoAugment()._augmentation_space(10, (h, w))}
    for policy, space in spaces.items():
        for name, (magnitudes, signed) in space.items():
            for level in range(len(magnitudes) if magnitudes.ndim else 1):
                for draw in (0.25, 0.75) if signed else (0.25,):
                    for filter in ("nearest", "bilinear"):
                        magnitude = float(magnitudes[level]) if magnitudes.ndim else 0.0
                        mode = InterpolationMode(filter)
                        theirs = autoaugment._apply_op(image, name, -magnitude if draw > 0.5 else magnitude, mode, None)
                        request = f"op {policy} {name} {level} {draw} {filter} 0 0 0"
                        tally.check(f"{policy} {name}", f"{level} {draw} {filter} {image.size}", server.ask(request, image), theirs)


def check_crops(server, tally, paths):
    """A resized crop of a file: only the window is decoded."""
    from torchvision.transforms import InterpolationMode, RandomResizedCrop, functional

    for path in paths:
        image = Image.open(path).convert("RGB")
        for filter in ("bilinear", "bicubic"):
            top, left, rows, columns = RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3))
            theirs = functional.resized_crop(image, top, left, rows, columns, [224, 224], InterpolationMode(filter))
            server.process.stdin.write(f"crop {top} {left} {rows} {columns} {filter} 224 {path}\n".encode())
            server.process.stdin.flush()
            ours = np.frombuffer(server.process.stdout.read(3 * 224 * 224), np.uint8).reshape(3, 224, 224).transpose(1, 2, 0)
            tally.check(f"resized crop {filter}", str(path), ours, theirs)


def image_paths(args):
    return sorted(p for p in pathlib.Path(args.images).rglob("*") if p.suffix.lower() in (".jpeg", ".jpg", ".png"))


def photos(args):
    paths = image_paths(args)
    chosen = [Image.open(p).convert("RGB") for p in paths[:: max(1, len(paths) // args.photos)][: args.photos]]
    rng = np.random.default_rng(0)
    small = [photo.resize((32, 32)) for photo in chosen] + [photo.resize((224, 224)) for photo in chosen]
    noise = [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for h, w in ((1, 1), (2, 3), (7, 9), (33, 17), (256, 256))]
    flat = [Image.new("RGB", (20, 12), (7, 200, 255))]
    return small + noise + flat + [small[0].convert("L"), noise[3].convert("L")] + chosen[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--photos", type=int, default=4)
    parser.add_argument("--binary", default="build/release/bench/bench_augment")
    args = parser.parse_args()
    random.seed(0)
    server, tally = Server(args.binary), Tally()
    for image in photos(args):
        check_edits(server, tally, image)
        check_affine(server, tally, image, 6)
        check_timm(server, tally, image)
        check_torchvision(server, tally, image)
    check_crops(server, tally, image_paths(args))
    for group, (seen, wrong) in tally.counts.items():
        print(f"{group:24} {seen - wrong} of {seen} equal")
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    main()
