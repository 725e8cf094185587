"""A model of two blocks with random weights, and photos for it, made by the standard library alone."""
import json
import math
import os
import pathlib
import random
import struct
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZE, WIDTH, DEPTH, CLASSES, PATCH = 32, 48, 2, 7, 8
LABELS = ["tench", "goldfish", "crane, bird", "<b>bold</b>", "crane, machine", "nine", "pizza"]


def use_build():
    """VITRUM_BUILD: where libvitrum_c and the binary were built. Without it those of an installed wheel are tested."""
    if folder := os.environ.get("VITRUM_BUILD"):
        os.environ["VITRUM_C_LIBRARY"] = f"{folder}/libvitrum_c.so.0"
        os.environ["VITRUM_BINARY"] = f"{folder}/vitrum"


def write_model(folder, head=True):
    """timm's layout: config.json and model.safetensors."""
    draw = random.Random(7)
    shapes = {"cls_token": (1, 1, WIDTH), "pos_embed": (1, 1 + (SIZE // PATCH) ** 2, WIDTH),
              "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,),
              "norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
    for i in range(DEPTH):
        for name, shape in {"norm1.weight": (WIDTH,), "norm1.bias": (WIDTH,), "attn.qkv.weight": (3 * WIDTH, WIDTH),
                            "attn.qkv.bias": (3 * WIDTH,), "attn.proj.weight": (WIDTH, WIDTH), "attn.proj.bias": (WIDTH,),
                            "norm2.weight": (WIDTH,), "norm2.bias": (WIDTH,), "mlp.fc1.weight": (4 * WIDTH, WIDTH),
                            "mlp.fc1.bias": (4 * WIDTH,), "mlp.fc2.weight": (WIDTH, 4 * WIDTH),
                            "mlp.fc2.bias": (WIDTH,)}.items():
            shapes[f"blocks.{i}.{name}"] = shape
    if head:
        shapes.update({"head.weight": (CLASSES, WIDTH), "head.bias": (CLASSES,)})
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        scale = {"head.weight": 1.0, "patch_embed.proj.weight": 0.4}.get(name, 0.05)
        one = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        values = [one + draw.gauss(0, scale) for _ in range(math.prod(shape))]
        start = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": CLASSES if head else 0, "label_names": LABELS if head else [],
              "model_args": {"img_size": SIZE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": 3},
              "pretrained_cfg": {"input_size": [3, SIZE, SIZE], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0,
                                 "interpolation": "bicubic", "num_classes": CLASSES if head else 0}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pixels(width=40, height=30, seed=3):
    """Rows of RGB, (H, W, 3)."""
    draw = random.Random(seed)
    return bytes(draw.randrange(256) for _ in range(3 * width * height))


def png(data, width=40, height=30):
    rows = b"".join(b"\0" + data[y * width * 3:(y + 1) * width * 3] for y in range(height))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
