"""Compares Swin models with timm, torchvision and transformers: random weights, forward, every gradient, ten steps.

    tools/python.sh tools/check/check_swin.py [--build build/release] [--size small|tiny|base384 ...] [--part ...]

Needs torch, timm, torchvision, transformers, safetensors and numpy. Checks that Vitrum reads what they and Microsoft
write, at the stored and at other image sizes (those that do not fill whole windows too), and that they load what
`vitrum convert` writes. Exit status 1 when logits differ by more than 1e-4, a gradient by more than 1e-3, or a round
trip changes a bit.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import timm
import torch
import torch.nn.functional as F
import torchvision
import transformers
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def perturb(model):
    """Biases, norms and bias tables away from 0 and 1, where a swapped or forgotten one would not show."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_((0.5 if name.endswith("table") else 0.05) * torch.randn_like(p))


class Size:
    """A Swin's sizes in every framework's words. `arch` is the preset for files that do not state them."""

    def __init__(self, name, arch, image, patch, width, depths, heads, window, classes, mlp_ratio=4, others=()):
        self.name, self.arch, self.image, self.patch, self.width = name, arch, image, patch, width
        self.depths, self.heads, self.window, self.classes = depths, heads, window, classes
        self.mlp_ratio, self.others = mlp_ratio, others

    def timm_args(self):
        return dict(img_size=self.image, patch_size=self.patch, embed_dim=self.width, depths=self.depths,
                    num_heads=self.heads, window_size=self.window, mlp_ratio=self.mlp_ratio)

    def timm(self, **args):
        return timm.create_model("swin_tiny_patch4_window7_224", **(self.timm_args() | dict(
            num_classes=self.classes, drop_path_rate=0.0) | args)).eval()

    def hf_config(self):
        return transformers.SwinConfig(
            image_size=self.image, patch_size=self.patch, embed_dim=self.width, depths=self.depths,
            num_heads=self.heads, window_size=self.window, mlp_ratio=self.mlp_ratio, num_labels=self.classes,
            drop_path_rate=0.0)

    def torchvision(self):
        return torchvision.models.SwinTransformer(
            [self.patch] * 2, self.width, self.depths, self.heads, [self.window] * 2, self.mlp_ratio,
            stochastic_depth_prob=0.0, num_classes=self.classes).eval()

    def images(self, side=None):
        return torch.randn(2, 3, side or self.image, side or self.image)

    def microsoft_state(self, model):
        """A timm model as Microsoft's files name it, buffers and all."""
        state = {}
        for name, tensor in model.state_dict().items():
            parts = name.split(".")
            if parts[2:3] == ["downsample"]:
                parts[1] = str(int(parts[1]) - 1)
            state[".".join(parts).replace("head.fc.", "head.")] = tensor.clone()
        for i, depth in enumerate(self.depths):
            for j in range(depth):
                state[f"layers.{i}.blocks.{j}.attn.relative_position_index"] = torch.zeros(1, dtype=torch.int64)
                state[f"layers.{i}.blocks.{j}.attn_mask"] = torch.zeros(1)
        return state

    def hf_state(self, model):
        state = {}
        for name, tensor in self.microsoft_state(model).items():
            if name.endswith(("attn_mask", "position_index")):
                continue
            for a, b in (("patch_embed.proj", "embeddings.patch_embeddings.projection"),
                         ("patch_embed.norm", "embeddings.norm"), ("norm1", "layernorm_before"),
                         ("norm2", "layernorm_after"), ("attn.proj", "attention.o_proj"),
                         ("attn.qkv", "attention.{}_proj"), ("attn.relative", "attention.relative_position_bias.relative")):
                name = name.replace(a, b)
            if name.startswith("norm."):
                name = "layernorm." + name[5:]
            if name.startswith("layers."):
                name = "encoder." + name
            name = "classifier." + name[5:] if name.startswith("head.") else "swin." + name
            parts = zip("qkv", tensor.chunk(3)) if "{}" in name else [("", tensor)]
            state |= {name.format(part): t.clone() for part, t in parts}
        return state

    def torchvision_state(self, model):
        state = {}
        for name, tensor in model.state_dict().items():
            parts = name.split(".")
            if parts[0] == "layers":
                stage = int(parts[1])
                parts = ["features", str(2 * stage + 1), *parts[3:]] if parts[2] == "blocks" else \
                    ["features", str(2 * stage), *parts[3:]]
            name = ".".join(parts)
            for a, b in (("patch_embed.proj", "features.0.0"), ("patch_embed.norm", "features.0.2"),
                         ("mlp.fc1", "mlp.0"), ("mlp.fc2", "mlp.3"), ("head.fc", "head")):
                name = name.replace(a, b)
            state[name] = tensor.clone()
        return state


