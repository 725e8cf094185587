"""Compares resizing and the whole preprocessing with Pillow, byte for byte, on thousands of random cases.

    tools/python.sh tools/check/check_pillow.py [--cases 4000] [--seed 0] [--binary build/release/bench/bench_preprocess]

Resizing: random sizes, all filters, grey and RGB, whole images and windows. Preprocessing: random JPEG, PNG and WebP
files through timm's transforms, torchvision's classes and transformers' rules, with and without EXIF orientation. Needs
Pillow, numpy, timm and torchvision. Exit status 1 where a byte differs.

Which Pillow: 12.0 to 12.3 resize horizontally first, 13.0 vertically first where the height shrinks by more than twice
what the width does; we follow 13.0.
"""

import argparse
import io
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import PIL
from PIL import Image, ImageFile, ImageOps
from timm.data.transforms_factory import transforms_imagenet_eval
from torchvision.transforms import CenterCrop, InterpolationMode, Resize

ImageFile.MAXBLOCK = 1 << 24  # noise makes large files
FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
CROPS = ["squash", "center", "border"]  # timm's, as our CropMode numbers them
CENTER = CROPS.index("center")
HF_SAME = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


class Server:
    def __init__(self, binary):
        self.process = subprocess.Popen([binary, "-", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line, pixels, count):
        self.process.stdin.write(line.encode() + b"\n" + pixels)
        self.process.stdin.flush()
        data = self.process.stdout.read(count)
        if len(data) != count:
            sys.exit(f"bench_preprocess ended at: {line}")
        return np.frombuffer(data, np.uint8)


def planar(image):
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def pixels(rng, h, w, channels):
    """Noise, hard edges or a smooth slope: each finds other mistakes."""
    kind = rng.integers(3)
    shape = (h, w, channels)
    if kind == 0:
        array = rng.integers(0, 256, shape)
    elif kind == 1:
        array = rng.integers(0, 2, shape) * 255
    else:
        array = np.add.outer(np.arange(h) * 2, np.arange(w) * 3)[..., None] + rng.integers(0, 9, shape)
    return array.astype(np.uint8).reshape(shape)


def side(r):
    return r.choice([r.randint(1, 16), r.randint(1, 80), r.randint(50, 400), r.randint(200, 900)])


def check_resize(server, r, rng):
    channels, h, w, nh, nw = r.choice([1, 3]), side(r), side(r), side(r), side(r)
    if r.random() < 0.1:
        nh = h
    if r.random() < 0.1:
        nw = w
    name = r.choice(FILTERS)
    array = pixels(rng, h, w, channels)
    image = Image.fromarray(array[..., 0] if channels == 1 else array)
    expected = planar(image.resize((nw, nh), Image.Resampling[name.upper()]))
    top, left = (0, 0) if r.random() < 0.5 else (r.randrange(nh), r.randrange(nw))
    height, width = (nh, nw) if top == left == 0 else (r.randint(1, nh - top), r.randint(1, nw - left))
    line = f"resize {channels} {h} {w} {nh} {nw} {name} {top} {left} {height} {width}"
    found = server.ask(line, array.transpose(2, 0, 1).tobytes(), channels * height * width)
    return line, expected[:, top : top + height, left : left + width].ravel(), found


def encode(r, array):
    image = Image.fromarray(array)
    format = r.choice(["JPEG", "JPEG", "PNG", "WEBP"])
    options = {"JPEG": {"quality": r.randint(30, 98), "subsampling": r.randint(0, 2), "progressive": r.random() < 0.3},
               "PNG": {}, "WEBP": {"lossless": r.random() < 0.5}}[format]
    exif = Image.Exif()
    exif[0x0112] = r.randint(1, 8)
    data = io.BytesIO()
    image.save(data, format, exif=exif, **options)
    return data.getvalue()


def timm_pixels(image, size, crop_pct, mode, name):
    """timm's own transform, less the tensor and its normalisation."""
    transform = transforms_imagenet_eval(size, crop_pct=crop_pct, crop_mode=mode, interpolation=name)
    for step in transform.transforms[:-2]:
        image = step(image)
    return image


def torchvision_pixels(image, size, resize, name):
    return CenterCrop(size)(Resize(resize, InterpolationMode(name))(image))


def hf_pixels(image, size, resize, name):
    """transformers: shortest_edge, then a crop whose corner is rounded down."""
    w, h = image.size
    short, long = min(w, h), max(w, h)
    target = (resize, int(resize * long / short))
    image = image.resize(target if w <= h else target[::-1], HF_SAME[name])
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))


def check_file(server, r, rng, folder):
    array = pixels(rng, max(2, side(r)), max(2, side(r)), 3)
    if max(array.shape[:2]) > 20 * min(array.shape[:2]):
        array = array[: 20 * array.shape[1], : 20 * array.shape[0]]
    path = folder / "image"
    path.write_bytes(encode(r, array))
    kind = r.choice([*CROPS, "torchvision", "hf"])
    exif, grey = r.random() < 0.3, r.random() < 0.2 and kind != "border"  # whose colour has three channels
    image = Image.open(path)
    image = ImageOps.exif_transpose(image) if exif else image
    image = image.convert("RGB")
    image = image.convert("L") if grey else image
    size, crop_pct, resize, crop, floor = (r.choice([32, 97, 160, 224, 225]),) * 2, 1.0, 0, CENTER, 0
    name = r.choice(["nearest", "bilinear", "bicubic", "lanczos"])
    if kind in CROPS:
        name, crop_pct = r.choice(["bilinear", "bicubic", "lanczos"]), r.choice([0.875, 0.9, 0.95, 1.0])
        crop = CROPS.index(kind)
        if r.random() < 0.4:
            size = size[0], r.choice([40, 128, 230])
        expected = timm_pixels(image, size, crop_pct, kind, name)
    else:
        resize = size[0] + r.choice([0, 1, 24, 31, 32])
        floor = int(kind == "hf")
        expected = (hf_pixels if floor else torchvision_pixels)(image, size[0], resize, name)
    channels = 1 if grey else 3
    line = f"file {int(exif)} {size[0]} {size[1]} {channels} {name} {crop_pct} {resize} {crop} {floor} {path}"
    found = server.ask(line, b"", channels * size[0] * size[1])
    return f"{kind} {image.size} {line}", planar(expected).ravel(), found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--binary", default="build/release/bench/bench_preprocess")
    args = parser.parse_args()
    r, rng = random.Random(args.seed), np.random.default_rng(args.seed)
    server, wrong, counts = Server(args.binary), 0, {"resize": 0, "file": 0}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.cases):
            whole = i % 4 == 3
            line, expected, found = (
                check_file(server, r, rng, pathlib.Path(folder)) if whole else check_resize(server, r, rng))
            counts["file" if whole else "resize"] += 1
            if not np.array_equal(expected, found):
                wrong += 1
                bytes_off = int((expected != found).sum()) if expected.shape == found.shape else -1
                print(f"DIFFERS in {bytes_off} of {expected.size} bytes: {line}")
                if wrong > 10:
                    break
    print(f"Pillow {PIL.__version__}: {counts['resize']} resizes and {counts['file']} whole files, {wrong} differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
