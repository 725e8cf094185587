"""Writes tests/golden/explain.safetensors: small timm models with a class token, with mean pooling and in
windows, one image each, its attention weights and their gradients for one class, and the maps made of them. Needs torch, timm, safetensors."""

import argparse
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer

from explain_reference import (Probabilities, attention_map, gradient_relevance, mean_distances, readout, rollout,
                               swin_layers, vit_layers)

SWIN = dict(img_size=16, patch_size=2, window_size=4, embed_dim=8, depths=(2, 2), num_heads=(1, 2), num_classes=4,
            mlp_ratio=1.0)
MODELS = {
    "token": (VisionTransformer, dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=5)),
    "mean": (VisionTransformer, dict(img_size=(8, 16), patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=4,
                                     mlp_ratio=1.0, class_token=False, global_pool="avg")),
    "swin": (SwinTransformer, SWIN),
}
TARGET = 2


def case(name, kind, config):
    torch.manual_seed(3)
    model = kind(**config).eval()
    for parameter in model.parameters():  # start values are so small that attention would be even
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 0.1)
    layers = swin_layers(model) if kind is SwinTransformer else vit_layers(model)
    size = np.array(model.patch_embed.img_size)
    pixels = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    logits, probs, grads = Probabilities(model)((pixels / 255.0 - 0.5) / 0.5, TARGET)
    weights = readout(layers[-1].tokens, layers[-1].prefix, mean=layers[-1].prefix == 0)
    arrays = {f"param.{n}": p.detach().numpy() for n, p in model.named_parameters()}
    arrays |= {"pixels": pixels.numpy(), "logits": logits}
    for i, layer in enumerate(layers):
        arrays |= {f"probs.{i}": probs[i], f"grads.{i}": grads[i],
                   f"distances.{i}": mean_distances(probs[i], layer, *size),
                   f"map.{i}": attention_map(probs[i], layer, readout(layer.tokens, layer.prefix, layer.prefix == 0))}
    arrays |= {f"rollout.{f}.{d}": rollout(probs, layers, weights, f, d / 100)
               for f in ("mean", "max", "min") for d in (0, 60)}
    arrays["gradient"] = gradient_relevance(probs, grads, layers, weights)
    return {f"{name}.{key}": np.ascontiguousarray(a if a.dtype == np.uint8 else a.astype(np.float32))
            for key, a in arrays.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=pathlib.Path(__file__).resolve().parents[2] / "tests/golden", type=pathlib.Path)
    out = parser.parse_args().out / "explain.safetensors"
    save_file({k: v for name, (kind, config) in MODELS.items() for k, v in case(name, kind, config).items()}, out)
    print(out, out.stat().st_size)
