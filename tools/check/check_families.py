"""Compares DeiT III, DINOv2, DINOv3, EVA-02, BEiT, MAE, FlexiViT and the image towers of CLIP and SigLIP with timm and
transformers: random weights, logits from `vitrum forward`, gradients of every parameter, patches of other sizes, and
the number of parameters of every preset.

    venv/bin/python tools/check/check_families.py [--vitrum build/release/vitrum]

Needs torch, timm, transformers, safetensors, numpy, onnxruntime, and build/release/tests/dump_gradients. Exit status 1
when any logits differ by more than the tolerance relative to their norm (gradients: by five times that), a count
differs, or a framework does not load what `vitrum convert` writes.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime
import timm
import torch
import transformers
from safetensors.torch import load_file
from timm.models import save_for_hf

from check_dialects import Vitrum
from check_live import perturb

# A small model of each kind: timm's name, what makes it small, another image size that patches cover.
SMALL = dict(img_size=64, patch_size=8, embed_dim=32, depth=3, num_heads=2)
KINDS = {
    "deit3_small_patch16_224": dict(SMALL, num_classes=7),
    "vit_small_patch14_dinov2": dict(SMALL, num_classes=0),
    "vit_small_patch14_reg4_dinov2": dict(SMALL, num_classes=5),
    "flexivit_small": dict(SMALL, num_classes=7),
    "vit_base_patch16_clip_224": dict(SMALL, num_classes=12),
    "vit_base_patch16_clip_quickgelu_224": dict(SMALL, num_classes=12),
    "vit_giant_patch14_dinov2": dict(SMALL, num_classes=5),
    "vit_small_patch16_dinov3": dict(SMALL, num_classes=0),
    "vit_small_patch16_dinov3_qkvb": dict(SMALL, num_classes=5),
    "vit_huge_plus_patch16_dinov3_qkvb": dict(SMALL, num_classes=5, global_pool="token"),
    "eva02_tiny_patch14_224": dict(SMALL, num_classes=7),
    "eva02_large_patch14_448": dict(SMALL, num_classes=7),
    "eva02_base_patch16_clip_224": dict(SMALL, num_classes=7),
    "beit_base_patch16_224": dict(SMALL, num_classes=7),
    "beitv2_large_patch16_224": dict(SMALL, num_classes=7, use_rel_pos_bias=False, use_shared_rel_pos_bias=True),
    "vit_base_patch16_224": dict(SMALL, num_classes=0),  # MAE's
    "vit_base_patch16_siglip_224": dict(SMALL, num_classes=0),
    "vit_so400m_patch16_siglip_gap_256": dict(SMALL, num_classes=7),
}
COUNTED = ("deit3_*", "*dinov2", "*dinov3*", "eva02_*", "beit*", "flexivit_*", "*_clip_*", "*_siglip_*")
PATCHES = ("flexivit_small", "deit3_small_patch16_224", "vit_small_patch14_dinov2")  # resized, too
LARGEST = 2e9  # parameters of a preset that is counted


def check_timm(v, folder):
    for name, args in KINDS.items():
        model = timm.create_model(name, **args).eval()
        perturb(model)
        save_for_hf(model, folder / name, safe_serialization=True, model_args=args)
        image = torch.randn(2, 3, 64, 64)
        expected = model(image)
        yield f"timm {name}", v.forward(folder / name, image), expected
        other = timm.create_model(f"local-dir:{folder / name}", pretrained=True, img_size=96).eval()
        large = torch.randn(2, 3, 96, 96)
        yield f"timm {name} at 96 px", v.forward(folder / name, large, "--image-size", 96), other(large)
        back = v.convert(folder / name, folder / f"{name}-again", "timm")
        yield (f"timm {name}, written by convert",
               timm.create_model(f"local-dir:{back}", pretrained=True).eval()(image), expected)
        for patch in (4, 6, 16) if name in PATCHES else ():
            size = 66 if patch == 6 else 64
            other = timm.create_model(f"local-dir:{folder / name}", pretrained=True, patch_size=patch, img_size=size).eval()
            pixels = torch.randn(2, 3, size, size)
            yield (f"timm {name}, patches of {patch}",
                   v.forward(folder / name, pixels, "--patch-size", patch, "--image-size", size), other(pixels))
        onnx = folder / f"{name}.onnx"
        v.run("export", "--model", folder / name, "--output", onnx)
        session = onnxruntime.InferenceSession(onnx)
        found = session.run(None, {session.get_inputs()[0].name: image.numpy()})[0]
        yield f"timm {name}, onnxruntime", torch.from_numpy(found), expected


def heads():
    """transformers' models of which several classes read one kind of tower."""
    sizes = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, image_size=64, patch_size=8, num_labels=6)
    plain = transformers.Dinov2Config(**sizes, mlp_ratio=4)
    yield transformers.Dinov2ForImageClassification, plain
    yield transformers.Dinov2Model, plain
    for gated in (False, True):
        registers = transformers.Dinov2WithRegistersConfig(**sizes, mlp_ratio=3, num_register_tokens=4,
                                                           use_swiglu_ffn=gated)
        yield transformers.Dinov2WithRegistersForImageClassification, registers
        yield transformers.Dinov2WithRegistersModel, registers
    tower = dict(sizes, intermediate_size=96)
    tower.pop("num_labels")
    yield transformers.CLIPForImageClassification, transformers.CLIPConfig(vision_config=tower, num_labels=6)
    yield transformers.SiglipForImageClassification, transformers.SiglipConfig(vision_config=tower, num_labels=6)


