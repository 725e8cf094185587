"""Compares taps and explanations with timm's model and with matrices in NumPy, on real weights and photos.

    python3 -m venv venv && venv/bin/pip install torch timm safetensors numpy pillow
    venv/bin/python tools/check_explain.py VITRUM MODEL_DIR IMAGE...

VITRUM is the binary, MODEL_DIR a timm model directory. Every attention layer's weights (fused attention off), some
other modules' results, rollout, gradient-weighted attention, mean attention distances, and position similarity are
compared; prints the largest differences and fails where one is too large.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.numpy import load_file

from explain_reference import Probabilities, gradient_relevance, mean_distances, readout, rollout

WORST = {}


def compare(what, ours, theirs, tolerance):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} and {theirs.shape}"
    worst = float(np.abs(ours - theirs).max())
    WORST[what] = max(WORST.get(what, 0), worst)
    if not worst <= tolerance:
        sys.exit(f"{what}: off by {worst:.3g}, more than {tolerance:.3g}")


def outputs(model, names, image):
    kept, hooks = {}, []
    for name in names:
        module = model.get_submodule(name)
        hooks.append(module.register_forward_hook(lambda _m, _i, y, name=name: kept.__setitem__(name, y.detach()[0])))
    with torch.no_grad():
        model(image[None])
    for hook in hooks:
        hook.remove()
    return kept


def check(vitrum, directory, path, model, transform, folder):
    run = lambda *a: subprocess.run([vitrum, *map(str, a), "--model", directory, "-q", "--precision", "f32"], check=True,
                                    stdout=subprocess.DEVNULL)
    image = transform(Image.open(path).convert("RGB"))
    depth, prefix = len(model.blocks), model.num_prefix_tokens
    rows, columns = model.patch_embed.grid_size

    logits, probs, grads = Probabilities(model)(image)
    modules = ["patch_embed", "blocks.0", f"blocks.{depth - 1}", "blocks.1.attn", "blocks.1.mlp", "blocks.1.mlp.act",
               "blocks.1.norm2", "norm", "head"]
    names = [f"blocks.{i}.attn.probs" for i in range(depth)] + modules
    run("embed", path, "--output", folder / "taps.safetensors", *(x for n in names for x in ("--tap", n)))
    taps = load_file(folder / "taps.safetensors")
    for i in range(depth):
        compare("attention probabilities", taps[f"blocks.{i}.attn.probs"][0], probs[i], 1e-5)
    for name, value in outputs(model, modules, image).items():
        scale = float(value.abs().max())
        compare(f"{name} (relative)", taps[name][0] / scale, value / scale, 2e-5)

    mean = model.global_pool == "avg"
    weights = readout(probs[0].shape[-1], prefix, mean)
    for fusion, discard in (("mean", 0), ("max", 0.9), ("min", 0.5)):
        run("explain", path, "--output", folder, "--npy", "--fusion", fusion, "--discard", discard)
        ours = np.load(folder / f"{path.stem}-rollout.npy")
        theirs = rollout(probs, weights, prefix, fusion, discard).reshape(rows, columns)
        # A weight that lies on the border of the share may be discarded by one and kept by the other.
        compare(f"rollout, {fusion}, {discard} discarded (of its largest)", ours / theirs.max(), theirs / theirs.max(),
                1e-4 if discard == 0 else 2e-3)
    theirs = gradient_relevance(probs, grads, weights, prefix).reshape(rows, columns)
    compare("gradient-weighted attention (of its largest)",
            np.load(folder / f"{path.stem}-gradient.npy") / theirs.max(), theirs / theirs.max(), 1e-4)
    height, width = image.shape[1:]
    theirs = [mean_distances(p, prefix, rows, columns, height / rows, width / columns) for p in probs]
    compare("mean attention distance, pixels", np.load(folder / "distance.npy"), theirs, 1e-2)


def check_weights(vitrum, directory, model, folder):
    subprocess.run([vitrum, "explain", "--weights", "--model", directory, "--output", folder, "-q"], check=True,
                   stdout=subprocess.DEVNULL)
    positions = model.pos_embed.detach().numpy()[0, model.num_prefix_tokens:].astype(np.float64)
    rows, columns = model.patch_embed.grid_size
    unit = positions / np.linalg.norm(positions, axis=-1, keepdims=True)
    compare("position cosines", np.load(folder / "positions.npy").reshape(rows * columns, -1), unit @ unit.T, 1e-5)
    centre = (positions @ positions.T)[columns * (rows // 2) + columns // 2].reshape(rows, columns)
    compare("position dot products", np.load(folder / "positions-centre.npy"), centre, 1e-4)
    filters = model.patch_embed.proj.weight.detach().numpy().astype(np.float64)
    samples = filters.reshape(len(filters), -1)
    samples = samples - samples.mean(0)
    variances, vectors = np.linalg.eigh(samples.T @ samples / len(samples))
    ours = np.load(folder / "filters.npy")
    ours = ours.reshape(len(ours), -1)
    compare("principal components (|cosine| - 1)", np.abs((ours * vectors.T[::-1][:len(ours)]).sum(-1)),
            np.ones(len(ours)), 1e-4)


if __name__ == "__main__":
    vitrum, directory, *images = sys.argv[1:]
    model = timm.create_model(f"local-dir:{directory}", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(model)
    with tempfile.TemporaryDirectory() as folder:
        for path in map(pathlib.Path, images):
            check(vitrum, directory, path, model, timm.data.create_transform(**config), pathlib.Path(folder))
        check_weights(vitrum, directory, model, pathlib.Path(folder))
    for what, worst in WORST.items():
        print(f"{what}: {worst:.2g}")
