#!/usr/bin/env python3
"""Compares what we read of GIF, BMP, TIFF, HEIC and AVIF files with Pillow and pillow-heif, on random files.

    tools/python.sh tools/check/check_codecs.py [--cases 600] [--seed 0] [--binary build/release/tests/dump_pixels]

GIF, BMP and TIFF must be the same bytes. HEIC and AVIF come from other builds of their codecs there, whose conversion to
RGB rounds differently: within 2 levels, on files without subsampled colours. Needs Pillow, pillow-heif and NumPy. Exit
status 1 where an image differs.
"""
import argparse
import io
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import numpy as np
import pillow_heif
from PIL import Image

pillow_heif.register_heif_opener()


def drawn(r, width, height):
    """Noise, or a slope: one has every code of a palette, the other compresses."""
    rng = np.random.default_rng(r.randrange(1 << 30))
    if r.random() < 0.5:
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([(x * 5) % 256, (y * 3) % 256, (x + y) % 256], 2).astype(np.uint8))


def encoded(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def gif(r, image):
    colors = r.choice([2, 3, 7, 16, 100, 256])
    options = {"interlace": r.randrange(2)}
    if r.random() < 0.3:
        options["transparency"] = r.randrange(colors)
    if r.random() < 0.3:
        image = image.convert("L")
    data = bytearray(encoded(image.quantize(colors), "GIF", **options))
    if r.random() < 0.3:  # a canvas larger than the picture on it
        at = data.index(b",", 13 + 3 * (2 << (data[10] & 7)) if data[10] & 128 else 13)
        data[6:10] = struct.pack("<HH", image.width + 9, image.height + 5)
        if data[at + 1:at + 5] == bytes(4):
            data[at + 1:at + 5] = struct.pack("<HH", r.randrange(9), r.randrange(12))
    return bytes(data)


def bmp(r, image):
    mode = r.choice(["1", "L", "P", "RGB", "RGBA", "16", "565", "core"])
    if mode in ("1", "L", "P", "RGB", "RGBA"):
        return encoded(image.convert(mode), "BMP")
    noise = r.randbytes
    if mode == "core":
        stride = (3 * image.width + 3) // 4 * 4
        header = struct.pack("<IHHHH", 12, image.width, image.height, 1, 24)
    else:
        stride = (2 * image.width + 3) // 4 * 4
        masks = struct.pack("<III", 0xF800, 0x7E0, 0x1F) if mode == "565" else b""
        height = image.height if r.random() < 0.7 else -image.height
        header = struct.pack("<IiiHHIIIIII", 40, image.width, height, 1, 16, 3 if masks else 0, 0, 0, 0, 0, 0) + masks
    rows = noise(stride * image.height)
    start = 14 + len(header)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + header + rows


def tiff(r, image):
    mode = r.choice(["L", "P", "RGB", "RGBA", "LA"])
    kind = r.choice(["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
    if kind == "jpeg" and mode not in ("L", "RGB"):
        kind = "raw"
    image = image.convert(mode)
    options = {} if kind == "raw" else {"compression": kind}
    return encoded(image, "TIFF", tiffinfo={274: r.randint(1, 8)}, **options)


def heic(r, image):
    return encoded(image, "HEIF", quality=r.choice([50, 90]), chroma=444)


def avif(r, image):
    return encoded(image, "AVIF", quality=r.choice([50, 90]), subsampling="4:4:4")


KINDS = {"gif": (gif, 0), "bmp": (bmp, 0), "tiff": (tiff, 0), "heic": (heic, 2), "avif": (avif, 2)}


class Reader:
    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, path):
        self.process.stdin.write(f"{path}\n".encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline().decode()
        if line.startswith("error") or not line:
            return line.strip()
        height, width = map(int, line.split())
        data = self.process.stdout.read(3 * height * width)
        return np.frombuffer(data, np.uint8).reshape(3, height, width)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--binary", default="build/release/tests/dump_pixels")
    args = parser.parse_args()
    r, reader = random.Random(args.seed), Reader(args.binary)
    wrong, most = 0, dict.fromkeys(KINDS, 0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.cases):
            kind = list(KINDS)[i % len(KINDS)]
            make, allowed = KINDS[kind]
            path = pathlib.Path(folder) / f"{i}.{kind}"
            least = 16 if allowed else 1
            data = make(r, drawn(r, r.randint(least, 70), r.randint(least, 70)))
            path.write_bytes(data)
            # Not by its path: Pillow 13 maps uncompressed TIFFs then, and forgets to turn them.
            expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
            found = reader.read(path)
            same = not isinstance(found, str) and found.shape == expected.shape
            off = int(np.abs(found.astype(int) - expected).max()) if same else 256
            most[kind] = max(most[kind], off)
            if off > allowed:
                wrong += 1
                print(f"DIFFERS by {off}: case {i}, {kind}, {expected.shape}: {found if isinstance(found, str) else ''}")
    print(f"{args.cases} files, {wrong} differ; largest difference: {most}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
