"""Compares trained adapters with peft: `vitrum finetune` with LoRA, its adapter on timm's model, and the merged model.

    tools/python.sh tools/check/check_lora.py --weights DIR --data DATA [--vitrum build/release/vitrum]

Needs torch, timm, safetensors, numpy and peft. DIR is a model directory that timm reads, DATA as `vitrum train` takes it.
A few steps are enough: what counts is that three ways to the same logits agree. Exit status 1 when they do not.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import timm
import torch
from peft import PeftModel

SETTINGS = ["lora=4", "lora_alpha=8", 'lora_targets=["qkv", "proj", "fc1", "fc2"]', "lr=0.01", "max_steps=4",
            "batch_size=8", "subset=32", "precision=f32"]
TOLERANCE = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vitrum", default="build/release/vitrum")
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--data", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        subprocess.run([args.vitrum, "finetune", "--weights", args.weights, "--data", args.data, "--out", run, "-q",
                        *sets], check=True)
        merged = timm.create_model(f"local-dir:{run / 'last'}", pretrained=True).eval()
        base = timm.create_model(f"local-dir:{args.weights.resolve()}", pretrained=True,
                                 num_classes=merged.num_classes).eval()
        image = torch.randn(2, 3, *merged.patch_embed.img_size)
        np.save(run / "in.npy", image.numpy())
        subprocess.run([args.vitrum, "forward", "--model", run / "last", "--input", run / "in.npy", "--output",
                        run / "out.npy", "--precision", "f32", "-q"], check=True)
        with torch.no_grad():
            expected = merged(image).numpy()
            adapted = PeftModel.from_pretrained(base, run / "last" / "adapter").eval()
            found = {"timm's base and peft's adapter": adapted(image).numpy(), "vitrum, merged": np.load(run / "out.npy")}
    worst = 0
    for name, logits in found.items():
        difference = np.abs(logits - expected).max() / np.abs(expected).max()
        worst = max(worst, difference)
        print(f"{name:32} differs from the merged model in timm by {difference:.1e}")
    sys.exit(int(worst > TOLERANCE))


if __name__ == "__main__":
    main()
