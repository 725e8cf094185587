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
# Those with positions inside attention, whose heads must have a multiple of four values.
ROTARY = dict(ARGS, embed_dim=16)
INSIDE = {
    "dinov3": ("vit_small_patch16_dinov3_qkvb", 3),
    "dinov3-gated": ("vit_small_plus_patch16_dinov3", 0),
    "eva02": ("eva02_tiny_patch14_224", 3),
    "eva02-apart": ("eva02_base_patch14_224", 3),
    "eva02-clip": ("eva02_base_patch16_clip_224", 5),
    "beit": ("beit_base_patch16_224", 3),
}
HF = {"dinov2-hf": transformers.Dinov2Model, "dinov2-hf-head": transformers.Dinov2ForImageClassification}


def hf_inside():
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4)
    hidden = dict(intermediate_size=32)
    dinov3 = dict(sizes, **hidden, num_register_tokens=2)
    return {
        "dinov3-hf": transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**dinov3)),
        "dinov3-gated-hf": transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(
            **dinov3, use_gated_mlp=True, hidden_act="silu")),
        "beit-hf": transformers.BeitForImageClassification(transformers.BeitConfig(
            **sizes, **hidden, use_relative_position_bias=True, num_labels=3)),
        "dinov2-gated-hf": transformers.Dinov2ForImageClassification(transformers.Dinov2Config(
            **sizes, mlp_ratio=4, use_swiglu_ffn=True, num_labels=3)),
        "mae-hf": transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(
            **sizes, **hidden, decoder_hidden_size=8, decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
            decoder_intermediate_size=16, mask_ratio=0.0)),
    }


def hf_more():
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4)
    tower = dict(sizes, intermediate_size=24)
    registers = dict(sizes, mlp_ratio=2, num_register_tokens=3)
    return {
        "registers-hf": transformers.Dinov2WithRegistersForImageClassification(
            transformers.Dinov2WithRegistersConfig(**registers, num_labels=3)),
        "registers-gated-hf": transformers.Dinov2WithRegistersModel(
            transformers.Dinov2WithRegistersConfig(**registers, use_swiglu_ffn=True)),
        "clip-classifier-hf": transformers.CLIPForImageClassification(
            transformers.CLIPConfig(vision_config=tower, num_labels=3)),
        "siglip-classifier-hf": transformers.SiglipForImageClassification(
            transformers.SiglipConfig(vision_config=tower, num_labels=3)),
    }


def more(out, images, expected, save_timm, save_hf):
    """What came later, behind everything else, so that the files before it stay as they are."""
    for folder, model in hf_more().items():
        tower = "classifier" in folder
        save_hf(folder, model.eval(), lambda m, x: result(m, x, **(dict(interpolate_pos_encoding=True) if tower else {})))
    save_timm("siglip-gap", "vit_base_patch16_siglip_gap_224", dict(ARGS, num_classes=3))
    # Patches of another size.
    for folder in ("flexivit", "dinov2"):
        for patch in (2, 3, 6):
            sized = timm.create_model(f"local-dir:{out / folder}", pretrained=True, patch_size=patch).eval()
            expected[f"{folder}.patch{patch}"] = sized(images[12])
    # Meta's own rule for positions: their scale is that of a tenth of a patch more.
    model = timm.create_model(f"local-dir:{out / 'dinov2'}", pretrained=True).eval()
    positions = model.pos_embed.detach()
    patches = positions[:, 1:].reshape(1, 3, 3, -1).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(patches, scale_factor=((5 + 0.1) / 3,) * 2, mode="bicubic")
    sized = timm.create_model(f"local-dir:{out / 'dinov2'}", pretrained=True, img_size=20).eval()
    with torch.no_grad():
        sized.pos_embed.copy_(torch.cat([positions[:, :1], resized.permute(0, 2, 3, 1).flatten(1, 2)], 1))
    expected["dinov2-meta.20"] = sized(images[20])


def result(model, image, **args):
    answer = model(image, **args)
    return answer.logits if "logits" in answer else answer.pooler_output


def any_size(model, image):
    beit = "Beit" in type(model).__name__
    return result(model, image, **(dict(interpolate_pos_encoding=True) if beit else {}))


def mae_token(model, image):
    return model.vit(image, interpolate_pos_encoding=True).last_hidden_state[:, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "golden" / "families")
    out = parser.parse_args().out
    torch.manual_seed(0)
    images = {side: torch.randn(2, 3, side, side) for side in (12, 20)}
    expected = {f"image.{side}": image for side, image in images.items()}

    def save_timm(folder, name, args):
        model = timm.create_model(name, **args).eval()
        perturb(model)
        save_for_hf(model, out / folder, safe_serialization=True, model_args=args)
        for side, image in images.items():
            sized = timm.create_model(f"local-dir:{out / folder}", pretrained=True, img_size=side).eval()
            expected[f"{folder}.{side}"] = sized(image)

    def save_hf(folder, model, answer):
        perturb(model)
        model.save_pretrained(out / folder)
        for side, image in images.items():
            expected[f"{folder}.{side}"] = answer(model, image)

    for folder, (name, classes) in TIMM.items():
        save_timm(folder, name, dict(ARGS, num_classes=classes))
    for folder, kind in HF.items():
        model = kind(transformers.Dinov2Config(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2,
                                               image_size=12, patch_size=4, num_labels=3)).eval()
        save_hf(folder, model, result)
    for folder, (name, classes) in INSIDE.items():
        save_timm(folder, name, dict(ROTARY, num_classes=classes))
    for folder, model in hf_inside().items():
        save_hf(folder, model.eval(), mae_token if folder == "mae-hf" else any_size)
    more(out, images, expected, save_timm, save_hf)
    for extra in out.glob("*/README.md"):
        extra.unlink()
    save_file({name: tensor.detach().contiguous() for name, tensor in expected.items()}, out / "expected.safetensors")


if __name__ == "__main__":
    main()
