"""Writes tests/golden/explain.safetensors: small timm models with a class token and with mean pooling, one image,
its attention weights and their gradients for one class, and the maps made of them. Needs torch, timm, safetensors."""

import argparse
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from timm.models.vision_transformer import VisionTransformer

from explain_reference import Probabilities, gradient_relevance, mean_distances, readout, rollout

MODELS = {
    "token": dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=5),
    "mean": dict(img_size=(8, 16), patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=4, mlp_ratio=1.0,
                 class_token=False, global_pool="avg"),
}
TARGET = 2


def case(name, config):
    torch.manual_seed(3)
    model = VisionTransformer(**config).eval()
    for parameter in model.parameters():  # start values are so small that attention would be even
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 0.1)
    rows, columns = model.patch_embed.grid_size
    prefix = model.num_prefix_tokens
    pixels = torch.randint(0, 256, (3, 4 * rows, 4 * columns), dtype=torch.uint8)
    logits, probs, grads = Probabilities(model)((pixels / 255.0 - 0.5) / 0.5, TARGET)
    weights = readout(probs[0].shape[-1], prefix, mean=prefix == 0)
    grid = lambda x: x.reshape(rows, columns)
    arrays = {f"param.{n}": p.detach().numpy() for n, p in model.named_parameters()}
    arrays |= {"pixels": pixels.numpy(), "logits": logits, "probs": np.stack(probs), "grads": np.stack(grads)}
    arrays |= {f"rollout.{f}.{d}": grid(rollout(probs, weights, prefix, f, d / 100))
               for f in ("mean", "max", "min") for d in (0, 60)}
    arrays["gradient"] = grid(gradient_relevance(probs, grads, weights, prefix))
    arrays["distances"] = np.stack([mean_distances(p, prefix, rows, columns, 4, 4) for p in probs])
    return {f"{name}.{key}": np.ascontiguousarray(a if a.dtype == np.uint8 else a.astype(np.float32))
            for key, a in arrays.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=pathlib.Path(__file__).parent.parent / "tests/golden", type=pathlib.Path)
    out = parser.parse_args().out / "explain.safetensors"
    save_file({k: v for name, config in MODELS.items() for k, v in case(name, config).items()}, out)
    print(out, out.stat().st_size)
