"""Compares full-size models with PyTorch: random weights written in timm's layout, logits from `vitrum forward`.

    tools/python.sh tools/check/check_live.py [--vitrum build/release/vitrum] [--model NAME ...]

Needs torch, timm, safetensors and numpy. Exit status 1 when any model differs by more than the tolerance.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from peer_models import MinViT, MnistViT, to_timm

MODELS = {  # name: (constructor, image shape)
    "vit_tiny_patch16_224": (lambda: timm.create_model("vit_tiny_patch16_224"), (3, 224, 224)),
    "minvit_cifar10": (MinViT, (3, 32, 32)),
    "vit_mnist": (MnistViT, (1, 28, 28)),
}


def perturb(model):
    """Fresh biases, tokens and norms are often 0 or 1, where a swapped or forgotten one would not show."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))


def save_directory(name, model, classes, shape, folder):
    if hasattr(model, "timm_names"):
        config = {"architecture": name, "num_classes": classes, "pretrained_cfg": {"input_size": shape}}
        (folder / "config.json").write_text(json.dumps(config))
        tensors = to_timm(model, lambda p: p)
        save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "model.safetensors")
    else:
        save_for_hf(model, folder, safe_serialization=True)


def difference(vitrum, name):
    """|ours - theirs| over |theirs|, of all logits of four random images."""
    construct, shape = MODELS[name]
    model = construct().eval()
    perturb(model)
    image = torch.rand(4, *shape)
    with torch.no_grad():
        expected = model(image).numpy()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "model").mkdir()
        save_directory(name, model, expected.shape[1], shape, folder / "model")
        np.save(folder / "in.npy", image.numpy())
        subprocess.run([vitrum, "forward", "--model", folder / "model", "--input", folder / "in.npy", "--output",
                        folder / "out.npy", "--precision", "f32", "--quiet"], check=True)
        found = np.load(folder / "out.npy")
    assert found.shape == expected.shape, f"{name}: shape {found.shape}, expected {expected.shape}"
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", default=root / "build" / "release" / "vitrum")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    torch.manual_seed(0)
    failed = False
    for name in args.model or MODELS:
        error = difference(args.vitrum, name)
        failed |= not error <= args.tolerance  # NaN fails too
        print(f"{name:24} relative difference {error:.2e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
