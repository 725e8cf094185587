#!/usr/bin/env python3
"""A model that costs next to nothing, so that a measurement of the server is one of the server alone: a ViT of one block of
width 8 that sees an image of 8 x 8 pixels as one patch. Also a request for it: the pixels of one image by the Open Inference
Protocol, and the header that goes with it.

    bench/null_model.py DIR            # DIR/model, DIR/request.bin, DIR/header.txt, DIR/request.lua (for wrk)
"""
import json
import pathlib
import struct
import sys

WIDTH, CLASSES, SIZE = 8, 10, 8


def parameters():
    yield "cls_token", [1, 1, WIDTH]
    yield "pos_embed", [1, 2, WIDTH]
    yield "patch_embed.proj.weight", [WIDTH, 3, SIZE, SIZE]
    yield "patch_embed.proj.bias", [WIDTH]
    for norm in ("blocks.0.norm1", "blocks.0.norm2", "norm"):
        yield f"{norm}.weight", [WIDTH]
        yield f"{norm}.bias", [WIDTH]
    for name, out, width in (("attn.qkv", 3 * WIDTH, WIDTH), ("attn.proj", WIDTH, WIDTH),
                             ("mlp.fc1", WIDTH, WIDTH), ("mlp.fc2", WIDTH, WIDTH)):
        yield f"blocks.0.{name}.weight", [out, width]
        yield f"blocks.0.{name}.bias", [out]
    yield "head.weight", [CLASSES, WIDTH]
    yield "head.bias", [CLASSES]


def write_model(folder):
    folder.mkdir(parents=True, exist_ok=True)
    entries, data = {}, b""
    for i, (name, shape) in enumerate(parameters()):
        count = 1
        for n in shape:
            count *= n
        values = struct.pack(f"<{count}f", *(((7 * k + i) % 13 - 6) / 20 for k in range(count)))
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": CLASSES, "num_features": WIDTH,
              "model_args": {"img_size": SIZE, "patch_size": SIZE, "embed_dim": WIDTH, "depth": 1, "num_heads": 1,
                             "mlp_ratio": 1},
              "pretrained_cfg": {"input_size": [3, SIZE, SIZE], "num_classes": CLASSES}}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def write_request(folder):
    pixels = bytes(i % 256 for i in range(3 * SIZE * SIZE))
    head = json.dumps({
        "inputs": [{"name": "pixels", "shape": [1, 3, SIZE, SIZE], "datatype": "UINT8",
                    "parameters": {"binary_data_size": len(pixels)}}],
        "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
    }).encode()
    (folder / "request.bin").write_bytes(head + pixels)
    (folder / "header.txt").write_text(f"Inference-Header-Content-Length: {len(head)}\n")
    (folder / "request.lua").write_text(f"""local file = assert(io.open("{folder}/request.bin", "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Inference-Header-Content-Length"] = "{len(head)}"
""")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = pathlib.Path(sys.argv[1]).resolve()
    write_model(target / "model")
    write_request(target)
