"""Compares fine-tuning with PyTorch and timm: the same weights, images and settings, every parameter afterwards.

    tools/python.sh tools/check/check_finetune.py --weights DIR --data DIR [--vitrum build/release/vitrum]

DIR with weights is in timm's layout, DIR with data has train/ with a folder a class. A few images make one batch, so that
their order does not matter. Needs torch, timm, safetensors and pillow. Exit status 1 when a case differs.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from timm.data import create_transform, resolve_model_data_config
from timm.optim import param_groups_layer_decay

STEPS, LR = 3, 0.01


def few_images(data, folder, count=4):
    """The first images of each class, as a data set whose test images are the same ones."""
    for kind in sorted((data / "train").iterdir()):
        for split in ("train", "test"):
            (folder / split / kind.name).mkdir(parents=True)
            for image in sorted(kind.iterdir())[:count]:
                shutil.copy(image, folder / split / kind.name)
    return sorted((folder / "train").glob("*/*"))


def batch(model, files):
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    classes = sorted({f.parent.name for f in files})
    images = torch.stack([transform(Image.open(f).convert("RGB")) for f in files])
    return images, torch.tensor([classes.index(f.parent.name) for f in files])


def load(weights, classes):
    config = json.loads((weights / "config.json").read_text())
    model = timm.create_model(config["architecture"], num_classes=classes, pretrained_cfg=config["pretrained_cfg"])
    state = {k: v for k, v in load_file(weights / "model.safetensors").items() if not k.startswith("head.")}
    model.load_state_dict(state, strict=False)
    torch.nn.init.zeros_(model.head.weight), torch.nn.init.zeros_(model.head.bias)
    return model.eval()  # nothing drops


def head_only(model):
    for name, p in model.named_parameters():
        p.requires_grad = name.startswith("head.")
    return torch.optim.Adam(model.head.parameters(), LR)


def frozen(model):
    for name, p in model.named_parameters():
        p.requires_grad = not (name.startswith("blocks.0.") or name == "pos_embed")
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], LR, momentum=0.9)


def two_rates(model):
    head = [p for n, p in model.named_parameters() if n.startswith("head.")]
    rest = [p for n, p in model.named_parameters() if not n.startswith("head.")]
    return torch.optim.SGD([{"params": rest}, {"params": head, "lr": 10 * LR}], LR, momentum=0.9)


def layer_decay(model):
    groups = param_groups_layer_decay(model, 0.0, layer_decay=0.7)
    for group in groups:
        group["lr"] = LR * group["lr_scale"]
    return torch.optim.SGD(groups, LR, momentum=0.9)


CASES = {
    "head only": (head_only, ["--head-only", "--set", "optimizer=adam"]),
    "frozen parts": (frozen, ["--freeze", "blocks.0", "--freeze", "pos_embed", "--set", "optimizer=sgd"]),
    "two rates": (two_rates, ["--lr-scale", "head.*=10", "--set", "optimizer=sgd"]),
    "layer decay": (layer_decay, ["--set", "layer_decay=0.7", "--set", "optimizer=sgd"]),
}


def difference(case, args, data, files):
    make_optimizer, options = CASES[case]
    model = load(args.weights, len({f.parent for f in files}))
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    images, labels = batch(model, files)
    optimizer = make_optimizer(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    run = data / case.replace(" ", "-")
    subprocess.run([args.vitrum, "finetune", "--weights", args.weights, "--data", f"folder:{data}", "--head-init", "zero",
                    "--epochs", str(STEPS), "--batch-size", str(len(files)), "--lr", str(LR), "--set", "schedule=constant",
                    "--precision", "f32", "--out", run, "--quiet", *options], check=True, stdout=subprocess.DEVNULL)
    found, worst = load_file(run / "last" / "model.safetensors"), 0.0
    for name, p in model.named_parameters():
        moved = (p.detach() - start[name]).norm()
        error = (found[name] - p.detach()).norm()
        if moved == 0:
            assert torch.equal(found[name], start[name]), f"{case}: {name} is frozen and moved"
        else:
            worst = max(worst, float(error / moved))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", default=root / "build" / "release" / "vitrum")
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of what a parameter moved")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = few_images(args.data, folder)
        for case in CASES:
            error = difference(case, args, folder, files)
            failed |= not error <= args.tolerance
            print(f"{case:14} largest difference {error:.1e} of what a parameter moved")
    sys.exit(failed)


if __name__ == "__main__":
    main()
