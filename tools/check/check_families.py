"""Compares DeiT III, DINOv2, FlexiViT and CLIP's image towers with timm and transformers: random weights, logits from
`vitrum forward`, and the number of parameters of every preset.

    venv/bin/python tools/check/check_families.py [--vitrum build/release/vitrum]

Needs torch, timm, transformers, safetensors, numpy, onnxruntime. Exit status 1 when any logits differ by more than the
tolerance relative to their norm, a count differs, or a framework does not load what `vitrum convert` writes.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import onnxruntime
import timm
import torch
import transformers
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
}
COUNTED = ("deit3_*", "*dinov2", "flexivit_*", "*_clip_*")


def check_timm(v, folder):
    for name, args in KINDS.items():
        model = timm.create_model(name, **args).eval()
        perturb(model)
        save_for_hf(model, folder / name, safe_serialization=True, model_args=args)
        image = torch.randn(2, 3, 64, 64)
        expected = model(image)
        yield f"timm {name}", v.forward(folder / name, image), expected
        if name != "flexivit_small":  # timm resamples its positions by another rule, known by the model's name only
            other = timm.create_model(f"local-dir:{folder / name}", pretrained=True, img_size=96).eval()
            large = torch.randn(2, 3, 96, 96)
            yield f"timm {name} at 96 px", v.forward(folder / name, large, "--image-size", 96), other(large)
        back = v.convert(folder / name, folder / f"{name}-again", "timm")
        yield (f"timm {name}, written by convert",
               timm.create_model(f"local-dir:{back}", pretrained=True).eval()(image), expected)
        onnx = folder / f"{name}.onnx"
        v.run("export", "--model", folder / name, "--output", onnx)
        session = onnxruntime.InferenceSession(onnx)
        found = session.run(None, {session.get_inputs()[0].name: image.numpy()})[0]
        yield f"timm {name}, onnxruntime", torch.from_numpy(found), expected


def check_dinov2(v, folder):
    config = transformers.Dinov2Config(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, mlp_ratio=4,
                                       image_size=64, patch_size=8, num_labels=6)
    image, large = torch.randn(2, 3, 64, 64), torch.randn(2, 3, 96, 96)
    for kind in (transformers.Dinov2ForImageClassification, transformers.Dinov2Model):
        model = kind(config).eval()
        perturb(model)
        name = kind.__name__
        model.save_pretrained(folder / name)

        def answer(pixels):
            out = model(pixels)
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


def counted(binary):
    """Presets whose number of parameters is not timm's."""
    wrong = 0
    for pattern in COUNTED:
        lines = subprocess.run([binary, "models", pattern, "--json"], check=True, capture_output=True, text=True).stdout
        for preset in map(json.loads, lines.splitlines()):
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
    for check in (check_timm, check_dinov2):
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            folder = pathlib.Path(folder)
            for what, found, expected in check(Vitrum(args.vitrum, folder), folder):
                assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
                error = ((found - expected).norm() / expected.norm()).item()
                bad = not error <= args.tolerance  # NaN fails too
                failed |= bad
                print(f"{what:66} {error:.2e}{'  FAILED' if bad else ''}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
