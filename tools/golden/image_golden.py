#!/usr/bin/env python3
"""Writes what Pillow makes of resizes and image files, for tests/data/resize_test.cpp and tests/data/decode_test.cpp.

    tools/golden/image_golden.py [--cases 600] [--seed 1] [--output tests/golden]

resize.txt: the version of Pillow (13 or later: older ones order the passes differently), then one resize a line,
`channels height width new_height new_width filter seed crc32`; the input is drawn from the seed by the same generator
as in the test. images/: small files of every kind; images/expected.txt: `file height width crc32`. Checksums are over
planar bytes, channel by channel. Needs Pillow, pillow-heif and NumPy.
"""
import argparse
import io
import pathlib
import random
import struct
import zlib

import numpy as np
import PIL
from PIL import Image

FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


def generated(channels, height, width, seed):
    """Noise, hard edges or a gradient with noise, as seed % 3 says."""
    state, values = seed, []
    for i in range(channels * height * width):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        noise = state >> 24
        values.append([noise, 255 if noise > 127 else 0, (i * 3 + (noise >> 5)) & 255][seed % 3])
    return np.array(values, np.uint8).reshape(channels, height, width)


def planar_crc(image):
    array = np.asarray(image)
    planar = array if array.ndim == 2 else array.transpose(2, 0, 1)
    return zlib.crc32(np.ascontiguousarray(planar).tobytes())


