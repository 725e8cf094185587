"""Compares ConvNeXt, ConvNeXt V2 and Swin V2 with timm, transformers and torchvision: random weights, logits from
`vitrum forward` at several sizes, every gradient, every dialect in and out, onnxruntime, and the number of parameters
of every preset.

    venv/bin/python tools/check/check_conv_families.py [--build build/release] [--part NAME ...]

Needs torch, timm, torchvision, transformers, safetensors, numpy, onnxruntime, and for gradients the test tool
`dump_gradients`. Exit status 1 when logits differ by more than 2e-5 relative to their norm, a gradient by more than
1e-4 (of its norm, or a hundredth of that of all), a count differs, or a framework does not load what `vitrum convert`
writes.
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
import torchvision
import transformers
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

from check_dialects import Vitrum
from check_live import perturb

SWIN = dict(img_size=64, embed_dim=32, depths=[2, 2, 2], num_heads=[1, 2, 4], window_size=4, num_classes=7)
KINDS = {  # timm's name, what makes it small, another image size
    "convnext_tiny": (dict(depths=[1, 2, 2, 1], dims=[24, 40, 64, 96], num_classes=7), 88),
    "convnext_atto": (dict(depths=[1, 1, 3, 1], num_classes=0), 75),
    "convnextv2_atto": (dict(depths=[1, 2, 2, 1], num_classes=5), 97),
    "convnextv2_tiny": (dict(depths=[1, 1, 2, 1], dims=[16, 32, 48, 80], num_classes=9), 100),
    "swinv2_tiny_window8_256": (SWIN, 96),
    "swinv2_tiny_window16_256": (dict(SWIN, window_size=8), 72),
    "swinv2_base_window12to16_192to256": (dict(SWIN, window_size=6, pretrained_window_sizes=[4, 4, 2]), 80),
}
PUBLISHED = ("convnext_tiny", "convnextv2_nano", "swinv2_tiny_window8_256")
COUNTED = ("convnext*", "swinv2_*")


def sized(name, image):
    return {"img_size": image} if name.startswith("swin") else {}


def check_timm(v, folder):
    for name, (args, side) in KINDS.items():
        model = timm.create_model(name, **args).eval()
        perturb(model)
        save_for_hf(model, folder / name, safe_serialization=True, model_args=args)
        image, large = torch.randn(2, 3, 64, 64), torch.randn(2, 3, side, side)
        expected = model(image)
        yield f"timm {name}", v.forward(folder / name, image, "--image-size", 64), expected
        other = timm.create_model(f"local-dir:{folder / name}", pretrained=True, **sized(name, side)).eval()
        yield f"timm {name} at {side} px", v.forward(folder / name, large, "--image-size", side), other(large)
        back = v.convert(folder / name, folder / f"{name}-again", "timm")
        yield (f"timm {name}, written by convert",
               timm.create_model(f"local-dir:{back}", pretrained=True).eval()(image), expected)
        onnx = folder / f"{name}.onnx"
        v.run("export", "--model", folder / name, "--output", onnx, "--image-size", 64)
        session = onnxruntime.InferenceSession(onnx)
        found = session.run(None, {session.get_inputs()[0].name: image.numpy()})[0]
        yield f"timm {name}, onnxruntime", torch.from_numpy(found), expected


def check_published(v, folder):
    """Models as they are published, by their own preset."""
    for name in PUBLISHED:
        model = timm.create_model(name).eval()
        perturb(model)
        save_for_hf(model, folder / name, safe_serialization=True)
        side = 256 if name.startswith("swin") else 224
        image = torch.randn(1, 3, side, side)
        yield f"timm {name}, whole", v.forward(folder / name, image), model(image)


def hf_kinds():
    sizes = dict(depths=[1, 2, 2, 1], hidden_sizes=[24, 40, 64, 96], num_labels=6, image_size=64)
    swin = transformers.Swinv2Config(image_size=64, embed_dim=32, depths=[2, 2, 2], num_heads=[1, 2, 4], window_size=8,
                                     num_labels=6, pretrained_window_sizes=[0, 6, 3])
    yield transformers.ConvNextForImageClassification, transformers.ConvNextConfig(**sizes)
    yield transformers.ConvNextModel, transformers.ConvNextConfig(**sizes)
    yield transformers.ConvNextV2ForImageClassification, transformers.ConvNextV2Config(**sizes)
    yield transformers.Swinv2ForImageClassification, swin
    yield transformers.Swinv2Model, swin


def check_hf(v, folder):
    image, large = torch.randn(2, 3, 64, 64), torch.randn(2, 3, 96, 96)
    for kind, config in hf_kinds():
        name = kind.__name__
        model = kind(config).eval()
        perturb(model)
        model.save_pretrained(folder / name)

        def answer(model, pixels):
            out = model(pixels)
            return out.logits if "logits" in out else out.pooler_output

        expected = answer(model, image)
        yield f"transformers {name}", v.forward(folder / name, image), expected
        sized = kind.from_pretrained(folder / name, image_size=96).eval()  # Swin V2 chooses its windows by that
        yield (f"transformers {name} at 96 px", v.forward(folder / name, large, "--image-size", 96),
               answer(sized, large))
        for to in ("timm", "hf"):
            again = v.convert(folder / name, folder / f"{name}-{to}", to)
            yield f"transformers {name}, converted to {to}", v.forward(again, image), expected
        loaded, report = kind.from_pretrained(folder / f"{name}-hf", output_loading_info=True)
        assert not any(report[k] for k in ("unexpected_keys", "mismatched_keys")), report
        assert all("mask_token" in k for k in report["missing_keys"]), report
        yield f"transformers {name}, loaded from convert --to hf", answer(loaded.eval(), image), expected
        if "ImageClassification" in name:
            back = timm.create_model(f"local-dir:{folder / f'{name}-timm'}", pretrained=True).eval()
            yield f"transformers {name}, in timm", back(image), expected


def check_torchvision(v, folder):
    """Whole models, since a bare file has only its preset to go by."""
    for name, preset, side in (("convnext_tiny", "convnext_tiny", 224), ("swin_v2_t", "swinv2_tiny_window8_256", 256)):
        model = torchvision.models.get_model(name).eval()
        perturb(model)
        save_file(model.state_dict(), folder / f"{name}.safetensors")
        for size in (side, side - 32):
            image = torch.randn(1, 3, size, size)
            yield (f"torchvision {name} at {size} px",
                   v.forward(folder / f"{name}.safetensors", image, "--arch", preset, "--image-size", size),
                   model(image))
        back = folder / f"{name}-again.safetensors"
        v.run("convert", folder / f"{name}.safetensors", back, "--to", "torchvision", "--arch", preset)
        again = torchvision.models.get_model(name).eval()
        missing, unexpected = again.load_state_dict(load_file(back), strict=False)
        assert not unexpected and all("relative_" in k for k in missing), (missing, unexpected)
        image = torch.randn(1, 3, side, side)
        yield f"torchvision {name}, written by convert", again(image), model(image)


def theirs(model, name):
    """timm's gradient under our name, in our order; None where ours has none."""
    of = dict(model.named_parameters())
    if name.endswith("attn.qkv.bias"):
        block = name[:-len("qkv.bias")]
        q, val = of[block + "q_bias"].grad, of[block + "v_bias"].grad
        return torch.cat((q, torch.zeros_like(q), val))
    grad = of[name].grad
    return grad.permute(0, 2, 3, 1) if name.endswith("downsample.1.weight") else grad


