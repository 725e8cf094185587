"""Pictures of what a model looks at, made by the bundled binary."""
from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import tempfile
from typing import Any

from ._cuda import environment
from ._errors import error_of
from ._inputs import Image, fill
from ._library import FROM_PIXELS, Input, binary_path


class Picture:
    """A PNG that a notebook shows. `png` has its bytes, `label` the class it explains."""

    def __init__(self, png: bytes, label: str, probability: float):
        self.png, self.label, self.probability = png, label, probability

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"<vitrum.Picture of {self.label!r}, {len(self.png)} bytes of PNG>"

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "wb") as file:
            file.write(self.png)


def explain(model: tuple[str, dict[str, Any]], image: Image, method: str, options: dict[str, Any]) -> Picture:
    path, loaded = model
    if method not in ("gradient", "rollout", "attention"):
        raise ValueError(f"method {method!r}; expected 'gradient', 'rollout' or 'attention'")
    with tempfile.TemporaryDirectory(prefix="vitrum-") as folder:
        command = [binary_path(), "explain", "--model", path, "--method", method, "--output", f"{folder}/out", "--json", "-q"]
        for key in ("arch", "device", "precision", "threads"):
            if loaded[key]:
                command += [f"--{key}", str(loaded[key])]
        if loaded["exif_orientation"]:
            command.append("--exif-orientation")
        if size := loaded["image_size"]:
            command += ["--image-size", str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"]
        for key, value in options.items():
            command += ["--" + key.strip("_").replace("_", "-"), str(value)]
        command += ["--", _file_of(image, folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["vitrum: explain failed"]
            raise error_of(done.returncode, lines[-1].partition(": ")[2])
        found = json.loads(done.stdout)
        with open(found["files"][0], "rb") as file:
            picture = file.read()
        shown = found["images"][0]
        return Picture(picture, shown["asked_label"], shown["asked_probability"])


def _file_of(image: Image, folder: str) -> str:
    """A file with the image: its own, or one made here."""
    if isinstance(image, (str, os.PathLike)):
        return os.fspath(image)
    given = Input()
    kept = fill(given, image)
    path = os.path.join(folder, "image")
    with open(path, "wb") as file:
        if given.source != FROM_PIXELS:
            file.write(ctypes.string_at(given.data, given.bytes))
        else:
            file.write(_bmp(given))
    del kept
    return path


def _bmp(image: Input) -> bytes:
    """24 bits a pixel, uncompressed: the simplest file of pixels."""
    width, height, channels = image.width, image.height, image.channels
    stride = image.stride or width * channels
    padding = bytes(-3 * width % 4)
    rows = []
    for y in reversed(range(height)):
        row = ctypes.string_at(image.data + y * stride, width * channels)
        blue_green_red = bytearray(3 * width)
        for to, c in enumerate((2, 1, 0)):
            blue_green_red[to::3] = row[min(c, channels - 1)::channels] if channels < 3 else row[c::channels]
        rows.append(bytes(blue_green_red) + padding)
    pixels = b"".join(rows)
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + len(pixels), 0, 0, 54, 40, width, height, 1, 24, 0, len(pixels),
                         2835, 2835, 0, 0)
    return header + pixels
