"""Writes the golden files that the tests compare Vitrum with: tests/golden/*.safetensors.

    tools/python.sh tools/golden/models_golden.py [--out DIR] [CASE ...]

Runs on a CPU in seconds and writes the same bytes each time (same PyTorch, same machine).

A file holds `image` (B, C, H, W) as the model sees it, `labels`, `logits`, `loss` (mean cross-entropy) and, under
timm's parameter names, `param.NAME` and `grad.NAME`. Trained cases also hold ten steps on that one batch from the
same start: `after10.OPTIMIZER.NAME`, `losses.OPTIMIZER` (each before its step) and `norms.OPTIMIZER` (global
gradient norms before clipping). `logits64` and `grad64.NAME` come from a float64 run. Dropout cases hold the masks
as `mask.SITE` (u8, 1 = kept). The metadata entry `golden` is JSON: the model, the optimisers, the versions.
"""

import argparse
import copy
import functools
import json
import os
import pathlib

import numpy as np
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer

from peer_models import MinViT, MnistViT, patches, to_timm, with_class_token

OPTIMIZERS = {
    "adam": dict(lr=3e-4, weight_decay=1e-4),
    "adamw": dict(lr=1e-3, weight_decay=0.05, clip_norm=1.0),
    "sgd": dict(lr=0.05, momentum=0.9, weight_decay=1e-4),
}
TORCH_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}

# What every model is unless its case says otherwise; `dropout` lists the sites that a model has.
DEFAULTS = dict(channels=3, depth=2, eps=1e-5, norm="pre", final_norm="norm", act="gelu", qkv_bias=True, bias=True,
                norm_bias=True, final_norm_bias=True, head_bias=True, pool="token", layer_scale=False,
                patch_order="CPP", label_smoothing=0.0, dropout=[], optimizers=False)
POST = dict(norm="post", final_norm=None, act="relu", patch_order="PPC", width=32, heads=4, hidden=64, classes=11)
MIN = dict(qkv_bias=False, bias=False, norm_bias=False, head_bias=False, width=36, heads=4, hidden=144, classes=10,
           image=[8, 8], patch=4)
CASES = {
    "vit_prenorm": dict(image=[16, 16], patch=4, width=24, heads=3, hidden=96, depth=3, classes=7, batch=5, eps=1e-6,
                        optimizers=True, float64=True),
    "vit_postnorm": POST | dict(image=[14, 14], channels=1, patch=7, batch=5, optimizers=True),
    "minvit": MIN | dict(batch=5, optimizers=True),
    "vit_switches": dict(image=[12, 8], patch=4, width=24, heads=2, hidden=96, classes=7, batch=5, eps=1e-6,
                         act="gelu_tanh", pool="avg", layer_scale=True, final_norm="fc_norm", label_smoothing=0.1,
                         optimizers=True),
    "vit_dropout": POST | dict(image=[14, 14], channels=3, patch=7, batch=3,
                               dropout=["attn", "proj", "act", "fc2"]),
    "minvit_dropout": MIN | dict(batch=3, dropout=["pos", "fc2"]),
    "vit_dropout001": dict(image=[16, 16], patch=4, width=20, heads=2, hidden=80, classes=3, batch=3,
                           dropout=["pos", "act", "fc2"]),
    # 10 x 7 tokens in windows of 3 x 3, filled up and shifted, then 5 x 4 from an odd width
    "swin": dict(image=[20, 14], patch=2, width=4, depths=[2, 1], heads=[1, 2], window=3, mlp_ratio=2, classes=5,
                 batch=3, optimizers=True),
}
DROPOUT = dict(seed=7, step=3, p=0.1)


