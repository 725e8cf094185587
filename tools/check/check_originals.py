"""Compares files in the names of models' authors with timm's readers of them and with the authors' own code: random
weights, logits from `vitrum forward`, in and out.

    tools/python.sh tools/check/check_originals.py [--vitrum build/release/vitrum] [--authors DIR]

Needs torch, timm, safetensors and numpy. What `vitrum convert --to original` writes goes through timm's
checkpoint_filter_fn into timm's class. With --authors, a folder that holds clones of facebookresearch/dinov2, dinov3,
ConvNeXt, ConvNeXt-V2 and deit and of microsoft/Swin-Transformer, it is also loaded by those, with strict=True, and
their own random weights are read here, at the stored and at another image size. Exit status 1 when any logits differ
by more than the tolerance relative to their norm.
"""

import argparse
import copy
import functools
import importlib
import pathlib
import shutil
import sys
import tempfile
import types
import warnings

import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

from check_dialects import Vitrum
from check_live import perturb

warnings.filterwarnings("ignore")

SMALL = dict(img_size=64, patch_size=8, embed_dim=48, depth=3, num_heads=4)
SWIN = dict(img_size=64, embed_dim=32, depths=[2, 2, 2], num_heads=[1, 2, 4], window_size=4, num_classes=7)
CONV = dict(depths=[1, 2, 2, 1], dims=[24, 40, 64, 96], num_classes=7)
KINDS = {  # timm's name and what makes it small, by what the authors call it; the module of timm that reads their files
    "dinov2": ("vit_small_patch14_dinov2", dict(SMALL, num_classes=0), "vision_transformer"),
    "dinov2 registers": ("vit_small_patch14_reg4_dinov2", dict(SMALL, num_classes=0), "vision_transformer"),
    "dinov2 gated": ("vit_giant_patch14_dinov2", dict(SMALL, num_classes=0), "vision_transformer"),
    "dinov2 gated registers": ("vit_giant_patch14_reg4_dinov2", dict(SMALL, num_classes=0), "vision_transformer"),
    "dinov3": ("vit_small_patch16_dinov3_qkvb", dict(SMALL, num_classes=0, global_pool="token"), "eva"),
    "dinov3 gated": ("vit_huge_plus_patch16_dinov3_qkvb", dict(SMALL, num_classes=0, global_pool="token"), "eva"),
    "deit3": ("deit3_small_patch16_224", dict(SMALL, num_classes=7), "deit"),
    "deit": ("deit_tiny_distilled_patch16_224", dict(SMALL, num_classes=7), "deit"),
    "mae": ("vit_base_patch16_224", dict(SMALL, num_classes=0), "vision_transformer"),
    "beit": ("beit_base_patch16_224", dict(SMALL, num_classes=7), "beit"),
    "eva02": ("eva02_tiny_patch14_224", dict(SMALL, num_classes=7), "eva"),
    "eva02 apart": ("eva02_large_patch14_448", dict(SMALL, num_classes=7), "eva"),
    "eva02 clip": ("eva02_base_patch16_clip_224", dict(SMALL, num_classes=7), "eva"),
    "clip": ("vit_base_patch16_clip_quickgelu_224", dict(SMALL, num_classes=12), "vision_transformer"),
    "swinv2": ("swinv2_tiny_window8_256", SWIN, "swin_transformer_v2"),
    "swin": ("swin_tiny_patch4_window7_224", SWIN, "swin_transformer"),
    "convnext": ("convnext_tiny", CONV, "convnext"),
    "convnextv2": ("convnextv2_tiny", CONV, "convnext"),
}


def imported(authors, repository, module):
    """A module of a clone; several have a package called models."""
    for name in [m for m in sys.modules if m.split(".")[0] in ("models", "models_v2", "MinkowskiEngine")]:
        del sys.modules[name]
    stub = types.ModuleType("MinkowskiEngine")  # of sparse pretraining
    stub.SparseTensor = object
    sys.modules["MinkowskiEngine"] = stub
    sys.path.insert(0, str(authors / repository))
    try:
        return importlib.import_module(module)
    finally:
        sys.path.pop(0)