def check_heads(v, folder):
    image, large = torch.randn(2, 3, 64, 64), torch.randn(2, 3, 96, 96)
    for kind, config in heads():
        model = kind(config).eval()
        perturb(model)
        name = kind.__name__ + ("-gated" if getattr(config, "use_swiglu_ffn", False) else "")
        model.save_pretrained(folder / name)

        def answer(pixels):
            tower = dict(interpolate_pos_encoding=True) if "vision_config" in config.to_dict() else {}
            out = model(pixels, **tower)
            return out.logits if "logits" in out else out.pooler_output

        expected = answer(image)
        yield f"transformers {name}", v.forward(folder / name, image), expected
        yield f"transformers {name} at 96 px", v.forward(folder / name, large, "--image-size", 96), answer(large)
        for to in ("timm", "hf"):
            again = v.convert(folder / name, folder / f"{name}-{to}", to)
            yield f"transformers {name}, converted to {to}", v.forward(again, image), expected
        loaded, report = kind.from_pretrained(folder / f"{name}-hf", output_loading_info=True)
        assert not any(report[k] for k in ("unexpected_keys", "mismatched_keys")), report
        assert all("mask_token" in k for k in report["missing_keys"]), report
        model = loaded.eval()
        yield f"transformers {name}, loaded from convert --to hf", answer(image), expected
        if "Dinov2ForImage" in name or "RegistersForImage" in name:  # timm has no such head
            continue
        timm_model = timm.create_model(f"local-dir:{folder / name}-timm", pretrained=True).eval()
        yield f"transformers {name}, loaded by timm from convert --to timm", timm_model(image), expected


def in_our_names(gradients):
    """What timm's classes Eva and Beit store in parts is one tensor here."""
    ours = {}
    for name, g in gradients.items():
        first, last = name.rpartition(".")[0], name.rpartition(".")[2]
        get = lambda other: gradients.get(f"{first}.{other}")  # noqa: E731
        if last in ("gamma_1", "gamma_2"):
            ours[f"{first}.ls{last[-1]}.gamma"] = g
        elif last == "q_bias":
            ours[f"{first}.qkv.bias"] = torch.cat([g, torch.zeros_like(g), get("v_bias")])
        elif "q_proj." in name:
            k = gradients.get(name.replace("q_proj", "k_proj"), torch.zeros_like(g))
            ours[name.replace("q_proj", "qkv")] = torch.cat([g, k, gradients[name.replace("q_proj", "v_proj")]])
        elif "fc1_g." in name:
            ours[name.replace("fc1_g", "fc1")] = torch.cat([g, gradients[name.replace("fc1_g", "fc1_x")]])
        elif last != "v_bias" and not any(part in name for part in ("k_proj.", "v_proj.", "fc1_x.")):
            ours[name] = g
    return ours


