"""Writes tests/golden/conv_families: small ConvNeXt, ConvNeXt V2 and Swin V2 models as timm, transformers, torchvision
and the models' authors save them, their answers, and the gradients of timm's.

    venv/bin/python tools/golden/conv_families_golden.py [--out DIR]

Needs torch, timm, torchvision, transformers and safetensors. `expected.safetensors` holds images of 32 and 44 pixels
(whose windows are not full, and whose stages have odd sizes), what each framework makes of them, and for each of timm's
models the gradient of every parameter, of the cross-entropy of the first images with `labels`.
"""

import argparse
import pathlib
import sys

import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from timm.models import save_for_hf
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))
from check_live import perturb

SIDES = (32, 44)
DEPTHS, WIDTHS, CLASSES = [1, 1, 2, 1], [6, 8, 10, 12], 3
CONV = dict(depths=DEPTHS, dims=WIDTHS, num_classes=CLASSES)
SWIN = dict(img_size=32, embed_dim=8, depths=[2, 2], num_heads=[1, 2], window_size=4, mlp_ratio=2, num_classes=CLASSES)
TIMM = {  # the folder: timm's model and its arguments
    "convnext": ("convnext_tiny", CONV),
    "convnextv2": ("convnextv2_atto", CONV),
    "swinv2": ("swinv2_tiny_window8_256", SWIN),
    "swinv2-pretrained": ("swinv2_base_window12to16_192to256",
                          dict(SWIN, depths=[2, 1], window_size=6, pretrained_window_sizes=[3, 2])),
}


def hf_models():
    sizes = dict(depths=DEPTHS, hidden_sizes=WIDTHS, num_labels=CLASSES, image_size=32)
    yield "convnext-hf", transformers.ConvNextForImageClassification(transformers.ConvNextConfig(**sizes))
    yield "convnextv2-hf", transformers.ConvNextV2ForImageClassification(transformers.ConvNextV2Config(**sizes))
    yield "swinv2-hf", transformers.Swinv2ForImageClassification(transformers.Swinv2Config(
        image_size=32, embed_dim=8, depths=[2, 2], num_heads=[1, 2], window_size=4, mlp_ratio=2.0, num_labels=CLASSES,
        pretrained_window_sizes=[0, 0]))


def torchvision_models():
    following = WIDTHS[1:] + [None]
    yield "convnext-torchvision", torchvision.models.convnext.ConvNeXt(
        [CNBlockConfig(*each) for each in zip(WIDTHS, following, DEPTHS)], num_classes=CLASSES)
    yield "swinv2-torchvision", SwinTransformer(
        patch_size=[4, 4], embed_dim=8, depths=[2, 2], num_heads=[1, 2], window_size=[4, 4], mlp_ratio=2,
        num_classes=CLASSES, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)


def meta_name(name):
    """timm's name of a ConvNeXt's parameter -> Meta's."""
    for ours, theirs in (("stem.", "downsample_layers.0."), (".blocks.", "."), ("conv_dw", "dwconv"), ("mlp.fc", "pwconv"),
                         ("mlp.grn.weight", "grn.gamma"), ("mlp.grn.bias", "grn.beta"), ("head.norm", "norm"),
                         ("head.fc", "head")):
        name = name.replace(ours, theirs)
    parts = name.split(".")
    if "downsample" in parts:  # stages.S.downsample.N -> downsample_layers.S.N
        parts = ["downsample_layers", parts[1]] + parts[3:]
    return ".".join(parts)


def meta_state(model):
    state = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.squeeze(-1).squeeze(-1) if ".fc" in name and tensor.dim() == 4 else tensor
        state[meta_name(name)] = tensor[None, None, None] if ".grn." in name else tensor
    return state


def microsoft_state(model):
    state = {}
    for name, tensor in model.state_dict().items():
        parts = name.split(".")
        if "downsample" in parts:  # at the end of the stage before
            parts[1] = str(int(parts[1]) - 1)
        state[".".join(parts).replace("head.fc", "head")] = tensor
    return state


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "golden" / "conv_families")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = {side: torch.randn(2, 3, side, side) for side in SIDES}
    labels = torch.tensor([2, 0])
    expected = {f"image.{side}": image for side, image in images.items()} | {"labels": labels.int()}

    for folder, (name, args) in TIMM.items():
        model = timm.create_model(name, **args).eval()
        perturb(model)
        save_for_hf(model, out / folder, safe_serialization=True, model_args=args)
        torch.nn.functional.cross_entropy(model(images[32]), labels).backward()
        expected |= {f"grad.{folder}.{n}": p.grad for n, p in model.named_parameters()}
        for side, image in images.items():
            size = {"img_size": side} if "swin" in name else {}
            sized = timm.create_model(f"local-dir:{out / folder}", pretrained=True, **size).eval()
            expected[f"{folder}.{side}"] = sized(image)
        if folder.startswith("convnext"):
            torch.save({"model": meta_state(model)}, out / f"{folder}-meta.pth")
        elif folder == "swinv2":
            torch.save({"model": microsoft_state(model)}, out / f"{folder}-microsoft.pth")
    for folder, model in hf_models():
        perturb(model.eval())
        model.save_pretrained(out / folder)
        for side, image in images.items():  # transformers' Swin V2 chooses windows by the size in its config
            sized = type(model).from_pretrained(out / folder, image_size=side).eval()
            expected[f"{folder}.{side}"] = sized(image).logits
    for file, model in torchvision_models():
        perturb(model.eval())
        save_file(model.state_dict(), out / f"{file}.safetensors")
        expected |= {f"{file}.{side}": model(image) for side, image in images.items()}
    for extra in out.glob("*/README.md"):
        extra.unlink()
    save_file({name: tensor.detach().contiguous() for name, tensor in expected.items()}, out / "expected.safetensors")
    for path in out.rglob("*"):
        if path.is_file():
            path.chmod(0o644)


if __name__ == "__main__":
    main()