def check_gradients(v, folder):
    for name, (args, side) in KINDS.items():
        if args["num_classes"] == 0:
            continue
        model = timm.create_model(name, **args).eval()
        perturb(model)
        save_for_hf(model, folder / name, safe_serialization=True, model_args=args)
        image, labels = torch.randn(3, 3, 64, 64), torch.randint(args["num_classes"], (3,))
        with torch.enable_grad():
            torch.nn.functional.cross_entropy(model(image), labels).backward()
        np.save(folder / "in.npy", image.numpy())
        np.save(folder / "labels.npy", labels.numpy().astype(np.float32))
        subprocess.run([v.build / "tests" / "dump_gradients", folder / name, folder / "in.npy", folder / "labels.npy",
                        folder / "gradients.safetensors"], check=True)
        found = load_file(folder / "gradients.safetensors")
        del found["losses"]
        whole = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
        worst = (0, "")
        for param, ours in found.items():
            peer = theirs(model, param).reshape(ours.shape)
            if param.endswith("attn.qkv.bias"):  # keys have none; what ours has in their place is held at zero
                ours[len(ours) // 3:2 * len(ours) // 3] = 0
            worst = max(worst, ((ours - peer).norm().item() / max(peer.norm(), whole / 100).item(), param))
        assert sum(p.numel() for p in found.values()) >= sum(p.numel() for p in model.parameters())
        yield f"gradients of {name} (worst: {worst[1][-30:]})", worst[0], None


def counted(binary):
    """Presets whose number of parameters is not timm's."""
    wrong = 0
    for pattern in COUNTED:
        lines = subprocess.run([binary, "models", pattern, "--json"], check=True, capture_output=True, text=True).stdout
        for preset in map(json.loads, lines.splitlines()):
            with torch.device("meta"):
                model = timm.create_model(preset["name"], num_classes=preset["num_classes"])
            expected = sum(p.numel() for p in model.parameters())
            same = preset["parameters"] == expected
            wrong += not same
            print(f"{preset['name']:40} {preset['parameters']:>13,}{'' if same else f'  timm: {expected:,}  FAILED'}")
    return wrong


PARTS = {"timm": check_timm, "published": check_published, "hf": check_hf, "torchvision": check_torchvision,
         "gradients": check_gradients}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release")
    parser.add_argument("--part", action="append", choices=[*PARTS, "counts"], help="default: all")
    args = parser.parse_args()
    torch.manual_seed(0)
    parts = args.part or [*PARTS, "counts"]
    failed = "counts" in parts and counted(args.build / "vitrum") > 0
    for part in (p for p in parts if p in PARTS):
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            folder = pathlib.Path(folder)
            v = Vitrum(args.build / "vitrum", folder)
            v.build = args.build
            for what, found, expected in PARTS[part](v, folder):
                if expected is None:
                    error, tolerance = found, 1e-4
                else:
                    assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
                    error, tolerance = ((found - expected).norm() / expected.norm()).item(), 2e-5
                bad = not error <= tolerance  # NaN fails too
                failed |= bad
                print(f"{what:78} {error:.2e}{'  FAILED' if bad else ''}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