def check_gradients(v, folder):
    """Of a cross-entropy; the worst parameter of each kind."""
    for name, args in KINDS.items():
        args = dict(args, num_classes=5)
        model = timm.create_model(name, **args).eval()
        perturb(model)
        save_for_hf(model, folder / name, safe_serialization=True, model_args=args)
        image, labels = torch.randn(3, 3, 64, 64), torch.tensor([0, 3, 4])
        with torch.enable_grad():
            torch.nn.functional.cross_entropy(model(image), labels).backward()
        np.save(folder / "in.npy", image.numpy())
        np.save(folder / "labels.npy", labels.numpy().astype(np.float32))
        subprocess.run([v.binary.parent / "tests" / "dump_gradients", folder / name, folder / "in.npy",
                        folder / "labels.npy", folder / "out.safetensors"], check=True)
        found = load_file(folder / "out.safetensors")
        expected = in_our_names({n: p.grad for n, p in model.named_parameters()})
        assert set(found) - {"losses"} == set(expected), set(found) ^ set(expected)
        worst = max(expected, key=lambda n: (found[n].reshape(expected[n].shape) - expected[n]).norm() /
                    expected[n].norm().clamp(min=1e-12))
        # Compared at a fifth of its size: a gradient may be five times as far off as a logit.
        difference = (found[worst].reshape(expected[worst].shape) - expected[worst]) / 5
        yield f"timm {name}, gradients (worst: {worst})", expected[worst] + difference, expected[worst]


def dinov2_names(gradients):
    """transformers' names of DINOv2 as ours; its class token's position is part of the token here."""
    ours = {}
    swaps = (("embeddings.patch_embeddings.projection", "patch_embed.proj"), ("embeddings.cls_token", "cls_token"),
             ("embeddings.register_tokens", "reg_token"), ("embeddings.position_embeddings", "pos_embed"),
             ("encoder.layer.", "blocks."), ("attention.output.dense", "attn.proj"), ("attention.o_proj", "attn.proj"),
             ("layer_scale1.lambda1", "ls1.gamma"), ("layer_scale2.lambda1", "ls2.gamma"), ("layernorm", "norm"),
             ("classifier", "head"), ("attention.attention.query", "attn.qkv"), ("attention.q_proj", "attn.qkv"))
    for name, g in gradients.items():
        for first, second, third in (("query", "key", "value"), ("q_proj", "k_proj", "v_proj")):
            if f".{first}." in name:
                g = torch.cat([g] + [gradients[name.replace(first, part)] for part in (second, third)])
        name = name.split(".", 1)[1] if name.startswith("dinov2") else name
        if any(f".{part}." in name for part in ("key", "value", "k_proj", "v_proj")) or "mask_token" in name:
            continue
        for theirs, our in swaps:
            name = name.replace(theirs, our)
        ours[name.replace("layers.", "blocks.")] = g
    ours["pos_embed"] = ours["pos_embed"][:, 1:]
    return ours


def check_head_gradients(v, folder):
    """Of classifiers that timm has no class for (DINOv2 with registers), or that transformers has made (CLIP, SigLIP)."""
    for kind, config in heads():
        if "ForImage" not in kind.__name__ or kind is transformers.Dinov2ForImageClassification:
            continue
        if getattr(config, "use_swiglu_ffn", False):
            continue
        model = kind(config).eval()
        perturb(model)
        at = folder / kind.__name__
        model.save_pretrained(at)
        if "Dinov2" not in kind.__name__:  # timm's class computes the same: check_heads
            v.convert(at, folder / f"{at.name}-timm", "timm")
            model = timm.create_model(f"local-dir:{at}-timm", pretrained=True).eval()
        image, labels = torch.randn(3, 3, 64, 64), torch.tensor([0, 3, 5])
        with torch.enable_grad():
            out = model(image)
            torch.nn.functional.cross_entropy(out.logits if "Dinov2" in kind.__name__ else out, labels).backward()
        np.save(folder / "in.npy", image.numpy())
        np.save(folder / "labels.npy", labels.numpy().astype(np.float32))
        subprocess.run([v.binary.parent / "tests" / "dump_gradients", at, folder / "in.npy", folder / "labels.npy",
                        folder / "out.safetensors"], check=True)
        found = load_file(folder / "out.safetensors")
        expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        if "Dinov2" in kind.__name__:
            expected = dinov2_names(expected)
        assert set(found) - {"losses"} == set(expected), set(found) ^ set(expected)
        worst = max(expected, key=lambda n: (found[n].reshape(expected[n].shape) - expected[n]).norm() /
                    expected[n].norm().clamp(min=1e-12))
        difference = (found[worst].reshape(expected[worst].shape) - expected[worst]) / 5
        yield f"{kind.__name__}, gradients (worst: {worst})", expected[worst] + difference, expected[worst]