def philox(key, counter):
    """Philox4x32-10 over arrays: `counter` is four uint64 arrays that hold 32 bits each."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ np.uint64(k0), b & low, \
            (a >> np.uint64(32)) ^ c3 ^ np.uint64(k1), a & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3))


def draw16(site, per_row, row, u):
    """vitrum/core/philox.h's draw16 for arrays of rows and elements."""
    counter = row * per_row + u % per_row
    half = u // per_row
    seed, step = DROPOUT["seed"], DROPOUT["step"]
    words = (counter & 0xFFFFFFFF, (counter >> 32) ^ ((step >> 32) << 16 & 0xFFFFFFFF),
             np.full_like(counter, step & 0xFFFFFFFF), np.full_like(counter, site))
    block = philox(seed, [w.astype(np.uint64) for w in words])
    word = np.take_along_axis(block, (half // 2)[None], axis=0)[0]
    return (word >> (16 * (half % 2)).astype(np.uint64)) & np.uint64(0xFFFF)


class Masks:
    """Multiplies by masks, one new random site a call; keeps what it drew."""

    def __init__(self, places):
        self.places, self.kept = places, {}

    def __call__(self, place, x):
        if place not in self.places:
            return x
        index = np.arange(x.numel(), dtype=np.int64)
        per_element_row = x.shape[-1] if place == "attn" else 128  # weights (B, H, T, T) are drawn by rows of T
        bits = draw16(len(self.kept), (per_element_row + 7) // 8, index // per_element_row, index % per_element_row)
        threshold = int((1.0 - float(np.float32(DROPOUT["p"]))) * 65536.0 + 0.5)
        kept = torch.from_numpy(bits < threshold).reshape(x.shape)
        self.kept[f"mask.{len(self.kept)}"] = kept.to(torch.uint8)
        return x * kept * float(np.float32(65536.0 / threshold))


def explicit_vit(c, params, image, drop=lambda place, x: x):
    """The whole family in plain operations: needed for chosen dropout masks, checked against the modules."""
    def linear(name, x):
        return F.linear(x, params[f"{name}.weight"].flatten(1), params.get(f"{name}.bias"))

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], params[f"{name}.weight"], params.get(f"{name}.bias"), c["eps"])

    def scale(name, x):
        return x * params[f"{name}.gamma"] if c["layer_scale"] else x

    def attention(name, x):
        q, k, v = linear(f"{name}.qkv", x).unflatten(-1, (3, c["heads"], -1)).permute(2, 0, 3, 1, 4)
        weights = drop("attn", (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1))
        return drop("proj", linear(f"{name}.proj", (weights @ v).transpose(1, 2).flatten(2)))

    def activation(x):
        return F.relu(x) if c["act"] == "relu" else F.gelu(x, approximate="tanh" if "tanh" in c["act"] else "none")

    def mlp(name, x):
        return drop("fc2", linear(f"{name}.fc2", drop("act", activation(linear(f"{name}.fc1", x)))))

    x = linear("patch_embed.proj", patches(image, c["patch"], c["patch_order"] == "PPC"))
    x = drop("pos", with_class_token(params["cls_token"], x) + params["pos_embed"])
    for i in range(c["depth"]):
        b = f"blocks.{i}"
        if c["norm"] == "pre":
            x = x + scale(f"{b}.ls1", attention(f"{b}.attn", norm(f"{b}.norm1", x)))
            x = x + scale(f"{b}.ls2", mlp(f"{b}.mlp", norm(f"{b}.norm2", x)))
        else:
            x = norm(f"{b}.norm1", x + attention(f"{b}.attn", x))
            x = norm(f"{b}.norm2", x + mlp(f"{b}.mlp", x))
    x = x[:, 1:].mean(1) if c["pool"] == "avg" else x[:, 0]
    return linear("head", norm(c["final_norm"], x) if c["final_norm"] else x)


def module(c):
    """The peer's own module for a case, without dropout."""
    if "window" in c:
        return SwinTransformer(
            img_size=tuple(c["image"]), patch_size=c["patch"], num_classes=c["classes"], embed_dim=c["width"],
            depths=c["depths"], num_heads=c["heads"], window_size=c["window"], mlp_ratio=c["mlp_ratio"],
            drop_path_rate=0.0)
    if c["norm"] == "post":
        return MnistViT(c["image"][0], c["channels"], c["patch"], c["width"], c["heads"], c["depth"], c["hidden"],
                        c["classes"], dropout=0.0)
    if not c["bias"]:
        return MinViT(c["image"][0], c["channels"], c["patch"], c["width"], c["heads"], c["depth"], c["classes"],
                      dropout=0.0, sdpa=False)
    return VisionTransformer(
        img_size=tuple(c["image"]), patch_size=c["patch"], in_chans=c["channels"], num_classes=c["classes"],
        embed_dim=c["width"], depth=c["depth"], num_heads=c["heads"], mlp_ratio=c["hidden"] / c["width"],
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=c["eps"]), global_pool=c["pool"],
        init_values=0.1 if c["layer_scale"] else None, act_layer=c["act"])


