"""Compares `vitrum explain` with timm's attention for small random models of the families with registers, rotary
positions, biases by distance and pooling of their own.

    tools/python.sh tools/check/check_explain_families.py [--vitrum build/release/vitrum]

Needs torch, timm, safetensors, numpy and Pillow. Attention by layer and rollout, as matrices in NumPy have them:
registers take part in rollout and are left out of the picture. Exit status 1 where a map is off by more than 1e-4 of
its largest value.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import timm
import torch
from PIL import Image
from timm.models import save_for_hf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from check_live import perturb
from explain_reference import Probabilities, attention_map, rollout, vit_layers

warnings.filterwarnings("ignore")

SMALL = dict(img_size=64, patch_size=8, embed_dim=48, depth=3, num_heads=4, num_classes=5)
KINDS = ("deit3_small_patch16_224", "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2",
         "vit_giant_patch14_reg4_dinov2", "vit_small_patch16_dinov3_qkvb", "eva02_tiny_patch14_224",
         "eva02_large_patch14_448", "beit_base_patch16_224", "vit_base_patch16_clip_quickgelu_224", "flexivit_small",
         "vit_base_patch16_siglip_gap_224", "vit_base_patch16_siglip_224")
LIMIT = 1e-4


def pool_weights(pool, tokens):
    """How much the learned query of timm's AttentionPoolLatent looks at each token, the mean of its heads."""
    with torch.no_grad():
        width = tokens.shape[-1]
        keys = pool.kv(tokens)[0, :, :width].reshape(-1, pool.num_heads, width // pool.num_heads)
        query = pool.q(pool.latent)[0, 0].reshape(pool.num_heads, -1)
        return torch.einsum("thd,hd->ht", keys, query * pool.scale).softmax(-1).mean(0).numpy().astype(np.float64)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", type=pathlib.Path, default=root / "build" / "release" / "vitrum")
    args = parser.parse_args()
    torch.manual_seed(0)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        photo = folder / "photo.png"
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 96, 3), dtype=np.uint8)).save(photo)
        for name in KINDS:
            model = timm.create_model(name, **SMALL).eval()
            perturb(model)
            save_for_hf(model, folder / name, safe_serialization=True, model_args=SMALL)
            loaded = timm.create_model(f"local-dir:{folder / name}", pretrained=True).eval()
            transform = timm.data.create_transform(**timm.data.resolve_data_config(dict(input_size=(3, 64, 64)), model=loaded))
            pooled = []
            if getattr(loaded, "attn_pool", None) is not None:
                loaded.attn_pool.register_forward_pre_hook(lambda _, inputs: pooled.append(inputs[0].detach()))
            _, probs, _ = Probabilities(loaded)(transform(Image.open(photo)))
            subprocess.run([args.vitrum, "explain", photo, "--model", folder / name, "--output", folder / "out", "--npy",
                            "--force", "-q", "--precision", "f32"], check=True, stdout=subprocess.DEVNULL)
            layers = vit_layers(loaded)
            weights, prefix = np.zeros(layers[0].tokens), layers[0].prefix
            if pooled:
                weights = pool_weights(loaded.attn_pool, pooled[0])
            elif loaded.global_pool == "avg":
                weights[prefix:] = 1 / (layers[0].tokens - prefix)
            else:
                weights[0] = 1  # the class token alone, registers or not
            pairs = [("rollout", rollout(probs, layers, weights))]
            pairs += [(f"attention-{i:02}", attention_map(p, layer, weights)) for i, (p, layer) in
                      enumerate(zip(probs, layers))]
            worst = max(np.abs(np.load(folder / "out" / f"photo-{what}.npy") - theirs).max() / theirs.max()
                        for what, theirs in pairs)
            failed |= not worst <= LIMIT
            print(f"{name:40} {worst:.2e}{'' if worst <= LIMIT else '  FAILED'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