def check_inside(v, folder):
    """transformers' models with positions inside attention, and MAE's encoder."""
    sizes = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=96, image_size=64,
                 patch_size=8)
    dinov3 = dict(sizes, num_register_tokens=4)
    sizes["layer_norm_eps"] = 1e-6  # timm's; the default, 1e-12, no argument of its models can ask for
    mae = transformers.ViTMAEConfig(**sizes, mask_ratio=0.0, decoder_num_hidden_layers=1, decoder_hidden_size=16,
                                    decoder_num_attention_heads=2, decoder_intermediate_size=32)
    models = {
        "DINOv3": transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**dinov3)),
        "DINOv3 gated": transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(
            **dinov3, use_gated_mlp=True, hidden_act="silu")),
        "BEiT": transformers.BeitForImageClassification(transformers.BeitConfig(
            **sizes, use_relative_position_bias=True, num_labels=6)),
        "BEiT, one table": transformers.BeitForImageClassification(transformers.BeitConfig(
            **sizes, use_shared_relative_position_bias=True, num_labels=6)),
        "data2vec": transformers.Data2VecVisionForImageClassification(transformers.Data2VecVisionConfig(
            **sizes, use_relative_position_bias=True, num_labels=6)),
        "MAE": transformers.ViTMAEForPreTraining(mae),
    }

    def answer(model, pixels):
        if "MAE" in type(model).__name__:
            return model.vit(pixels, interpolate_pos_encoding=True).last_hidden_state[:, 0]
        any_size = {} if "DINOv3" in type(model).__name__ else dict(interpolate_pos_encoding=True)
        out = model(pixels, **any_size)
        return out.logits if "logits" in out else out.pooler_output

    image, large = torch.randn(2, 3, 64, 64), torch.randn(2, 3, 96, 96)
    for name, model in models.items():
        model = model.eval()
        perturb(model)
        at = folder / name.replace(" ", "").replace(",", "-")
        model.save_pretrained(at)
        expected = answer(model, image)
        yield f"transformers {name}", v.forward(at, image), expected
        yield f"transformers {name} at 96 px", v.forward(at, large, "--image-size", 96), answer(model, large)
        for to in ("timm", "hf"):
            again = v.convert(at, folder / f"{at.name}-{to}", to)
            yield f"transformers {name}, converted to {to}", v.forward(again, image), expected
        kind = {"MAE": transformers.ViTModel, "data2vec": transformers.BeitForImageClassification}.get(name, type(model))
        loaded, report = kind.from_pretrained(folder / f"{at.name}-hf", output_loading_info=True)
        assert not any(report[k] for k in ("unexpected_keys", "mismatched_keys")), report
        assert all("mask_token" in k or "pooler.dense" in k for k in report["missing_keys"]), report
        again = loaded.eval()(image).last_hidden_state[:, 0] if name == "MAE" else answer(loaded.eval(), image)
        yield f"transformers {name}, loaded from convert --to hf", again, expected
        timm_model = timm.create_model(f"local-dir:{folder / at.name}-timm", pretrained=True).eval()
        yield f"transformers {name}, loaded by timm from convert --to timm", timm_model(image), expected


def counted(binary):
    """Presets whose number of parameters is not timm's."""
    wrong = 0
    for pattern in COUNTED:
        lines = subprocess.run([binary, "models", pattern, "--json"], check=True, capture_output=True, text=True).stdout
        for preset in map(json.loads, lines.splitlines()):
            if preset["parameters"] > LARGEST:
                continue
            with torch.device("meta"):  # timm's towers of CLIP have 1,000 classes unless told otherwise
                model = timm.create_model(preset["name"], num_classes=preset["num_classes"])
            expected = sum(p.numel() for p in model.parameters())
            same = preset["parameters"] == expected
            wrong += not same
            print(f"{preset['name']:40} {preset['parameters']:>13,}{'' if same else f'  timm: {expected:,}  FAILED'}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", default=root / "build" / "release" / "vitrum")
    parser.add_argument("--tolerance", type=float, default=2e-5)
    args = parser.parse_args()
    torch.manual_seed(0)
    failed = counted(args.vitrum) > 0
    for check in (check_timm, check_gradients, check_heads, check_head_gradients, check_inside):
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            folder = pathlib.Path(folder)
            for what, found, expected in check(Vitrum(pathlib.Path(args.vitrum), folder), folder):
                assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
                error = ((found - expected).norm() / expected.norm()).item()
                bad = not error <= args.tolerance  # NaN fails too
                failed |= bad
                print(f"{what:66} {error:.2e}{'  FAILED' if bad else ''}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
