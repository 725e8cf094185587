"""Compares models in other frameworks' files with those frameworks: random weights, logits from `vitrum forward`.

    tools/python.sh tools/check/check_dialects.py [--vitrum build/release/vitrum] [--base]

Needs torch, timm, torchvision, transformers, safetensors, numpy (and scipy for Google's position zoom). Checks that
Vitrum reads what they write, at the stored and at other image sizes, and that they load what `vitrum convert` writes.
Exit status 1 when any logits differ by more than the tolerance, or a round trip changes a bit.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import timm
import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

from check_live import perturb

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Vitrum:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def run(self, *args):
        subprocess.run([self.binary, *map(str, args), "--quiet"], check=True, stdout=subprocess.DEVNULL)

    def forward(self, model, image, *args):
        np.save(self.folder / "in.npy", image.numpy())
        self.run("forward", "--model", model, "--input", self.folder / "in.npy", "--output", self.folder / "out.npy",
                 "--precision", "f32", *args)
        return torch.from_numpy(np.load(self.folder / "out.npy"))

    def convert(self, source, target, to, *args):
        self.run("convert", source, target, "--to", to, *args)
        return target


class Size:
    """A ViT's sizes in every framework's words. `arch` is the preset for files that do not state them."""

    def __init__(self, name, arch, image, patch, width, depth, heads, classes):
        self.name, self.arch = name, arch
        self.image, self.patch, self.width, self.depth, self.heads, self.classes = (
            image, patch, width, depth, heads, classes)

    def timm(self, **args):
        return timm.create_model("vit_tiny_patch16_224", **(dict(
            img_size=self.image, patch_size=self.patch, embed_dim=self.width, depth=self.depth, num_heads=self.heads,
            num_classes=self.classes) | args)).eval()

    def hf_config(self, **args):
        return transformers.ViTConfig(**(dict(
            hidden_size=self.width, num_hidden_layers=self.depth, num_attention_heads=self.heads,
            intermediate_size=4 * self.width, image_size=self.image, patch_size=self.patch, num_labels=self.classes)
            | args))

    def torchvision(self, image=None):
        return torchvision.models.VisionTransformer(
            image or self.image, self.patch, self.depth, self.heads, self.width, 4 * self.width,
            num_classes=self.classes).eval()

    def images(self, image=None):
        side = image or self.image
        return torch.randn(2, 3, side, side)

    def other_sizes(self):
        return (160, 256, 384) if self.image == 224 else (self.image // 2, self.image * 3 // 2)


SIZES = {s.name: s for s in (
    Size("small", None, 64, 8, 32, 3, 2, 7),
    Size("tiny", "vit_tiny_patch16_224", 224, 16, 192, 12, 3, 1000),
    Size("base", "vit_base_patch16_224", 224, 16, 768, 12, 12, 1000))}


def google_arrays(model):
    """A timm model's parameters as Google's checkpoints name and lay them out."""
    p = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    width = p["cls_token"].shape[-1]
    heads = model.blocks[0].attn.num_heads
    out = {"cls": p["cls_token"], "embedding/kernel": p["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
           "embedding/bias": p["patch_embed.proj.bias"], "head/kernel": p["head.weight"].T, "head/bias": p["head.bias"],
           "Transformer/posembed_input/pos_embedding": p["pos_embed"],
           "Transformer/encoder_norm/scale": p["norm.weight"], "Transformer/encoder_norm/bias": p["norm.bias"]}
    for i in range(len(model.blocks)):
        theirs, ours = f"Transformer/encoderblock_{i}/", f"blocks.{i}."
        attention = theirs + "MultiHeadDotProductAttention_1/"
        for part, weight, bias in zip(("query", "key", "value"), np.split(p[ours + "attn.qkv.weight"], 3),
                                      np.split(p[ours + "attn.qkv.bias"], 3)):
            out[f"{attention}{part}/kernel"] = weight.T.reshape(width, heads, -1)
            out[f"{attention}{part}/bias"] = bias.reshape(heads, -1)
        out[attention + "out/kernel"] = p[ours + "attn.proj.weight"].T.reshape(heads, -1, width)
        out[attention + "out/bias"] = p[ours + "attn.proj.bias"]
        for norm, name in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_2")):
            out[f"{theirs}{name}/scale"] = p[f"{ours}{norm}.weight"]
            out[f"{theirs}{name}/bias"] = p[f"{ours}{norm}.bias"]
        for n in range(2):
            out[f"{theirs}MlpBlock_3/Dense_{n}/kernel"] = p[f"{ours}mlp.fc{n + 1}.weight"].T
            out[f"{theirs}MlpBlock_3/Dense_{n}/bias"] = p[f"{ours}mlp.fc{n + 1}.bias"]
    return out


def big_vision_arrays(arrays, prefix):
    """The same, as big_vision names them, with something of the optimiser beside."""
    out = {"opt/0/step": np.zeros(1, np.float32)}
    for name, array in arrays.items():
        for ours, theirs in (("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
                             ("LayerNorm_2", "LayerNorm_1"), ("MlpBlock_3", "MlpBlock_0"),
                             ("Transformer/posembed_input/", "")):
            name = name.replace(ours, theirs)
        out[prefix + name] = array
    return out


def check_timm(v, size, folder):
    model = size.timm()
    perturb(model)
    save_for_hf(model, folder / "timm", safe_serialization=True,
                model_args=dict(img_size=size.image, patch_size=size.patch, embed_dim=size.width, depth=size.depth,
                                num_heads=size.heads))
    image = size.images()
    yield "timm", v.forward(folder / "timm", image), model(image)
    for side in size.other_sizes():
        other = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True, img_size=side).eval()
        image = size.images(side)
        yield f"timm at {side} px", v.forward(folder / "timm", image, "--image-size", side), other(image)
    features = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True, num_classes=0).eval()
    image = size.images()
    yield "timm features", v.forward(folder / "timm", image, "--num-classes", 0), features(image)
    for dtype in (torch.float16, torch.bfloat16):
        half = {k: t.to(dtype) for k, t in model.state_dict().items()}
        save_file(half, folder / "timm" / "model.safetensors")
        exact = size.timm()
        exact.load_state_dict({k: t.float() for k, t in half.items()})
        yield f"timm, {dtype} file", v.forward(folder / "timm", image), exact(image)


def check_timm_pool(v, size, folder):
    model = size.timm(global_pool="avg", init_values=0.1)
    perturb(model)
    save_for_hf(model, folder / "pool", safe_serialization=True,
                model_args=dict(img_size=size.image, patch_size=size.patch, embed_dim=size.width, depth=size.depth,
                                num_heads=size.heads, global_pool="avg", init_values=0.1))
    image = size.images()
    yield "timm, mean pool, LayerScale", v.forward(folder / "pool", image), model(image)


def with_eps(model, eps):
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = eps
    return model


def check_hf(v, size, folder):
    model = transformers.ViTForImageClassification(size.hf_config()).eval()
    perturb(model)
    model.save_pretrained(folder / "hf")
    image = size.images()
    expected = model(image).logits
    yield "transformers, as saved", v.forward(folder / "hf", image), expected
    for side in size.other_sizes():
        other = size.images(side)
        yield (f"transformers at {side} px", v.forward(folder / "hf", other, "--image-size", side),
               model(other, interpolate_pos_encoding=True).logits)
    for name, prefix in (("version 5's names", ""), ("version 5's names, DataParallel", "module.")):
        state = {prefix + k: t.clone() for k, t in model.state_dict().items()}
        save_file(state, folder / "hf" / "model.safetensors")
        yield f"transformers, {name}", v.forward(folder / "hf", image), expected
    as_timm = v.convert(folder / "hf", folder / "as_timm", "timm")
    yield ("transformers' model, converted, in timm (eps 1e-6)",
           timm.create_model(f"local-dir:{as_timm}", pretrained=True).eval()(image),
           with_eps(model, 1e-6)(image).logits)
    with_eps(model, 1e-12)
    yield "transformers' model, converted", v.forward(as_timm, image), expected
    (folder / "hf" / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "hf" / "pytorch_model.bin")
    yield "transformers, pytorch_model.bin", v.forward(folder / "hf", image), expected

    bare = transformers.ViTModel(size.hf_config(hidden_act="gelu_new", qkv_bias=False)).eval()
    perturb(bare)
    bare.save_pretrained(folder / "features", max_shard_size="60KB" if size.name == "small" else "10MB")
    assert (folder / "features" / "model.safetensors.index.json").exists()
    yield ("transformers ViTModel, sharded", v.forward(folder / "features", image),
           bare(image).last_hidden_state[:, 0])


def check_torchvision(v, size, folder):
    if not size.arch:
        return
    model = size.torchvision()
    perturb(model)
    state = model.state_dict()
    image = size.images()
    expected = model(image)
    torch.save(state, folder / "new.pth")
    legacy = {k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): t for k, t in state.items()}
    torch.save(legacy, folder / "legacy.pth")
    save_file(state, folder / "tv.safetensors")
    arch = ("--arch", size.arch)
    yield "torchvision", v.forward(folder / "new.pth", image, *arch), expected
    yield "torchvision, legacy names", v.forward(folder / "legacy.pth", image, *arch), expected
    yield "torchvision, safetensors", v.forward(folder / "tv.safetensors", image, *arch), expected
    for side in size.other_sizes():
        other = size.torchvision(side)
        other.load_state_dict(torchvision.models.vision_transformer.interpolate_embeddings(side, size.patch,
                                                                                           dict(state)))
        image = size.images(side)
        yield f"torchvision at {side} px", v.forward(folder / "new.pth", image, *arch, "--image-size", side), other(image)


def zoomed(positions, side):
    from scipy.ndimage import zoom
    grid = positions[0, 1:].detach().numpy()
    old = int(len(grid) ** 0.5)
    grid = zoom(grid.reshape(old, old, -1), (side / old, side / old, 1), order=1)
    return torch.cat([positions[:, :1], torch.from_numpy(grid).reshape(1, side * side, -1)], dim=1)


def check_google(v, size, folder):
    if not size.arch:
        return
    source = size.timm()
    perturb(source)
    np.savez(folder / "google.npz", **google_arrays(source))
    model = size.timm(act_layer="gelu_tanh")  # as JAX computes it
    model.load_pretrained(str(folder / "google.npz"))
    image = size.images()
    arch = ("--arch", size.arch)
    expected = model(image)
    yield "Google npz (timm reads it)", v.forward(folder / "google.npz", image, *arch), expected
    np.savez(folder / "target.npz", **{"opt/target/" + k: a for k, a in google_arrays(source).items()})
    variants = {"opt/target/": "target.npz"}
    for prefix in ("params/", "params/img/"):
        variants[f"{prefix}, big_vision's names"] = name = prefix.replace("/", "-") + ".npz"
        np.savez(folder / name, **big_vision_arrays(google_arrays(source), prefix))
    for what, name in variants.items():
        read = size.timm(act_layer="gelu_tanh")
        read.load_pretrained(str(folder / name))
        yield f"Google npz, {what} in timm", read(image), expected
        yield f"Google npz, {what}", v.forward(folder / name, image, *arch), expected
    try:
        import scipy  # noqa: F401
    except ImportError:
        print("no scipy: Google's position zoom is not compared")
        return
    for side in size.other_sizes():
        other = size.timm(act_layer="gelu_tanh", img_size=side)
        state = dict(model.state_dict())
        state["pos_embed"] = zoomed(state["pos_embed"], side // size.patch)
        other.load_state_dict(state)
        image = size.images(side)
        yield (f"Google npz at {side} px (scipy's zoom)",
               v.forward(folder / "google.npz", image, *arch, "--image-size", side), other(image))


def check_convert(v, size, folder):
    """What `convert` writes, in the frameworks themselves; and a round trip through all of them."""
    model = size.timm()
    perturb(model)
    save_for_hf(model, folder / "start", safe_serialization=True,
                model_args=dict(img_size=size.image, patch_size=size.patch, embed_dim=size.width, depth=size.depth,
                                num_heads=size.heads))
    image = size.images()
    expected = model(image)

    hf = v.convert(folder / "start", folder / "as_hf", "hf")
    loaded, report = transformers.ViTForImageClassification.from_pretrained(hf, output_loading_info=True)
    assert not any(report[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert loaded.config.num_labels == size.classes
    yield "convert to hf", loaded.eval()(image).logits, expected
    back = v.convert(hf, folder / "back_hf", "timm")
    yield "and back, in timm", timm.create_model(f"local-dir:{back}", pretrained=True).eval()(image), expected
    bits = {"hf": back}

    start = load_file(folder / "start" / "model.safetensors")
    pth = v.convert(folder / "start", folder / "as_tv.pth", "torchvision")
    other = size.torchvision()
    other.load_state_dict(torch.load(pth, weights_only=True))
    yield "convert to torchvision", other(image), expected
    npz = v.convert(folder / "start", folder / "as.npz", "npz")
    arrays = np.load(npz)
    wanted = google_arrays(model)
    assert set(arrays) == set(wanted), set(arrays) ^ set(wanted)
    assert all(np.array_equal(arrays[k], wanted[k]) for k in wanted), "npz arrays differ"
    google = size.timm()
    google.load_pretrained(str(npz))
    yield "convert to npz, in timm", google(image), expected
    if size.arch:
        bits["torchvision"] = v.convert(pth, folder / "back_tv", "timm", "--arch", size.arch)
        bits["npz"] = v.convert(npz, folder / "back_npz", "timm", "--arch", size.arch)
        chain = v.convert(bits["npz"], folder / "chain.pth", "torchvision")
        chain = v.convert(chain, folder / "chain", "hf", "--arch", size.arch)
        bits["npz, torchvision and hf"] = v.convert(chain, folder / "chain_timm", "timm")
    for name, folder_back in bits.items():
        found = load_file(folder_back / "model.safetensors")
        same = set(found) == set(start) and all(torch.equal(found[k], start[k]) for k in start)
        yield f"round trip through {name}: same bits", torch.tensor(0.0 if same else 1.0), torch.tensor(0.0)
    processor = transformers.AutoImageProcessor.from_pretrained(hf)
    config = json.loads((hf / "preprocessor_config.json").read_text())
    assert processor.crop_size["height"] == config["crop_size"]["height"] == size.image


CHECKS = (check_timm, check_timm_pool, check_hf, check_torchvision, check_google, check_convert)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", default=root / "build" / "release" / "vitrum")
    parser.add_argument("--base", action="store_true", help="ViT-B/16 too")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    torch.manual_seed(0)
    failed = False
    for name in ("small", "tiny", "base") if args.base else ("small", "tiny"):
        for check in CHECKS:
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                folder = pathlib.Path(folder)
                for what, found, expected in check(Vitrum(args.vitrum, folder), SIZES[name], folder):
                    assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
                    error = (found - expected).abs().max().item()
                    bad = not error <= args.tolerance  # NaN fails too
                    failed |= bad
                    print(f"{name:6} {what:56} {error:.2e}{'  FAILED' if bad else ''}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
