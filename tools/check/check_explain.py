"""Compares taps and explanations with timm's model and with matrices in NumPy, on real weights and photos.

    tools/python.sh tools/check/check_explain.py VITRUM MODEL_DIR IMAGE...

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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from explain_reference import (Probabilities, attention_map, gradient_relevance, mean_distances, readout, rollout,
                               swin_layers, vit_layers)

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
        hooks.append(module.register_forward_hook(lambda _m, _i, y, name=name: kept.__setitem__(name, y.detach())))
    with torch.no_grad():
        model(image[None])
    for hook in hooks:
        hook.remove()
    return kept


def check(vitrum, directory, path, model, transform, folder):
    run = lambda *a: subprocess.run([vitrum, *map(str, a), "--model", directory, "-q", "--precision", "f32"], check=True,
                                    stdout=subprocess.DEVNULL)
    image = transform(Image.open(path).convert("RGB"))
    swin = hasattr(model, "layers")
    layers = swin_layers(model) if swin else vit_layers(model)
    blocks = [n for n, m in model.named_modules() if hasattr(m, "attn") and hasattr(m, "mlp")]

    logits, probs, grads = Probabilities(model)(image)
    modules = ["patch_embed", blocks[0], blocks[-1], f"{blocks[1]}.attn", f"{blocks[1]}.mlp", f"{blocks[1]}.mlp.act",
               f"{blocks[1]}.norm2", "norm", "head.fc" if swin else "head"]
    modules += ["head_dist"] if hasattr(model, "head_dist") else []
    modules += ["layers.1", "layers.1.downsample"] if swin else []
    names = [f"{block}.attn.probs" for block in blocks] + modules
    run("embed", path, "--output", folder / "taps.safetensors", *(x for n in names for x in ("--tap", n)))
    taps = load_file(folder / "taps.safetensors")
    for block, p in zip(blocks, probs):
        compare("attention probabilities", taps[f"{block}.attn.probs"].reshape(p.shape), p, 1e-5)
    for name, value in outputs(model, modules, image).items():
        scale = float(value.abs().max())
        compare(f"{name} (relative)", taps[name].reshape(value.shape) / scale, value / scale, 2e-5)

    prefix = layers[-1].prefix
    mean = swin or model.global_pool == "avg"
    weights = readout(layers[-1].tokens, prefix, mean)
    for fusion, discard in (("mean", 0), ("max", 0.9), ("min", 0.5)):
        run("explain", path, "--output", folder, "--npy", "--fusion", fusion, "--discard", discard)
        ours, theirs = np.load(folder / f"{path.stem}-rollout.npy"), rollout(probs, layers, weights, fusion, discard)
        # A weight that lies on the border of the share may be discarded by one and kept by the other.
        compare(f"rollout, {fusion}, {discard} discarded (of its largest)", ours / theirs.max(), theirs / theirs.max(),
                1e-4 if discard == 0 else 2e-3)
        for i, (p, layer) in enumerate(zip(probs, layers)):
            theirs = attention_map(p, layer, readout(layer.tokens, prefix, mean), fusion)
            compare(f"attention maps, {fusion}", np.load(folder / f"{path.stem}-attention-{i:02}.npy"), theirs, 1e-5)
    theirs = gradient_relevance(probs, grads, layers, weights)
    compare("gradient-weighted attention (of its largest)",
            np.load(folder / f"{path.stem}-gradient.npy") / theirs.max(), theirs / theirs.max(), 1e-4)
    ours = np.load(folder / "distance.npy")
    for row, p, layer in zip(ours, probs, layers):
        compare("mean attention distance, pixels", row[:p.shape[1]], mean_distances(p, layer, *image.shape[1:]), 1e-2)


def check_weights(vitrum, directory, model, folder):
    subprocess.run([vitrum, "explain", "--weight-pictures", "--model", directory, "--output", folder, "-q"], check=True,
                   stdout=subprocess.DEVNULL)
    if hasattr(model, "layers"):
        table = model.layers[1].blocks[0].attn.relative_position_bias_table.detach().numpy()
        ours = np.load(folder / f"relative-positions-{len(model.layers[0].blocks):02}.npy")
        return compare("relative position bias", ours, table.T.reshape(ours.shape), 0)
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
