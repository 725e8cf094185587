"""Writes tests/golden/mae.safetensors: a small masked autoencoder of transformers, its loss and gradients with our masks.

    tools/python.sh tools/golden/mae_golden.py [--out DIR]

The file holds `image` (f32, normalised), `loss`, `loss.plain` (pixels not normalised by patch) and, under our names,
`param.NAME`, `grad.NAME` and `grad.plain.NAME`; of `mask` 1 is what is not seen. The metadata entry `golden` is JSON: the
model, and the state of the random numbers.
"""

import argparse
import json
import pathlib

import torch
import transformers
from mae_reference import by_our_names, loss_and_gradients, our_noise, random_model
from safetensors.torch import save_file
from transformers import ViTMAEConfig

MODEL = dict(image_size=24, patch_size=4, num_channels=3, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
             intermediate_size=24, decoder_hidden_size=12, decoder_num_hidden_layers=1, decoder_num_attention_heads=3,
             decoder_intermediate_size=20, mask_ratio=0.75, layer_norm_eps=1e-6)
SEED, STEP, BATCH = 7, (5 << 32) + 3, 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "tests/golden")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = random_model(ViTMAEConfig(**MODEL))
    patches = (MODEL["image_size"] // MODEL["patch_size"]) ** 2
    noise = our_noise(SEED, STEP, BATCH, patches, MODEL["mask_ratio"])
    image = torch.randn(BATCH, 3, MODEL["image_size"], MODEL["image_size"])
    tensors = {"image": image, "mask": noise}
    for kind, normal in (("", True), ("plain.", False)):
        model.config.norm_pix_loss = normal
        loss, gradients = loss_and_gradients(model, image, noise)
        tensors["loss" + ("" if normal else ".plain")] = torch.tensor([loss])
        tensors |= {f"grad.{kind}{n}": g.clone() for n, g in gradients.items() if "pos_embed" not in n}
    params = by_our_names({n: p.detach() for n, p in model.named_parameters()}, model.config)
    tensors |= {f"param.{n}": p.clone() for n, p in params.items()}
    about = dict(model=MODEL, seed=SEED, step=[STEP & 0xFFFFFFFF, STEP >> 32], batch=BATCH, torch=torch.__version__,
                 transformers=transformers.__version__)
    save_file({k: t.contiguous() for k, t in tensors.items()}, args.out / "mae.safetensors", {"golden": json.dumps(about)})


if __name__ == "__main__":
    main()
