#!/usr/bin/env python3
"""Writes the seeds of the fuzzers, a few hundred bytes each, into fuzz/corpus. Needs torch, NumPy, safetensors, Pillow.

    tools/dev/make_fuzz_corpus.py [--output fuzz/corpus]

Files that a fuzzer found belong there too, with a name that says what was wrong.
"""
import argparse
import io
import pathlib
import zipfile

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save


def torch_bytes(content, **options):
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def torch_seeds():
    w = torch.arange(4.0).reshape(2, 2)
    yield "plain", torch_bytes({"w": w})
    yield "half", torch_bytes({"w": w.half(), "n": torch.tensor(3)})
    yield "strided", torch_bytes({"w": w.t(), "v": w[1]})
    yield "nested", torch_bytes({"model": {"w": torch.nn.Parameter(w)}, "epoch": 3,
                                 "args": argparse.Namespace(lr=0.1, size=torch.Size([2]), dtype=torch.float16)})
    yield "protocol4", torch_bytes({"w": w.to(torch.int16)}, pickle_protocol=4)


def numpy_seeds():
    arrays = {"a/b": np.arange(4, dtype="f4"), "f": np.asfortranarray(np.arange(4, dtype="f2").reshape(2, 2))}
    for name, save_arrays in ("stored", np.savez), ("deflated", np.savez_compressed):
        file = io.BytesIO()
        save_arrays(file, **arrays)
        yield name, file.getvalue()
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(2.0), version=(2, 0))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("v2.npy", file.getvalue())
    yield "version2", archive.getvalue()


def image_seeds(kind):
    noise = np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype("u1")
    rgb = Image.fromarray(noise)
    variants = {
        "JPEG": [("rgb", rgb, {}), ("progressive", rgb, {"progressive": True}), ("grey", rgb.convert("L"), {}),
                 ("cmyk", rgb.convert("CMYK"), {}), ("restart", rgb, {"restart_marker_blocks": 1})],
        "PNG": [("rgb", rgb, {}), ("palette", rgb.quantize(16), {}), ("alpha", rgb.convert("RGBA"), {}),
                ("bilevel", rgb.convert("1"), {}),
                ("grey16", Image.fromarray((noise[:, :, 0].astype("u2") << 8)), {})],
        "WEBP": [("lossy", rgb, {"quality": 50}), ("lossless", rgb, {"lossless": True}),
                 ("alpha", rgb.convert("RGBA"), {})],
    }
    for name, image, options in variants[kind]:
        file = io.BytesIO()
        image.save(file, kind, **options)
        yield name, file.getvalue()


def seeds():
    w = torch.arange(2.0)
    yield "safetensors", [("one", save({"w": w}, {"format": "pt"})), ("types", save({"h": w.half(), "i": w.long()})),
                          ("empty", save({}))]
    yield "index", [("one", b'{"metadata":{"total_size":4},"weight_map":{"a":"one.safetensors"}}'),
                    ("missing", b'{"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}'),
                    ("outside", b'{"weight_map":{"a":"../one.safetensors"}}')]
    pytorch = list(torch_seeds())
    yield "pytorch", pytorch
    pickles = []
    for name, content in pytorch:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            pickles.append((name, archive.read("archive/data.pkl")))
    yield "pickle", pickles
    yield "npz", numpy_seeds()
    for target, kind in ("jpeg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"):
        yield target, image_seeds(kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="fuzz/corpus", type=pathlib.Path)
    output = parser.parse_args().output
    for target, files in seeds():
        (output / target).mkdir(parents=True, exist_ok=True)
        for name, content in files:
            (output / target / name).write_bytes(content)
            print(f"{target}/{name}: {len(content)} bytes")


if __name__ == "__main__":
    main()
