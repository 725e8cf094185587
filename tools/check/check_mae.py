"""Compares masked pretraining with transformers' ViTMAEForPreTraining: the same weights, images and masks.

    tools/python.sh tools/check/check_mae.py [--vitrum build/release/vitrum] [--base]

A model of random weights is saved by transformers, `vitrum pretrain` starts from it and does one step of SGD with a
rate of zero on one batch: metrics.csv has the loss, and state/ the gradients, which are the first momentum. Our masks
and our order of the images are drawn again here and given to transformers. Loss to 1e-5, gradients to 1e-4 of their
norm. What the run leaves is then converted --with-decoder: transformers reads every tensor and gives the same loss, and
Meta's names are those of its code. --base adds ViT-B/16. Exit status 1 when a case differs.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import ViTMAEConfig, ViTMAEForPreTraining

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from mae_reference import by_our_names, epoch_order, loss_and_gradients, our_noise, random_model

SMALL = dict(image_size=32, patch_size=4, hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=192,
             decoder_hidden_size=32, decoder_num_hidden_layers=2, decoder_num_attention_heads=4, decoder_intermediate_size=128)
CASES = {
    "small": (SMALL | dict(norm_pix_loss=True), 8, []),
    "plain pixels": (SMALL | dict(norm_pix_loss=False), 8, ["--set", "norm_pix=false"]),
    "half hidden": (SMALL | dict(norm_pix_loss=True, mask_ratio=0.5), 6, ["--mask-ratio", "0.5"]),
    "recomputed": (SMALL | dict(norm_pix_loss=True), 8, ["--set", "recompute=block"]),
}
BASE = {"base": (dict(norm_pix_loss=True), 2, [])}


def write_images(folder, count, size):
    """Smooth random images: noise would be all that a patch has."""
    draw = np.random.default_rng(1)
    for i in range(count):
        small = draw.integers(0, 256, (size // 4, size // 4, 3), dtype=np.uint8)
        path = folder / "train" / "all" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(small).resize((size, size), Image.BICUBIC).save(path)


def batch(folder, order):
    files = sorted((folder / "train").glob("*/*.png"))
    pixels = np.stack([np.asarray(Image.open(files[i])) for i in order])
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5


def save(model, folder):
    model.save_pretrained(folder)
    size = model.config.image_size
    about = dict(image_processor_type="ViTImageProcessor", do_resize=True, size=dict(height=size, width=size), resample=3,
                 do_rescale=True, rescale_factor=1 / 255, do_normalize=True, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    (folder / "preprocessor_config.json").write_text(json.dumps(about))


def one_step(vitrum, folder, images, options):
    run = folder / "run"
    subprocess.run([vitrum, "pretrain", "--method", "mae", "--weights", folder / "model", "--data", f"folder:{folder}",
                    "--epochs", "1", "--batch-size", str(images), "--lr", "0", "--set", "optimizer=sgd", "--set",
                    "momentum=0.9", "--precision", "f32", "--out", run, "--quiet", *options], check=True,
                   stdout=subprocess.DEVNULL)
    row = next(csv.DictReader((run / "metrics.csv").open()))
    return float(row["train_loss"]), load_file(run / "state" / "state.safetensors")


def written_back(vitrum, folder, model, images, noise, theirs):
    """What the run leaves (a rate of zero: nothing has moved), converted: transformers' loss of it; and Meta's names."""
    last = folder / "run" / "last"
    for to, target in (("hf", folder / "hf"), ("original", folder / "meta.safetensors")):
        subprocess.run([vitrum, "convert", last, target, "--to", to, "--with-decoder", "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
    again, loading = ViTMAEForPreTraining.from_pretrained(folder / "hf", output_loading_info=True)
    assert not any(loading[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    assert again.config.norm_pix_loss == model.config.norm_pix_loss
    with torch.no_grad():
        loss = again.eval()(images, noise=noise).loss.item()
    ours = by_our_names({n: p.detach() for n, p in model.named_parameters()}, model.config)
    meta = load_file(folder / "meta.safetensors")
    assert set(meta) == set(ours), set(meta) ^ set(ours)
    assert all((meta[n].reshape(p.shape) - p).abs().max() <= 1e-6 for n, p in ours.items())
    return abs(loss - theirs) / theirs


def compare(vitrum, case):
    sizes, images, options = case
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = ViTMAEConfig(**sizes)
        write_images(folder, images, config.image_size)
        model = random_model(config)
        save(model, folder / "model")
        loss, state = one_step(vitrum, folder, images, options)
        patches = (config.image_size // config.patch_size) ** 2
        noise = our_noise(0, 0, images, patches, config.mask_ratio)
        pixels = batch(folder, epoch_order(0, 0, images))
        theirs, gradients = loss_and_gradients(model, pixels, noise)
        back = written_back(vitrum, folder, model, pixels, noise, theirs)
    params = by_our_names({n: p.detach() for n, p in model.named_parameters()}, config)
    for name, p in params.items():
        assert torch.allclose(state[f"weights/{name}"].reshape(p.shape), p, atol=1e-6), f"{name} was not read"
    norm = sum(float(g.norm()) ** 2 for g in gradients.values()) ** 0.5
    worst, where = 0.0, ""
    for name, g in gradients.items():
        if name.endswith("pos_embed"):
            assert f"moment1/{name}" not in state, f"{name} learns"
            continue
        error = float((state[f"moment1/{name}"].reshape(g.shape) - g).norm() / max(float(g.norm()), 1e-2 * norm))
        if error >= worst:
            worst, where = error, name
    return abs(loss - theirs) / theirs, worst, where, back


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", default=root / "build" / "release" / "vitrum")
    parser.add_argument("--base", action="store_true", help="ViT-B/16 too: 112 million parameters")
    args = parser.parse_args()
    failed = False
    for name, case in (CASES | (BASE if args.base else {})).items():
        loss, gradient, where, back = compare(args.vitrum, case)
        failed |= not (loss <= 1e-5 and gradient <= 1e-4 and back <= 1e-5)
        print(f"{name:14} loss off by {loss:.1e}, gradients by {gradient:.1e} at most ({where}), "
              f"theirs of what is converted by {back:.1e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
