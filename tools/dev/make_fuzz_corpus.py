#!/usr/bin/env python3
"""Writes the seeds of the fuzzers, a few hundred bytes each, into fuzz/corpus. Needs NumPy, Pillow and pillow-heif; torch
and safetensors for the seeds of weights.

    tools/dev/make_fuzz_corpus.py [--output fuzz/corpus] [TARGET...]

Files that a fuzzer found belong there too, with a name that says what was wrong.
"""
import argparse
import base64
import gzip
import io
import json
import pathlib
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image


def torch_bytes(content, **options):
    import torch
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def torch_seeds():
    import torch
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


def more_image_seeds(kind):
    rgb = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype("u1"))
    few = rgb.quantize(16)
    variants = {
        "GIF": [("palette", few, {"interlace": 0}), ("interlaced", few, {"interlace": 1}), ("grey", rgb.convert("L"), {}),
                ("transparent", few, {"transparency": 3})],
        "BMP": [("rgb", rgb, {}), ("palette", few, {}), ("bilevel", rgb.convert("1"), {}), ("alpha", rgb.convert("RGBA"), {})],
        "TIFF": [("raw", rgb, {}), ("lzw", rgb, {"compression": "tiff_lzw"}), ("palette", few, {}),
                 ("deflate", rgb.convert("L"), {"compression": "tiff_adobe_deflate"}),
                 ("packbits", rgb, {"compression": "packbits"}), ("jpeg", rgb, {"compression": "jpeg"})],
        "HEIF": [("rgb", rgb.resize((16, 16)), {}), ("grey", rgb.resize((16, 16)).convert("L"), {})],
        "AVIF": [("avif", rgb.resize((16, 16)), {})],
    }
    for name, image, options in variants[kind]:
        file = io.BytesIO()
        image.save(file, kind, **options)
        yield name, file.getvalue()


def heif_seeds():
    import pillow_heif
    pillow_heif.register_heif_opener()
    yield from more_image_seeds("HEIF")
    yield from more_image_seeds("AVIF")