SIZES = {s.name: s for s in (
    Size("small", None, 64, 4, 24, [2, 2, 2], [2, 4, 4], 4, 7, others=(72, 96, 40, 52)),
    Size("tiny", "swin_tiny_patch4_window7_224", 224, 4, 96, [2, 2, 6, 2], [3, 6, 12, 24], 7, 1000,
         others=(256, 384, 128)),
    Size("base384", "swin_base_patch4_window12_384", 384, 4, 128, [2, 2, 18, 2], [4, 8, 16, 32], 12, 1000))}


class Vitrum:
    def __init__(self, build, folder):
        self.build, self.folder = build, folder

    def run(self, *args):
        subprocess.run([self.build / "vitrum", *map(str, args), "--quiet"], check=True, stdout=subprocess.DEVNULL)

    def forward(self, model, image, *args):
        np.save(self.folder / "in.npy", image.numpy())
        self.run("forward", "--model", model, "--image-size", image.shape[-1], "--input", self.folder / "in.npy",
                 "--output", self.folder / "out.npy", "--precision", "f32", *args)
        return torch.from_numpy(np.load(self.folder / "out.npy"))

    def gradients(self, model, image, labels):
        np.save(self.folder / "in.npy", image.numpy())
        np.save(self.folder / "labels.npy", labels.numpy().astype(np.float32))
        subprocess.run([self.build / "tests" / "dump_gradients", model, self.folder / "in.npy",
                        self.folder / "labels.npy", self.folder / "gradients.safetensors"], check=True)
        return load_file(self.folder / "gradients.safetensors")


class Report:
    failed = False

    def __call__(self, what, error, tolerance):
        bad = not error <= tolerance  # NaN fails too
        self.failed |= bad
        print(f"{what:58} {error:.2e}{'  FAILED' if bad else ''}", flush=True)


def relative(found, expected, floor=0.0):
    return float((found - expected).norm() / max(expected.norm(), floor))


def check_timm(v, size, folder, report):
    model = size.timm()
    perturb(model)
    save_for_hf(model, folder / "timm", safe_serialization=True, model_args=size.timm_args())
    torch.save({"model": size.microsoft_state(model)}, folder / "microsoft.pth")
    for side in (size.image, *size.others):
        image = size.images(side)
        other = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True, img_size=side).eval()
        with torch.no_grad():
            expected = other(image)
        report(f"{size.name} timm {side}", relative(v.forward(folder / "timm", image), expected), 1e-4)
        if size.arch and side == size.image:
            report(f"{size.name} microsoft {side}",
                   relative(v.forward(folder / "microsoft.pth", image, "--arch", size.arch), expected), 1e-4)
    if size.arch is None or size.name == "tiny":
        v.run("convert", folder / "timm", folder / "timm2", "--to", "timm")
        first, second = load_file(folder / "timm" / "model.safetensors"), load_file(folder / "timm2" / "model.safetensors")
        same = first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)
        report(f"{size.name} timm -> timm: bits that changed", 0.0 if same else 1.0, 0)
        again, image = timm.create_model(f"local-dir:{folder / 'timm2'}", pretrained=True).eval(), size.images()
        with torch.no_grad():
            report(f"{size.name} timm -> timm, in timm", relative(again(image), model(image)), 1e-6)


