"""Exports random-weight models of every preset, and variants, as ONNX, and compares ONNX Runtime with `vitrum forward`.

    tools/python.sh tools/check/check_onnx.py [--vitrum build/release/vitrum] [--full] [--huge] [--model GLOB]

Each file goes through onnx.checker (full check, strict shape inference) and runs at batch 1 and 3. Large presets are
checked at a smaller image size unless --full; the huge ones (external data) only with --huge. Needs onnx, onnxruntime,
safetensors and numpy. Exit status 1 when any logits differ by more than the tolerance.
"""

import argparse
import fnmatch
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file

SMALL = {"image_h": 24, "image_w": 32, "patch_h": 8, "patch_w": 8, "channels": 3, "width": 32, "depth": 2, "heads": 4,
         "mlp_width": 48, "classes": 7}
VARIANTS = {  # what no preset has
    "mean_pool": {"mean_pool": True},
    "no_class_token": {"mean_pool": True, "class_token": False},
    "sincos": {"sincos_positions": True},
    "layer_scale": {"layer_scale": 0.1},
    "gelu_tanh": {"act": "gelu_tanh"},
    "eps": {"eps": 0.1},  # so large that another one shows
    "post_norm_mean": {"pre_norm": False, "mean_pool": True, "act": "relu"},
    "no_bias": {"qkv_bias": False, "proj_bias": False, "mlp_bias": False, "norm_bias": False, "head_bias": False},
    "channel_last": {"patch_order": "channel_last", "patch_w": 4},
    "headless": {"classes": 0},
    "one_block": {"depth": 1, "heads": 1, "channels": 1},
}


def tool(args, *words):
    return json.loads(subprocess.run([args.vitrum, *map(str, words), "--json"], check=True, capture_output=True).stdout)


def tensors(summary, config, rng):
    """Random weights by timm's names, in the shapes that the layer table implies."""
    out = {}

    def add(name, *shape, around=0.0):
        out[name] = (around + rng.standard_normal(shape) * (0.1 if len(shape) == 1 else 0.5 / math.sqrt(shape[-1]))).astype("f")

    for layer in (l for l in summary["layers"] if l["leaf"] and l["parameters"]):
        name, kind, count = layer["name"], layer["type"], layer["parameters"]
        ins, outs = layer["input"][-1], layer["output"][-1]
        if kind == "Linear":
            add(name + ".weight", outs, ins)
            if count > outs * ins:
                add(name + ".bias", outs)
        elif kind == "LayerNorm":
            add(name + ".weight", outs, around=1.0)
            if count > outs:
                add(name + ".bias", outs)
        elif kind == "Tokens":
            prefix = layer["output"][1] - layer["input"][1]
            for token in ("cls_token", "dist_token")[:prefix]:
                add(token, 1, 1, outs)
            if count > prefix * outs:
                add("pos_embed", 1, layer["output"][1], outs)
        elif kind == "RelativeBias":
            heads = layer["output"][0]
            add(name + "_table", count // heads, heads)
        else:
            add(name + ".gamma", outs)
    patchify = next(l for l in summary["layers"] if l["name"] == "patchify")
    if config.get("vitrum", {}).get("patch_order") != "channel_last" and config["architecture"] != "vit_mnist":
        own, channels = config.get("vitrum", {}), patchify["input"][1]
        side = math.isqrt(patchify["output"][2] // channels)
        key = "patch_embed.proj.weight"
        out[key] = out[key].reshape(-1, channels, own.get("patch_h", side), own.get("patch_w", side))
    assert sum(t.size for t in out.values()) == summary["parameters"]
    return out


def save_model(args, folder, config, rng):
    (folder / "config.json").write_text(json.dumps(config))
    summary = tool(args, "summary", folder)
    save_file(tensors(summary, config, rng), folder / "model.safetensors")
    return summary["layers"][0]["input"][1:]


def check(args, name, config, rng, *flags):
    """The largest |ours - ONNX Runtime's| over the largest |ours| or 1, at batch 1 and 3, and what export said."""
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        folder = pathlib.Path(folder)
        model = folder / "model"
        model.mkdir()
        shape = save_model(args, model, config, rng)
        exported = tool(args, "export", "--model", model, "--output", folder / "m.onnx", *flags)
        onnx.checker.check_model(str(folder / "m.onnx"), full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(folder / "m.onnx", options, providers=["CPUExecutionProvider"])
        worst = 0.0
        for batch in (1, 3):
            pixels = rng.integers(0, 256, (batch, *shape), dtype=np.uint8)
            mean = std = 0.5
            image = ((pixels / 255 - mean) / std).astype("f")
            np.save(folder / "in.npy", image)
            tool(args, "forward", "--model", model, "--input", folder / "in.npy", "--output", folder / "out.npy")
            ours = np.load(folder / "out.npy")
            theirs, = session.run(None, {"pixel_values": pixels if "--normalize" in flags else image})
            assert theirs.shape == ours.shape, f"{name}: shape {theirs.shape}, expected {ours.shape}"
            worst = max(worst, float(np.abs(ours - theirs).max() / max(1, np.abs(ours).max())))
        return worst, exported


def presets(args):
    for line in subprocess.run([args.vitrum, "models", "--json"], check=True, capture_output=True).stdout.splitlines():
        model = json.loads(line)
        if model["family"] == "resnet" or ("_huge_" in model["name"] and not args.huge):  # check_resnet.py has ResNets
            continue
        size, channels = model["image_size"], model["channels"]
        large = model["macs"] > 3e9
        if large and not args.full:
            patch = int(model["name"].split("_patch")[1].split("_")[0])
            size = (16 if model["family"] == "swin" else 5) * patch
        yield model["name"], {"architecture": model["name"], "num_classes": model["num_classes"],
                              "pretrained_cfg": {"input_size": [channels, size, size]}}


def cases(args):
    for name, config in presets(args):
        yield name, config, ()
    half = [0.5] * 3
    for name, changes in VARIANTS.items():
        own = {**SMALL, **changes, "architecture": "vit_tiny_patch16_224"}
        config = {"architecture": "vitrum_vit", "num_classes": own["classes"], "vitrum": own}
        config["pretrained_cfg"] = {"input_size": [own["channels"], own["image_h"], own["image_w"]],
                                    "mean": half[:own["channels"]], "std": half[:own["channels"]]}
        yield name, config, ()
        yield name + " --normalize --external", config, ("--normalize", "--external")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", default=root / "build" / "release" / "vitrum")
    parser.add_argument("--model", default="*", help="presets and variants to check")
    parser.add_argument("--full", action="store_true", help="every preset at its own image size")
    parser.add_argument("--huge", action="store_true", help="also the huge presets (10 GB of memory and disk)")
    parser.add_argument("--scratch", help="where temporary models go")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    failed = False
    for name, config, flags in cases(args):
        if not fnmatch.fnmatch(name, args.model):
            continue
        error, exported = check(args, name, config, rng, *flags)
        failed |= not error <= args.tolerance  # NaN fails too
        print(f"{name:48} {exported['nodes']:5} nodes {exported['bytes']:13,} bytes  difference {error:.1e}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
