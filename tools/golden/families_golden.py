"""Writes tests/golden/families: small models of today's families as timm and transformers save them, and their answers.

    venv/bin/python tools/golden/families_golden.py [--out DIR]

Needs torch, timm, transformers and safetensors. `expected.safetensors` holds images of 12 and 20 pixels, and what each
framework makes of them: logits, or features where there is no head.
"""

import argparse
import pathlib
import sys

import timm
import torch
import transformers
from safetensors.torch import save_file
from timm.models import save_for_hf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))
from check_live import perturb

ARGS = dict(img_size=12, patch_size=4, embed_dim=8, depth=2, num_heads=2, mlp_ratio=2)
TIMM = {  # the folder: timm's model and its number of classes
    "deit3": ("deit3_small_patch16_224", 3),
    "dinov2": ("vit_small_patch14_dinov2", 0),
    "registers": ("vit_small_patch14_reg4_dinov2", 3),
    "flexivit": ("flexivit_small", 3),
    "clip": ("vit_base_patch16_clip_quickgelu_224", 5),
}
HF = {"dinov2-hf": transformers.Dinov2Model, "dinov2-hf-head": transformers.Dinov2ForImageClassification}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "golden" / "families")
    out = parser.parse_args().out
    torch.manual_seed(0)
    images = {side: torch.randn(2, 3, side, side) for side in (12, 20)}
    expected = {f"image.{side}": image for side, image in images.items()}
    for folder, (name, classes) in TIMM.items():
        args = dict(ARGS, num_classes=classes)
        model = timm.create_model(name, **args).eval()
        perturb(model)
        save_for_hf(model, out / folder, safe_serialization=True, model_args=args)
        for side, image in images.items():
            sized = timm.create_model(f"local-dir:{out / folder}", pretrained=True, img_size=side).eval()
            expected[f"{folder}.{side}"] = sized(image)
    for folder, kind in HF.items():
        model = kind(transformers.Dinov2Config(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2,
                                               image_size=12, patch_size=4, num_labels=3)).eval()
        perturb(model)
        model.save_pretrained(out / folder)
        for side, image in images.items():
            answer = model(image)
            expected[f"{folder}.{side}"] = answer.logits if "logits" in answer else answer.pooler_output
    for extra in out.glob("*/README.md"):
        extra.unlink()
    save_file({name: tensor.detach().contiguous() for name, tensor in expected.items()}, out / "expected.safetensors")


if __name__ == "__main__":
    main()