def check_gradients(v, size, folder, report):
    model = size.timm()
    perturb(model)
    save_for_hf(model, folder / "grad", safe_serialization=True, model_args=size.timm_args())
    for side in (size.image, *size.others[:2]):
        trained = timm.create_model(f"local-dir:{folder / 'grad'}", pretrained=True, img_size=side,
                                    drop_path_rate=0.0).train()
        image, labels = size.images(side), torch.randint(size.classes, (2,))
        found = v.gradients(folder / "grad", image, labels)
        losses = []
        for i in range(10):
            trained.zero_grad()
            loss = F.cross_entropy(trained(image), labels)
            loss.backward()
            losses.append(loss.detach())
            if i == 0:
                total = torch.sqrt(sum(p.grad.norm() ** 2 for p in trained.parameters()))
                worst = max((relative(found[n].reshape(p.shape), p.grad, 1e-3 * total), n)
                            for n, p in trained.named_parameters())
            with torch.no_grad():
                for p in trained.parameters():
                    p.sub_(0.01 * p.grad)
        report(f"{size.name} gradients {side} (worst: {worst[1][-30:]})", worst[0], 1e-3)
        report(f"{size.name} losses of ten steps {side}", relative(found["losses"], torch.stack(losses)), 1e-3)


def check_torchvision(v, size, folder, report):
    model = size.torchvision()
    perturb(model)
    torch.save(model.state_dict(), folder / "tv.pth")
    for side in (size.image, *size.others):
        image = size.images(side)
        with torch.no_grad():
            expected = model(image)
        report(f"{size.name} torchvision {side}",
               relative(v.forward(folder / "tv.pth", image, "--arch", size.arch), expected), 1e-4)
    v.run("convert", folder / "tv.pth", folder / "from_tv", "--to", "timm", "--arch", size.arch)
    v.run("convert", folder / "from_tv", folder / "back.pth", "--to", "torchvision")
    back = torch.load(folder / "back.pth", weights_only=True)
    same = all(torch.equal(back[k], p) for k, p in model.named_parameters())
    report(f"{size.name} torchvision -> timm -> torchvision: bits that changed", 0.0 if same else 1.0, 0)


def check_hf(v, size, folder, report):
    model = transformers.SwinForImageClassification(size.hf_config()).eval()
    perturb(model)
    model.save_pretrained(folder / "hf")
    for side in (size.image, *(s for s in size.others if s >= size.image)):
        # A fresh one each time: transformers' blocks stop shifting for good once they saw a small image.
        model, image = transformers.SwinForImageClassification.from_pretrained(folder / "hf").eval(), size.images(side)
        with torch.no_grad():
            expected = model(image).logits
        report(f"{size.name} transformers {side}", relative(v.forward(folder / "hf", image), expected), 1e-4)
    v.run("convert", folder / "hf", folder / "hf_timm", "--to", "timm")
    v.run("convert", folder / "hf_timm", folder / "hf_again", "--to", "hf")
    again = transformers.SwinForImageClassification.from_pretrained(folder / "hf_again").eval()
    same = all(torch.equal(p, dict(again.named_parameters())[n]) for n, p in model.named_parameters())
    report(f"{size.name} transformers -> timm -> transformers: bits that changed", 0.0 if same else 1.0, 0)
    image = size.images()
    peer = timm.create_model(f"local-dir:{folder / 'hf_timm'}", pretrained=True).eval()
    with torch.no_grad():
        report(f"{size.name} transformers -> timm, in timm", relative(peer(image), model(image).logits), 1e-4)


PARTS = {"timm": check_timm, "gradients": check_gradients, "torchvision": check_torchvision, "hf": check_hf}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release")
    parser.add_argument("--size", action="append", choices=SIZES, help="default: small and tiny")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    args = parser.parse_args()
    torch.manual_seed(0)
    report = Report()
    for name in args.size or ("small", "tiny"):
        for part in args.part or PARTS:
            if part == "torchvision" and SIZES[name].arch is None:
                continue  # a bare file says too little
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                PARTS[part](Vitrum(args.build, folder), SIZES[name], folder, report)
    sys.exit(report.failed)


if __name__ == "__main__":
    main()