def config_seeds():
    timm = {"architecture": "vit_tiny_patch16_224", "num_classes": 3, "num_features": 192, "global_pool": "token",
            "pretrained_cfg": {"input_size": [3, 224, 224], "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center",
                               "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}, "label_names": ["a", "b", "c"]}
    yield "timm", json.dumps(timm).encode()
    yield "swin", json.dumps(timm | {"architecture": "swin_tiny_patch4_window7_224"}).encode()
    yield "resnet", json.dumps({"architecture": "resnet18", "num_classes": 10}).encode()


def hf_seeds():
    vit = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
           "image_size": 32, "patch_size": 8, "num_channels": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
           "qkv_bias": True, "id2label": {"0": "a", "1": "b"}, "architectures": ["ViTForImageClassification"]}
    images = {"do_resize": True, "size": {"height": 32, "width": 32}, "resample": 2, "do_normalize": True,
              "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_rescale": True, "rescale_factor": 1 / 255}
    yield "vit", json.dumps(vit).encode() + b"\0" + json.dumps(images).encode()
    yield "alone", json.dumps(vit).encode()
    yield "shortest_edge", json.dumps(vit).encode() + b"\0" + json.dumps(
        images | {"size": {"shortest_edge": 36}, "do_center_crop": True, "crop_size": 32}).encode()


def open_clip_seeds():
    clip = {"embed_dim": 8, "quick_gelu": True,
            "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 16, "patch_size": 8},
            "text_cfg": {"context_length": 16, "vocab_size": 99, "width": 64, "heads": 4, "layers": 2}}
    siglip = {"embed_dim": 768, "custom_text": True,
              "vision_cfg": {"image_size": 224, "timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map",
                             "timm_proj": "none"},
              "text_cfg": {"width": 64, "heads": 4, "layers": 2, "no_causal_mask": True, "proj_bias": True,
                           "pool_type": "last", "norm_kwargs": {"eps": 1e-6},
                           "tokenizer_kwargs": {"clean": "canonicalize"}}}
    images = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", "resize_mode": "squash"}
    yield "clip", json.dumps({"model_cfg": clip}).encode()
    yield "siglip", json.dumps({"model_cfg": siglip, "preprocess_cfg": images}).encode()
    yield "wide", json.dumps({"model_cfg": clip | {"vision_cfg": {"width": 65536, "layers": 1024}}}).encode()


def recipe_seeds():
    yield "small", b'model = "vit_mnist"\ndata = "mnist:d"\nepochs = 3\nlr = 1e-3\nbetas = [0.9, 0.99]\n'
    yield "rules", (b'model = "resnet18"\ndata = "csv:a"\noptimizer = "muon"\nadamw_lr = 0.1\nfreeze = ["blocks.*"]\n'
                    b'lr_scale = ["head.*=10"]\naugment = "crop-flip+rand-m9-mstd0.5-inc1"\n')
    yield "broken", b'model = "vit_mnist\nepochs = [[[[1]]]]\n'


def shard_of(form, key):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=form) as tar:
        for name, content in (".jpg", b"image"), (".json", b'{"label": 3}'), ("b.png", b"x"), ("b.cls", b"cat\n"), ("b.txt", b"a dog"):
            member = tarfile.TarInfo(key + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def data_seeds():
    images = struct.pack(">IIII", 0x803, 2, 2, 2) + bytes(range(8))
    yield "idx", [("images", images), ("labels", struct.pack(">II", 0x801, 3) + b"\0\1\2"), ("gzip", gzip.compress(images))]
    record = bytes([3]) + bytes(3072)
    yield "cifar", [("one", record), ("two", record + bytes([9]) + bytes(3072)), ("label", bytes([10]) + bytes(3072)),
                    ("cut", record[:-1])]
    yield "csv", [("plain", b"file,class\na.png,cat\nb.png,dog\n"), ("splits", b"a.png,0,train\nb.png,7,val\n"),
                  ("quoted", b'"a, ""b"".png","c"\r\nd.png,e\r\n')]
    heading = b"epoch,step,train_loss,train_loss_sum,train_acc,test_loss,test_acc,test_top5,lr,images_per_second,seconds\n"
    yield "metrics", [("two", heading + b"1,10,2.5,25,0.1,2.4,0.2,0.6,0.001,99.5,1\n2,20,,,,,,,,,\n"), ("heading", heading),
                      ("torn", heading + b"1,10,2.5,2")]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in ("d/a.bin", b"hello"), ("d/" + "n" * 120, b"x" * 600):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    yield "tar", [("two", archive.getvalue()), ("link", link.tobuf()), ("outside", tarfile.TarInfo("../x").tobuf()),
                  ("pax", tarfile.TarInfo("\u00e9" * 90).tobuf(tarfile.PAX_FORMAT)),
                  ("shard", shard_of(tarfile.USTAR_FORMAT, "s/7")), ("shard_gnu", shard_of(tarfile.GNU_FORMAT, "s/" + "7" * 120)),
                  ("shard_pax", shard_of(tarfile.PAX_FORMAT, "s/" + "7" * 120))]
    yield "shards", [("two", b"vitrum shards 1\nclasses 2\ncat\ndog\nshards 1\n4096 0 - a.tar\nsamples 2\n0 512 5 0 1.jpg\n"
                             b"0 2048 7 1 2.jpg\n"), ("none", b"vitrum shards 1\nclasses 0\nshards 0\nsamples 0\n"),
                     ("digest", b"vitrum shards 1\nclasses 0\nshards 1\n1024 17 " + b"0f" * 32 + b" a.tar\nsamples 0\n")]


def weight_seeds():
    import torch
    from safetensors.torch import save
    w = torch.arange(2.0)
    yield "safetensors", [("one", save({"w": w}, {"format": "pt"})), ("types", save({"h": w.half(), "i": w.long()})),
                          ("bytes", save({"a.weight": torch.arange(6, dtype=torch.int8).reshape(2, 3),
                                          "a.weight_scale": torch.tensor([[0.5], [2.0]])})),
                          ("empty", save({}))]
    pytorch = list(torch_seeds())
    yield "pytorch", pytorch
    pickles = []
    for name, content in pytorch:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            pickles.append((name, archive.read("archive/data.pkl")))
    yield "pickle", pickles


def npy_seeds():
    for name, array in ("vector", np.arange(4, dtype="f4")), ("double", np.arange(2.0)), (
            "fortran", np.asfortranarray(np.ones((2, 3), "f4"))):
        file = io.BytesIO()
        np.save(file, array)
        yield name, file.getvalue()


def png_row_seeds():
    """Depth and colour, width, height, palette; then rows."""
    noise = np.random.default_rng(1).integers(0, 256, 4000).astype("u1").tobytes()
    rows = b"".join(bytes([y % 5]) + noise[40 * y:40 * y + 33] for y in range(11))
    for name, kind in ("rgb", 8 + 3), ("grey16", 4), ("palette", 16 + 3), ("interlaced", 128 + 8 + 3):
        yield name, bytes([kind, 10, 10, 40]) + rows


def tokenizer_seeds():
    words = ["<|startoftext|>", "<|endoftext|>", "a", "c", "t", "a</w>", "c</w>", "t</w>", "ca", "cat</w>"]
    added = [{"id": i, "content": words[i], "normalized": False, "special": True} for i in (0, 1)]
    clip = {"added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]},
            "model": {"type": "BPE", "unk_token": words[1], "end_of_word_suffix": "</w>",
                      "vocab": {w: i for i, w in enumerate(words)}, "merges": ["c a", ["ca", "t</w>"]]}}
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    gemma_words = ["<pad>", "<eos>", "<bos>", "<unk>", "a", "c", "t", "\u2581", "ca", "\u2581a"] + bytes_
    gemma = {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, "pre_tokenizer": None,
             "post_processor": {"type": "TemplateProcessing", "single": [
                 {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<eos>"}}]},
             "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                       "vocab": {w: i for i, w in enumerate(gemma_words)}, "merges": ["c a", "\u2581 a"]}}
    unigram = {"added_tokens": [{"id": 0, "content": "</s>"}],
               "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap()).decode()},
               "model": {"type": "Unigram", "unk_id": 1, "vocab": [["</s>", 0], ["<unk>", 0], ["\u2581a", -1], ["cat", -2.5]]}}
    dump = lambda x: json.dumps(x, ensure_ascii=False).encode()
    yield "clip", dump(clip)
    yield "gemma", dump(gemma) + b'\0{"add_eos_token": true, "padding_side": "left"}'
    yield "unigram", dump(unigram) + b'\0{"do_lower_case": false}'
    yield "cut", dump(clip)[:-40]
    yield "merge_of_nothing", dump(clip | {"model": clip["model"] | {"merges": ["x y"]}})
    yield "number_too_large", dump(clip | {"model": clip["model"] | {"vocab": {"a": 2**40}}})
    yield "deep", b'{"model":' + b"[" * 4000


def charsmap():
    """A trie that has "A" -> "a": units of a root, a node with a leaf, and the leaf."""
    units = [0] * 256
    units[0] = 1 << 10                          # children at 1 ^ byte
    node = 1 ^ ord("A")
    units[node] = ord("A") | 1 << 8 | (node ^ 7) << 10  # its leaf is unit 7
    units[7] = 1 << 31                          # text 0
    return struct.pack("<I", 1024) + struct.pack("<256I", *units) + b"a\0"


def spiece_seeds():
    def varint(n):
        out = b""
        while n >= 128:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    def field(number, value):
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        if isinstance(value, float):
            return varint(number << 3 | 5) + struct.pack("<f", value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    def piece(text, score, kind=1):
        return field(1, field(1, text.encode()) + field(2, float(score)) + field(3, kind))

    head = piece("<pad>", 0, 3) + piece("</s>", 0, 3) + piece("<unk>", 0, 2)
    good = head + piece("\u2581a", -1) + piece("cat", -2.5) + piece("\u2581", -3) + piece("[x]", 0, 4)
    trainer, normalizer = field(2, field(3, 1) + field(42, 1)), field(3, field(2, charsmap()) + field(3, 1))
    yield "good", good + trainer + normalizer
    yield "bytes", head + piece("a", -1) + b"".join(piece(f"<0x{b:02X}>", 0, 6) for b in range(256)) + field(2, field(35, 1))
    yield "cut", (good + trainer + normalizer)[:-30]
    yield "nan", head + piece("a", float("nan"))
    yield "twice", good + good
    yield "bpe", good + field(2, field(3, 2))
    yield "length_past_the_end", b"\x0a\xff\xff\xff\xff\x0f"
    yield "charsmap_past_the_end", good + field(3, field(2, struct.pack("<I", 2**31) + b"abcd"))


def http_seeds():
    host, post = b"Host: localhost\r\n", b"POST /echo/a HTTP/1.1\r\n"
    get = b"GET /?a=b HTTP/1.1\r\n" + host
    yield "get", get + b"\r\n"
    yield "post", post + host + b"Content-Length: 5\r\n\r\nhello"
    yield "pipelined", post + host + b"Content-Length: 2\r\n\r\nab" + get + b"\r\n" + get + b"Connection: close\r\n\r\n"
    yield "chunked", post + host + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + get + b"\r\n"
    yield "expect", post + host + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\na"
    yield "both", post + host + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    yield "cut", post + host + b"Content-Length: 50\r\n\r\nhello"
    yield "large", post + host + b"Content-Length: 999999\r\n\r\n" + b"x" * 100
    yield "old", b"HEAD /nothing HTTP/1.0\r\n" + host + b"Connection: keep-alive\r\n\r\n"


def multipart_seeds():
    part = b'--cut\r\nContent-Disposition: form-data; name="image"; filename="a\\"b.png"\r\nContent-Type: image/png\r\n\r\n'
    yield "one", b"cut\n" + part + b"bytes\r\n--cut--\r\n"
    yield "two", b"cut\n" + part + b"a\r\n--cu\r\nb\r\n" + part + b"\r\n--cut--"
    yield "bare", b"x\n--x\r\n\r\n\r\n--x--"
    yield "endless", b"cut\n" + part + b"bytes"


def oip_seeds():
    yield "base64", b'{"id":"1","inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":["YWI="]}]}'
    yield "binary", (b'{"inputs":[{"name":"image","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":11}}]}'
                     b"\0\2\0\0\0ab\1\0\0\0c")
    yield "pixels", (b'{"parameters":{"timeout":5,"binary_data_output":true},"inputs":[{"name":"pixels","datatype":"UINT8","shape":[1,1,2,2],'
                     b'"parameters":{"binary_data_size":4}}],"outputs":[{"name":"logits","parameters":{"classification":2}}]}\0abcd')
    yield "nested", b'{"inputs":[{"name":"pixels","datatype":"UINT8","shape":[1,1,2,2],"data":[[[[1,2],[3,4]]]]}],"outputs":[{"name":"labels"}]}'
    yield "huge", b'{"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":18446744073709551615}}]}\0a'


# What makes the seeds of each target; those of weights come together.
MAKERS = {
    "tokenizer_json": tokenizer_seeds, "spiece": spiece_seeds,
    "http_session": http_seeds, "multipart": multipart_seeds, "oip": oip_seeds,
    "index": lambda: [("one", b'{"metadata":{"total_size":4},"weight_map":{"a":"one.safetensors"}}'),
                      ("missing", b'{"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}'),
                      ("outside", b'{"weight_map":{"a":"../one.safetensors"}}')],
    "npz": numpy_seeds, "npy": npy_seeds, "jpeg": lambda: image_seeds("JPEG"), "png": lambda: image_seeds("PNG"),
    "webp": lambda: image_seeds("WEBP"), "gif": lambda: more_image_seeds("GIF"), "bmp": lambda: more_image_seeds("BMP"),
    "tiff": lambda: more_image_seeds("TIFF"), "heif": heif_seeds, "png_rows": png_row_seeds, "config": config_seeds,
    "hf_config": hf_seeds, "open_clip_config": open_clip_seeds, "recipe": recipe_seeds,
}
TOGETHER = {"safetensors": weight_seeds, "pytorch": weight_seeds, "pickle": weight_seeds}
TOGETHER |= dict.fromkeys(["idx", "cifar", "csv", "metrics", "tar", "shards"], data_seeds)


def seeds(wanted):
    for target in wanted:
        yield target, MAKERS[target]() if target in MAKERS else dict(TOGETHER[target]())[target]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="fuzz/corpus", type=pathlib.Path)
    parser.add_argument("target", nargs="*")
    args = parser.parse_args()
    output = args.output
    for target, files in seeds(args.target or [*MAKERS, *TOGETHER]):
        (output / target).mkdir(parents=True, exist_ok=True)
        for name, content in files:
            (output / target / name).write_bytes(content)
            print(f"{target}/{name}: {len(content)} bytes")


if __name__ == "__main__":
    main()