def randomise(model, generator):
    """No parameter keeps a value (0, 1) that would hide an error in its use."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        with torch.no_grad():
            if "norm" in name and name.endswith("weight"):
                p.copy_(1 + 0.2 * noise)
            elif name.endswith("gamma"):
                p.copy_(0.6 + 0.2 * noise)
            elif name.endswith("bias"):
                p.copy_(0.1 * noise)
            elif p.dim() == 3 or name.endswith("table"):  # class token, positions
                p.copy_(0.5 * noise)
            else:
                p.copy_(noise / p[0].numel() ** 0.5)


def prefixed(prefix, tensors):
    return {f"{prefix}.{name}": t for name, t in tensors.items()}


def loss_of(c, logits, labels):
    return F.cross_entropy(logits, labels, label_smoothing=c["label_smoothing"])


def forward_backward(c, model, image, labels):
    logits = model(image)
    loss = loss_of(c, logits, labels)
    model.zero_grad()
    loss.backward()
    return logits.detach(), loss.detach()


def optimiser_steps(c, model, image, labels):
    out = {}
    for name, options in OPTIMIZERS.items():
        trained = copy.deepcopy(model)
        torch_options = {k: v for k, v in options.items() if k != "clip_norm"}
        optimizer = TORCH_OPTIMIZERS[name](trained.parameters(), **torch_options)
        losses, norms = [], []
        for _ in range(10):
            losses.append(forward_backward(c, trained, image, labels)[1])
            limit = options.get("clip_norm", float("inf"))
            norms.append(torch.nn.utils.clip_grad_norm_(trained.parameters(), limit))
            optimizer.step()
        out |= prefixed(f"after10.{name}", to_timm(trained, lambda p: p))
        out |= {f"losses.{name}": torch.stack(losses), f"norms.{name}": torch.stack(norms)}
    return out


def soft_targets(logits, generator):
    """Mixed labels, as mixup makes them: loss and its gradient at the logits."""
    targets = torch.softmax(2 * torch.randn(logits.shape, generator=generator), -1)
    logits = logits.clone().requires_grad_()
    loss = F.cross_entropy(logits, targets)
    loss.backward()
    return {"soft.targets": targets, "soft.loss": loss.detach(), "soft.dlogits": logits.grad}


def dropped(c, params, image, labels):
    masks = Masks(c["dropout"])
    params = {name: p.clone().requires_grad_() for name, p in params.items()}
    logits = explicit_vit(c, params, image, masks)
    loss = loss_of(c, logits, labels)
    loss.backward()
    gradients = {name: p.grad for name, p in params.items()}
    return {"logits": logits.detach(), "loss": loss.detach(), **prefixed("grad", gradients), **masks.kept}


def build(c, generator):
    model = module(c)
    randomise(model, generator)
    shape = (c["batch"], c["channels"], *c["image"])
    if type(model) in (VisionTransformer, SwinTransformer):
        image = torch.randn(shape, generator=generator)  # mean and deviation taken out
    else:
        image = torch.rand(shape, generator=generator)
    labels = torch.randint(c["classes"], (c["batch"],), generator=generator)
    params = to_timm(model, lambda p: p)
    logits, loss = forward_backward(c, model, image, labels)
    if "window" not in c:
        torch.testing.assert_close(explicit_vit(c, params, image), logits, rtol=1e-5, atol=1e-5)

    out = {"image": image, "labels": labels.to(torch.int32), **prefixed("param", params)}
    if c["dropout"]:
        return out | dropped(c, params, image, labels)
    out |= {"logits": logits, "loss": loss, **prefixed("grad", to_timm(model, lambda p: p.grad))}
    if c["label_smoothing"]:
        out |= soft_targets(logits, generator)
    if c.get("float64"):
        double = copy.deepcopy(model).double()
        out["logits64"] = forward_backward(c, double, image.double(), labels)[0]
        out |= prefixed("grad64", to_timm(double, lambda p: p.grad))
    return out | optimiser_steps(c, model, image, labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden")
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[], metavar="CASE")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the number of threads changes the order of sums
    torch.use_deterministic_algorithms(True)
    os.makedirs(args.out, exist_ok=True)
    for seed, (name, case) in enumerate(CASES.items()):
        if args.cases and name not in args.cases:
            continue
        c = DEFAULTS | case
        tensors = build(c, torch.Generator().manual_seed(seed))
        about = {"case": name, "model": c, "torch": torch.__version__, "timm": timm.__version__}
        about |= {"optimizers": OPTIMIZERS} if c["optimizers"] else {}
        about |= {"random": DROPOUT} if c["dropout"] else {}
        path = args.out / f"{name}.safetensors"
        # One metadata entry only: the writer does not keep the order of several.
        save_file({k: t.contiguous() for k, t in tensors.items()}, path, {"golden": json.dumps(about)})
        path.chmod(0o644)  # the writer leaves it readable to its owner only
        print(f"{path.name:32} {path.stat().st_size:8} bytes  loss {tensors['loss']:.6f}")


if __name__ == "__main__":
    main()
