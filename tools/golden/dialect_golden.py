"""Writes tests/golden/dialects: one small model in every framework's files, and what those frameworks make of it.

    tools/python.sh tools/golden/dialect_golden.py [--out DIR]

Needs torch, timm, torchvision, transformers, scipy, safetensors and numpy. `expected.safetensors` holds images of 12 and
20 pixels with the logits of each framework (at 20 pixels with its own resampling of positions), the positions of
several grids under each rule, and patch embeddings of other numbers of channels.
"""

import sys
import argparse
import pathlib

import numpy as np
import timm
import torch
import torch.nn.functional as F
import torchvision
import transformers
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from timm.models import save_for_hf
from timm.models._manipulate import adapt_input_conv

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))
from check_dialects import Size, google_arrays, zoomed
from check_live import perturb

MODEL = Size("golden", None, image=12, patch=4, width=8, depth=2, heads=2, classes=3)
OTHER = 20  # pixels: a 3 x 3 grid becomes 5 x 5
ARGS = dict(img_size=12, patch_size=4, embed_dim=8, depth=2, num_heads=2, mlp_ratio=2)


def to_hf(state):
    """timm's names -> transformers 5's, for this model."""
    out = {}
    for name, tensor in state.items():
        for a, b in (("patch_embed.proj", "embeddings.patch_embeddings.projection"), ("blocks", "layers"),
                     ("cls_token", "embeddings.cls_token"), ("pos_embed", "embeddings.position_embeddings"),
                     ("norm1", "layernorm_before"), ("norm2", "layernorm_after"), ("attn.proj", "attention.o_proj"),
                     ("attn.qkv", "attention.{}_proj")):
            name = name.replace(a, b)
        if name.startswith("norm."):
            name = "layernorm." + name[5:]
        name = "classifier." + name[5:] if name.startswith("head.") else "vit." + name
        parts = zip("qkv", tensor.chunk(3)) if "{}" in name else [("", tensor)]
        out |= {name.format(part): t.clone() for part, t in parts}
    return out


def to_torchvision(state, legacy):
    out = {}
    for name, tensor in state.items():
        for a, b in (("patch_embed.proj", "conv_proj"), ("cls_token", "class_token"),
                     ("pos_embed", "encoder.pos_embedding"), ("blocks.", "encoder.layers.encoder_layer_"),
                     ("norm1", "ln_1"), ("norm2", "ln_2"), ("attn.qkv.", "self_attention.in_proj_"),
                     ("attn.proj", "self_attention.out_proj"), ("mlp.fc1", "mlp.linear_1" if legacy else "mlp.0"),
                     ("mlp.fc2", "mlp.linear_2" if legacy else "mlp.3"), ("head.", "heads.head.")):
            name = name.replace(a, b)
        out["encoder.ln." + name[5:] if name.startswith("norm.") else name] = tensor.clone()
    return out


def torchvision_model(side, state):
    model = torchvision.models.VisionTransformer(side, 4, 2, 2, 8, 16, num_classes=3).eval()
    model.load_state_dict(state)
    return model


def write_models(out, expected):
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **ARGS).eval()
    perturb(model)
    state = model.state_dict()
    images = {side: torch.randn(2, 3, side, side) for side in (12, OTHER)}
    expected |= {f"image.{side}": image for side, image in images.items()}

    save_for_hf(model, out / "timm", safe_serialization=True, model_args=ARGS)
    other = timm.create_model(f"local-dir:{out / 'timm'}", pretrained=True, img_size=OTHER).eval()
    expected |= {"logits.timm.12": model(images[12]), f"logits.timm.{OTHER}": other(images[OTHER])}

    config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
                                    image_size=12, patch_size=4, id2label={0: "cat", 1: "dog", 2: "newt"})
    hf = transformers.ViTForImageClassification(config).eval()
    hf.load_state_dict(to_hf(state))
    hf.save_pretrained(out / "hf")
    save_file({"module." + k: t for k, t in hf.state_dict().items()}, out / "hf5.safetensors")
    expected |= {"logits.hf.12": hf(images[12]).logits,
                 f"logits.hf.{OTHER}": hf(images[OTHER], interpolate_pos_encoding=True).logits}

    vision = to_torchvision(state, legacy=False)
    expected["logits.torchvision.12"] = torchvision_model(12, vision)(images[12])
    save_file(vision, out / "torchvision.safetensors")
    torch.save(to_torchvision(state, legacy=True), out / "torchvision-legacy.pth")
    larger = torchvision.models.vision_transformer.interpolate_embeddings(OTHER, 4, dict(vision))
    expected[f"logits.torchvision.{OTHER}"] = torchvision_model(OTHER, larger)(images[OTHER])

    np.savez(out / "google.npz", **google_arrays(model))
    google = timm.create_model("vit_tiny_patch16_224", num_classes=3, act_layer="gelu_tanh", **ARGS).eval()
    google.load_pretrained(str(out / "google.npz"))
    expected["logits.npz.12"] = google(images[12])
    state["pos_embed"] = zoomed(state["pos_embed"], OTHER // 4)
    google = timm.create_model("vit_tiny_patch16_224", num_classes=3, act_layer="gelu_tanh",
                               **(ARGS | dict(img_size=OTHER))).eval()
    google.load_state_dict(state)
    expected[f"logits.npz.{OTHER}"] = google(images[OTHER])


def write_positions(expected):
    for old, new in (((3, 3), (5, 5)), ((6, 6), (4, 4)), ((2, 3), (5, 4)), ((4, 4), (1, 7))):
        width = 3
        positions = torch.randn(1, 1 + old[0] * old[1], width)
        grid = positions[:, 1:].reshape(1, *old, width).permute(0, 3, 1, 2)
        from scipy.ndimage import zoom
        zoomed_grid = zoom(grid.numpy(), (1, 1, new[0] / old[0], new[1] / old[1]), order=1)
        rules = {"bicubic_antialias": resample_abs_pos_embed(positions, new, old)[0, 1:],
                 "bicubic": F.interpolate(grid, new, mode="bicubic"),
                 "bicubic_align_corners": F.interpolate(grid, new, mode="bicubic", align_corners=True),
                 "bilinear": F.interpolate(grid, new, mode="bilinear"), "zoom": torch.from_numpy(zoomed_grid)}
        case = f"{old[0]}x{old[1]}-{new[0]}x{new[1]}"
        expected[f"positions.{case}.input"] = positions[0]
        for rule, t in rules.items():
            expected[f"positions.{case}.{rule}"] = t if t.dim() == 2 else t[0].permute(1, 2, 0).reshape(-1, width)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "golden" / "dialects")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    expected = {}
    with torch.no_grad():
        write_models(out, expected)
        write_positions(expected)
        weight = torch.randn(8, 3, 4, 4)
        expected["channels.3"] = weight
        expected |= {f"channels.{n}": adapt_input_conv(n, weight.clone()) for n in (1, 2, 4, 5)}
    save_file({k: t.contiguous() for k, t in expected.items()}, out / "expected.safetensors")
    for path in out.rglob("*.*"):
        path.chmod(0o644)
        print(f"{path.relative_to(out)!s:32} {path.stat().st_size:8} bytes")


if __name__ == "__main__":
    main()