def resize_line(rng, seed):
    name = rng.choice(FILTERS)
    channels = rng.choice([1, 3])
    size = lambda: rng.choice([1, 2, rng.randint(3, 20), rng.randint(20, 70), rng.randint(70, 130)])
    height, width, new_height, new_width = size(), size(), size(), size()
    new_height = height if rng.random() < 0.1 else new_height
    new_width = width if rng.random() < 0.1 else new_width
    pixels = generated(channels, height, width, seed)
    image = Image.fromarray(pixels[0] if channels == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    resized = image.resize((new_width, new_height), getattr(Image.Resampling, name.upper()))
    return f"{channels} {height} {width} {new_height} {new_width} {name} {seed} {planar_crc(resized)}"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width, height, depth, color, seed, extra=b""):
    """Kinds of PNG that Pillow reads but does not write."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    stride = (width * samples * depth + 7) // 8
    noise = random.Random(seed)
    rows = b"".join(b"\0" + noise.randbytes(stride) for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b""))


def encoded(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def image_files():
    smooth = Image.fromarray(generated(3, 21, 33, 2).transpose(1, 2, 0)).resize((67, 45), Image.Resampling.BICUBIC)
    grey, alpha = smooth.convert("L"), smooth.copy()
    alpha.putalpha(grey)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    palette = chunk(b"PLTE", bytes(range(30, 30 + 3 * 5)))
    files = {
        "rgb420.jpg": encoded(smooth, "JPEG", subsampling="4:2:0"),
        "rgb422.jpg": encoded(smooth, "JPEG", subsampling="4:2:2"),
        "rgb444.jpg": encoded(smooth, "JPEG", subsampling="4:4:4", quality=95),
        "progressive.jpg": encoded(smooth, "JPEG", progressive=True),
        "restart.jpg": encoded(smooth, "JPEG", restart_marker_blocks=2),
        "exif.jpg": encoded(smooth, "JPEG", exif=exif),
        "keeprgb.jpg": encoded(smooth, "JPEG", keep_rgb=True),
        "grey.jpg": encoded(grey, "JPEG"),
        "cmyk.jpg": encoded(smooth.convert("CMYK"), "JPEG"),
        "one.jpg": encoded(smooth.resize((1, 1)), "JPEG"),
        "rgb.png": encoded(smooth, "PNG"),
        "rgba.png": encoded(alpha, "PNG"),
        "grey.png": encoded(grey, "PNG"),
        "greyalpha.png": encoded(alpha.convert("LA"), "PNG"),
        "palette.png": encoded(smooth.quantize(200), "PNG"),
        "palette4.png": encoded(smooth.quantize(9), "PNG", bits=4, transparency=3),
        "bilevel.png": encoded(grey.convert("1"), "PNG"),
        "one.png": encoded(smooth.resize((1, 1)), "PNG"),
        "lossy.webp": encoded(smooth, "WEBP", quality=80),
        "lossless.webp": encoded(smooth, "WEBP", lossless=True),
        "alpha.webp": encoded(alpha, "WEBP", quality=70),
        "exact.webp": encoded(alpha, "WEBP", lossless=True, exact=True),
        "short-palette.png": raw_png(9, 7, 8, 3, 1, palette),
        "transparent-palette.png": raw_png(9, 7, 2, 3, 2, palette + chunk(b"tRNS", b"\0\x80")),
        "transparent-rgb.png": raw_png(9, 7, 8, 2, 3, chunk(b"tRNS", bytes(6))),
    }
    for color, name in {0: "grey", 2: "rgb", 4: "greyalpha", 6: "rgba"}.items():
        files[f"{name}16.png"] = raw_png(9, 7, 16, color, color)
    for depth in (1, 2, 4):
        files[f"grey{depth}.png"] = raw_png(9, 7, depth, 0, depth)
    return files | other_files(smooth)


def gif_on_canvas(image):
    """The picture lies at (3, 5) of a larger canvas, what it leaves free is of the transparent colour."""
    data = bytearray(encoded(image, "GIF", transparency=4, interlace=0))
    at = data.index(b",\0\0\0\0")
    data[6:10] = struct.pack("<HH", image.width + 9, image.height + 11)
    data[at + 1:at + 5] = struct.pack("<HH", 3, 5)
    return bytes(data)


def raw_bmp(width, height, bits, seed, masks=(), core=False):
    stride = (width * bits + 31) // 32 * 4
    rows = random.Random(seed).randbytes(stride * abs(height))
    if core:
        header = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        header = struct.pack("<IiiHHIIIIII", 40, width, height, 1, bits, 3 if masks else 0, 0, 0, 0, 0, 0)
        header += struct.pack(f"<{len(masks)}I", *masks)
    start = 14 + len(header)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + header + rows


def other_files(smooth):
    """GIF, BMP and TIFF, of which we read the same bytes."""
    grey, few, small = smooth.convert("L"), smooth.quantize(30), smooth.resize((23, 17))
    files = {
        "palette.gif": encoded(few, "GIF", interlace=0),
        "interlaced.gif": encoded(smooth.quantize(200), "GIF", interlace=1),
        "canvas.gif": gif_on_canvas(few),
        "grey.gif": encoded(grey, "GIF"),
        "noise.gif": encoded(Image.fromarray(generated(1, 70, 90, 0)[0]), "GIF", interlace=0),
        "animated.gif": encoded(few, "GIF", save_all=True, append_images=[few.rotate(180)]),
        "bilevel.bmp": encoded(small.convert("1"), "BMP"),
        "grey.bmp": encoded(small.convert("L"), "BMP"),
        "palette.bmp": encoded(small.quantize(9), "BMP"),
        "rgb.bmp": encoded(small, "BMP"),
        "rgba.bmp": encoded(small.convert("RGBA"), "BMP"),
        "rgb555.bmp": raw_bmp(9, 7, 16, 1),
        "rgb565.bmp": raw_bmp(9, 7, 16, 2, (0xF800, 0x7E0, 0x1F)),
        "downwards.bmp": raw_bmp(9, -7, 24, 3),
        "masked32.bmp": raw_bmp(9, 7, 32, 4, (0xFF000000, 0xFF0000, 0xFF00)),
        "core.bmp": raw_bmp(9, 7, 24, 5, core=True),
    }
    for name, image in {"grey": small.convert("L"), "rgb": small, "rgba": small.convert("RGBA"),
                        "palette": small.quantize(40), "greyalpha": small.convert("LA")}.items():
        files[f"{name}.tif"] = encoded(image, "TIFF")
    for kind in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        files[f"{kind}.tif"] = encoded(small, "TIFF", compression=kind)
    for orientation in (3, 6):
        files[f"turned{orientation}.tif"] = encoded(small, "TIFF", tiffinfo={274: orientation})
    return files


def write_lossy(folder, smooth):
    """HEIC and AVIF, each beside a PNG of what pillow-heif and Pillow read: equal but for rounding."""
    import pillow_heif
    pillow_heif.register_heif_opener()
    exif = Image.Exif()
    exif[0x0112] = 6
    image = smooth.resize((32, 48))
    for name, data in {
        "photo.heic": encoded(image, "HEIF", quality=90, chroma=444),
        "turned.heic": encoded(image, "HEIF", quality=90, chroma=444, exif=exif),
        "photo.avif": encoded(image, "AVIF", quality=90, subsampling="4:4:4"),
    }.items():
        (folder / name).write_bytes(data)
        Image.open(io.BytesIO(data)).convert("RGB").save(folder / (name + ".png"), exif=b"")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden")
    arguments = parser.parse_args()
    folder = arguments.output / "images"
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    lines = [resize_line(rng, arguments.seed + i) for i in range(arguments.cases)]
    (arguments.output / "resize.txt").write_text("\n".join([f"# Pillow {PIL.__version__}"] + lines) + "\n")
    write_lossy(folder, Image.fromarray(generated(3, 21, 33, 2).transpose(1, 2, 0)))
    expected = []
    for name, data in image_files().items():
        (folder / name).write_bytes(data)
        image = Image.open(io.BytesIO(data)).convert("RGB")
        expected.append(f"{name} {image.height} {image.width} {planar_crc(image)}")
    (folder / "expected.txt").write_text("\n".join(expected) + "\n")


if __name__ == "__main__":
    main()
