"""ResNets of random weights through every framework and back: logits must agree.

    tools/python.sh tools/check/check_resnet.py [--vitrum build/release/vitrum] [--arch resnet18 ...]

torchvision's .pth, timm's and transformers' directories in; what `convert` and `export` write, loaded by timm,
transformers, torchvision and ONNX Runtime. Exit status 1 when anything differs by more than the tolerance.
"""

import argparse
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
from timm.models import save_for_hf

SIZE, CLASSES = 96, 13


def randomise(model):
    """Running statistics and norms as training leaves them, not 0 and 1."""
    with torch.no_grad():
        for name, t in model.state_dict(keep_vars=True).items():
            if name.endswith("running_var"):
                t.copy_(0.5 + torch.rand_like(t))
            elif t.dim() == 1 and t.is_floating_point():
                t.add_(0.1 * torch.randn_like(t))
    return model.eval()


class Check:
    def __init__(self, args, arch, folder):
        self.args, self.arch, self.folder = args, arch, folder
        self.image = torch.randn(2, 3, SIZE, SIZE)
        np.save(folder / "in.npy", self.image.numpy())
        self.failed = False

    def vitrum(self, *words):
        subprocess.run([self.args.vitrum, *map(str, words), "--quiet"], check=True)

    def forward(self, model, *more):
        out = self.folder / "out.npy"
        self.vitrum("forward", "--model", model, "--input", self.folder / "in.npy", "--output", out,
                    "--image-size", SIZE, "--precision", "f32", *more)
        return np.load(out)

    def compare(self, what, found, expected):
        found, expected = (np.asarray(x.detach() if torch.is_tensor(x) else x) for x in (found, expected))
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        self.failed |= not error <= self.args.tolerance  # NaN fails too
        print(f"{self.arch:10} {what:46} relative difference {error:.1e}", flush=True)

    def run(self):
        with torch.no_grad():
            self.files_in()
            self.files_out()
        return self.failed

    def files_in(self):
        model = randomise(torchvision.models.get_model(self.arch, num_classes=CLASSES))
        torch.save(model.state_dict(), self.folder / "tv.pth")
        self.compare("torchvision's .pth", self.forward(self.folder / "tv.pth", "--arch", self.arch), model(self.image))
        self.model = model

        other = randomise(timm.create_model(self.arch, num_classes=CLASSES))
        save_for_hf(other, self.folder / "timm", safe_serialization=True)
        self.compare("timm's directory", self.forward(self.folder / "timm"), other(self.image))

        basic = self.arch in ("resnet18", "resnet34")
        blocks = torchvision.models.get_model(self.arch)
        config = transformers.ResNetConfig(
            depths=[len(getattr(blocks, f"layer{i}")) for i in range(1, 5)], num_labels=CLASSES,
            layer_type="basic" if basic else "bottleneck",
            hidden_sizes=[64, 128, 256, 512] if basic else [256, 512, 1024, 2048])
        other = randomise(transformers.ResNetForImageClassification(config))
        other.save_pretrained(self.folder / "hf")
        self.compare("transformers' directory", self.forward(self.folder / "hf"), other(self.image).logits)

    def files_out(self):
        expected, source = self.model(self.image), (self.folder / "tv.pth", "--arch", self.arch)
        self.vitrum("convert", source[0], self.folder / "to_timm", *source[1:], "--to", "timm")
        loaded = timm.create_model(f"local-dir:{self.folder / 'to_timm'}", pretrained=True).eval()
        self.compare("convert --to timm, loaded by timm", loaded(self.image), expected)

        self.vitrum("convert", source[0], self.folder / "to_hf", *source[1:], "--to", "hf")
        loaded, about = transformers.ResNetForImageClassification.from_pretrained(self.folder / "to_hf",
                                                                                  output_loading_info=True)
        missing = [k for k in about["missing_keys"] if not k.endswith("num_batches_tracked")]
        assert not missing and not about["unexpected_keys"], about
        self.compare("convert --to hf, loaded by transformers", loaded.eval()(self.image).logits, expected)

        self.vitrum("convert", self.folder / "to_hf", self.folder / "back.pth", "--to", "torchvision")
        loaded = torchvision.models.get_model(self.arch, num_classes=CLASSES).eval()
        loaded.load_state_dict(torch.load(self.folder / "back.pth"))
        self.compare("and back --to torchvision", loaded(self.image), expected)

        self.vitrum("export", "--model", self.folder / "to_timm", "--output", self.folder / "m.onnx", "--image-size",
                    SIZE)
        session = onnxruntime.InferenceSession(self.folder / "m.onnx", providers=["CPUExecutionProvider"])
        self.compare("export, run by ONNX Runtime", session.run(None, {"pixel_values": self.image.numpy()})[0], expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", default=root / "build" / "release" / "vitrum")
    parser.add_argument("--arch", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    torch.manual_seed(0)
    failed = False
    for arch in args.arch:
        with tempfile.TemporaryDirectory() as folder:
            failed |= Check(args, arch, pathlib.Path(folder)).run()
    sys.exit(failed)


if __name__ == "__main__":
    main()