def authors_models(authors):
    """The same sizes in the authors' words."""
    sizes = dict(img_size=64, patch_size=8, embed_dim=48, depth=3, num_heads=4)

    def dinov2(registers, gated):
        made = imported(authors, "dinov2", "dinov2.models.vision_transformer").DinoVisionTransformer
        return made(**sizes, init_values=1.0, block_chunks=0, num_register_tokens=registers,
                    ffn_layer="swiglufused" if gated else "mlp", interpolate_antialias=registers > 0,
                    interpolate_offset=0.0 if registers else 0.1)

    def dinov3(gated):
        made = imported(authors, "dinov3", "dinov3.models.vision_transformer").DinoVisionTransformer
        model = made(**sizes, pos_embed_rope_dtype="fp32", layerscale_init=1.0, norm_layer="layernormbf16",
                     ffn_layer="swiglu" if gated else "mlp", ffn_ratio=6 if gated else 4, n_storage_tokens=4,
                     mask_k_bias=True)
        model.init_weights()
        return model

    def deit3():
        module = imported(authors, "deit", "models_v2")
        return module.vit_models(**sizes, num_classes=7, mlp_ratio=4, qkv_bias=True,
                                 norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6),
                                 block_layers=module.Layer_scale_init_Block)

    swin = dict(SWIN)
    return {
        "dinov2": lambda: dinov2(0, False), "dinov2 registers": lambda: dinov2(4, False),
        "dinov2 gated": lambda: dinov2(0, True), "dinov2 gated registers": lambda: dinov2(4, True),
        "dinov3": lambda: dinov3(False), "dinov3 gated": lambda: dinov3(True), "deit3": deit3,
        "swinv2": lambda: imported(authors, "Swin-Transformer", "models.swin_transformer_v2").SwinTransformerV2(**swin),
        "swin": lambda: imported(authors, "Swin-Transformer", "models.swin_transformer").SwinTransformer(**swin),
        "convnext": lambda: imported(authors, "ConvNeXt", "models.convnext").ConvNeXt(**CONV),
        "convnextv2": lambda: imported(authors, "ConvNeXt-V2", "models.convnextv2").ConvNeXtV2(**CONV),
    }


def checks(v, folder, authors):
    theirs = authors_models(authors) if authors else {}
    image, large = torch.randn(2, 3, 64, 64), torch.randn(2, 3, 96, 96)
    # All of timm's first: a clone may register models under timm's names.
    made = {kind: timm.create_model(name, **args).eval() for kind, (name, args, _) in KINDS.items()}
    for kind, (name, args, module) in KINDS.items():
        at = folder / kind.replace(" ", "-")
        perturb(made[kind])
        if kind == "clip":  # OpenAI's projections have no bias, timm's one of zeros
            made[kind].head.bias.zero_()
        save_for_hf(made[kind], at, safe_serialization=True, model_args=args)
        expected = made[kind](image)
        sized = ("--image-size", 64)
        v.run("convert", at, f"{at}.pth", "--to", "original")
        state = torch.load(f"{at}.pth", weights_only=True)
        again = perturbed(made[kind])
        reader = getattr(timm.models, module).checkpoint_filter_fn
        extra = dict(adapt_layer_scale=True) if kind == "deit3" else {}
        again.load_state_dict(reader(dict(state), again, **extra), strict="swin" not in kind)
        yield f"{kind}, written, through timm's reader", again(image), expected
        again_dir = folder / f"{at.name}-again"
        shutil.copytree(at, again_dir)
        save_file({k: t.contiguous() for k, t in state.items()}, again_dir / "model.safetensors")
        if kind != "clip":  # timm's config says that there is a bias
            yield f"{kind}, written and read again", v.forward(again_dir, image, *sized), expected
        if kind not in theirs:
            continue
        peer = theirs[kind]().eval()
        missing, unexpected = peer.load_state_dict(state, strict=False)
        buffers = ("relative_", "attn_mask")  # that their own loaders make anew
        assert not unexpected and all(any(b in k for b in buffers) for k in missing), (kind, missing, unexpected)
        yield f"{kind}, written, in its authors' code", peer(image), expected
        perturb(peer)
        with torch.no_grad():
            for n, p in peer.named_parameters():
                if n == "mask_token":
                    p.zero_()
        own = folder / f"{at.name}-own"
        shutil.copytree(at, own)
        (own / "model.safetensors").unlink()
        torch.save({"model": peer.state_dict()}, own / "pytorch_model.bin")
        yield f"{kind}, its authors' weights", v.forward(own, image, *sized), peer(image)
        if "swin" not in kind and kind != "deit3":
            yield f"{kind}, its authors' weights at 96 px", v.forward(own, large, "--image-size", 96), peer(large)


def perturbed(model):
    """Another of the same class with other weights."""
    other = copy.deepcopy(model)
    perturb(other)
    return other


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", type=pathlib.Path, default=root / "build" / "release" / "vitrum")
    parser.add_argument("--authors", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=2e-5)
    args = parser.parse_args()
    torch.manual_seed(0)
    failed = False
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        folder = pathlib.Path(folder)
        for what, found, expected in checks(Vitrum(args.vitrum, folder), folder, args.authors):
            assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
            error = ((found - expected).norm() / expected.norm()).item()
            bad = not error <= args.tolerance  # NaN fails too
            failed |= bad
            print(f"{what:56} {error:.2e}{'  FAILED' if bad else ''}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
