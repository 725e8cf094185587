"""Writes tests/golden/augment.txt: checksums of a computed image after each augmentation of Pillow, timm and torchvision.

    tools/python.sh tools/golden/augment_golden.py > tests/golden/augment.txt

Lines are requests as bench/augment.cpp takes them, with the CRC-32 of the planar pixels that come out.
"""

import math
import zlib

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from timm.data import auto_augment
from torchvision.transforms import InterpolationMode, autoaugment, functional

FILTERS = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
FILL = (124, 116, 104)


def picture(channels, height, width):
    """Slopes, an edge and some noise: tests/data/augment_test.cpp computes the same."""
    c, y, x = np.mgrid[0:channels, 0:height, 0:width]
    return ((3 * x + 5 * y + 40 * c + (x * y * (c + 3)) % 29 * 4 + np.where(x > width // 2, 90, 0)) % 256).astype(np.uint8)


def crc(image):
    pixels = np.asarray(image)
    return zlib.crc32(np.ascontiguousarray(pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)).tobytes())


def edit(image, kind, theirs, value=0.0, matrix=(1, 0, 0, 0, 1, 0), filter="bicubic"):
    h, w, c = image.size[1], image.size[0], len(image.getbands())
    numbers = " ".join(repr(float(m)) for m in (value, *matrix))
    print(f"edit {kind} {numbers} {filter} {FILL[0]} {FILL[1]} {FILL[2]} {c} {h} {w} {crc(theirs)}")


def edits(image):
    edit(image, "auto-contrast", ImageOps.autocontrast(image))
    edit(image, "equalize", ImageOps.equalize(image))
    edit(image, "invert", ImageOps.invert(image))
    edit(image, "posterize", ImageOps.posterize(image, 3), 3)
    edit(image, "solarize", ImageOps.solarize(image, 100.5), 100.5)
    edit(image, "solarize-add", image.point([min(255, i + 70) if i < 128 else i for i in range(256)] * len(image.getbands())), 70)
    for factor in (0.3, 1.7):
        edit(image, "color", ImageEnhance.Color(image).enhance(factor), factor)
        edit(image, "contrast", ImageEnhance.Contrast(image).enhance(factor), factor)
        edit(image, "brightness", ImageEnhance.Brightness(image).enhance(factor), factor)
        edit(image, "sharpness", ImageEnhance.Sharpness(image).enhance(factor), factor)
    for radius in (0.4, 2.0, 5.0):
        edit(image, "blur", image.filter(ImageFilter.GaussianBlur(radius)), radius)
    if image.mode == "RGB":
        for turn in (-0.3, 0.1):
            edit(image, "hue", functional.adjust_hue(image, turn), turn)
    matrices = [(1, 0, 3.25, 0, 1, 0), (1, 0, 0, 0, 1, -4), (1, 0.3, 0, 0, 1, 0), (1, 0, 0, -0.2, 1, 0)]
    matrices.append((math.cos(0.4), math.sin(0.4), -3.5, -math.sin(0.4), math.cos(0.4), 6.25))
    for matrix in matrices:
        for name, filter in FILTERS.items():
            fill = FILL if image.mode == "RGB" else FILL[0]
            theirs = image.transform(image.size, Image.Transform.AFFINE, matrix, filter, fillcolor=fill)
            edit(image, "affine", theirs, 0, matrix, name)


def operations(image):
    h, w = image.size[1], image.size[0]
    for name in auto_augment.NAME_TO_OP:
        if name in ("TranslateX", "TranslateY", "GaussianBlurRand"):
            continue
        for level, draw in ((4.77, 0.25), (9, 0.75)):
            op = auto_augment.AugmentOp(name, 1.0, level, dict(img_mean=FILL, interpolation=FILTERS["bicubic"]))
            auto_augment.random.random = lambda: draw
            ours = name.removesuffix("Rel")
            print(f"op rand {ours} {level} {draw} bicubic {FILL[0]} {FILL[1]} {FILL[2]} 3 {h} {w} {crc(op(image))}")
    spaces = {"trivial": autoaugment.TrivialAugmentWide()._augmentation_space(31), "auto-cifar10": autoaugment.AutoAugment()._augmentation_space(10, (h, w))}
    for policy, space in spaces.items():
        for name, (magnitudes, _) in space.items():
            for level, draw in ((len(magnitudes) // 2, 0.25), (len(magnitudes) * 5 // 6, 0.75)) if magnitudes.ndim else ((0, 0.25),):
                magnitude = float(magnitudes[level]) if magnitudes.ndim else 0.0
                signed = -magnitude if draw > 0.5 and space[name][1] else magnitude
                theirs = autoaugment._apply_op(image, name, signed, InterpolationMode.NEAREST, None)
                print(f"op {policy} {name} {level} {draw} nearest 0 0 0 3 {h} {w} {crc(theirs)}")


def main():
    rgb = Image.fromarray(picture(3, 33, 40).transpose(1, 2, 0))
    edits(rgb)
    edits(Image.fromarray(picture(1, 9, 7)[0]))
    operations(rgb)


if __name__ == "__main__":
    main()
