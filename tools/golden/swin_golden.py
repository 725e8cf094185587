"""Writes tests/golden/swin: one small Swin in every framework's files, and what those frameworks make of it.

    tools/python.sh tools/golden/swin_golden.py [--out DIR]

Needs torch, timm, torchvision, transformers, safetensors and numpy. `expected.safetensors` holds images of 32 and 40
pixels with the logits of each framework (40 pixels do not fill whole windows), and bias tables for other windows under
each rule.
"""

import sys
import argparse
import pathlib

import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from timm.layers import resize_rel_pos_bias_table
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_simple
from timm.models import save_for_hf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))
from check_swin import Size, perturb

MODEL = Size("golden", None, image=32, patch=4, width=4, depths=[2, 2], heads=[1, 2], window=4, classes=3, mlp_ratio=2)


def tables(expected):
    """A table of windows of 4 x 4, for windows of 7, 3 and 12."""
    table = torch.randn(49, 2)
    expected["table"] = table
    for window in (3, 7, 12):
        size, shape = (window, window), ((2 * window - 1) ** 2, 2)
        expected[f"table.timm.{window}"] = resize_rel_pos_bias_table(table, size, shape)
        expected[f"table.bicubic.{window}"] = resize_rel_pos_bias_table_simple(table, size, shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "swin")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = MODEL.timm()
    perturb(model)
    expected = {f"image.{side}": torch.randn(2, 3, side, side) for side in (32, 40)}

    save_for_hf(model, out / "timm", safe_serialization=True, model_args=MODEL.timm_args())
    torch.save({"model": MODEL.microsoft_state(model)}, out / "microsoft.pth")
    hf = transformers.SwinForImageClassification(MODEL.hf_config()).eval()
    hf.load_state_dict(MODEL.hf_state(model))
    hf.save_pretrained(out / "hf")
    save_file({k: v.contiguous() for k, v in hf.state_dict().items()}, out / "hf5.safetensors")
    tv = MODEL.torchvision()
    tv.load_state_dict(MODEL.torchvision_state(model), strict=False)
    save_file(tv.state_dict(), out / "torchvision.safetensors")

    for side in (32, 40):
        other = MODEL.timm(img_size=side)
        other.load_state_dict(model.state_dict())
        expected[f"logits.timm.{side}"] = other(expected[f"image.{side}"])
        # A fresh one each time: transformers' blocks stop shifting for good once they saw a small image.
        fresh = transformers.SwinForImageClassification.from_pretrained(out / "hf").eval()
        expected[f"logits.hf.{side}"] = fresh(expected[f"image.{side}"]).logits
        expected[f"logits.torchvision.{side}"] = tv(expected[f"image.{side}"])
    tables(expected)
    save_file({k: v.detach().contiguous() for k, v in expected.items()}, out / "expected.safetensors")
    for path in out.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            print(f"{str(path.relative_to(out)):28} {path.stat().st_size:8} bytes")


if __name__ == "__main__":
    main()
