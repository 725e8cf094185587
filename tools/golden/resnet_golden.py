"""ResNets against torchvision: writes the golden files of tests/models/resnet_test.cpp, or checks full-size models live.

    tools/python.sh tools/golden/resnet_golden.py                                        # tests/golden/resnet_*.safetensors
    tools/python.sh tools/golden/resnet_golden.py --live build/release/tests/vitrum_tests

A file holds `image` (B, C, H, W) as the model sees it and `labels`; under torchvision's names `param.NAME` (running
statistics too) and `grad.NAME`; `logits` and `loss` of one pass in training mode, after which the running statistics
are `moved.NAME` and the model in inference mode gives `inference`; and of ten SGD steps from the same start `losses`
and `after10.NAME`. The metadata entry `golden` is JSON: the model and the optimiser. Live, the same test reads files
of ResNet-18 and ResNet-50 from a folder of its own (the environment variable VITRUM_GOLDEN).
"""

import argparse
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

SGD = dict(lr=0.05, momentum=0.9, weight_decay=5e-4)
# One ReLU of ten thousand that rounding tips the other way moves a gradient by a hundredth of its norm: among the
# millions of a large model a few are tipped (PyTorch's own f32 is as far from its f64), in the small ones none.
STRICT = dict(gradient=1e-3, losses=1e-3, after10=2e-3)
LOOSE = dict(gradient=5e-2, losses=2e-2, after10=2e-3)
SMALL = {
    "resnet_basic": dict(width=2, depths=[1, 2, 1, 1], bottleneck=False, small_stem=False, image=[37, 29], batch=4),
    "resnet_bottleneck": dict(width=2, depths=[1, 1, 1, 1], bottleneck=True, small_stem=True, image=[12, 12], batch=4),
}
FULL = {
    "resnet_basic": dict(width=64, depths=[2, 2, 2, 2], bottleneck=False, small_stem=False, image=[64, 64], batch=8,
                         lr=1e-4),
    "resnet_bottleneck": dict(width=64, depths=[3, 4, 6, 3], bottleneck=True, small_stem=False, image=[64, 64],
                              batch=8, lr=1e-3, gain=0.2),  # of each block, else its gradients explode
}
CLASSES = 7


class ResNet(nn.Module):
    """torchvision's blocks under torchvision's names; its own class knows one width only."""

    def __init__(self, width, depths, bottleneck, small_stem, **_):
        super().__init__()
        block = Bottleneck if bottleneck else BasicBlock
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False) if small_stem else \
            nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        channels = width
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                planes, stride = width << stage, 2 if stage and not i else 1
                out = planes * block.expansion
                skip = None
                if stride != 1 or channels != out:
                    skip = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
                blocks.append(block(channels, planes, stride, skip))
                channels = out
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def randomise(model, gain, generator):
    """No tensor keeps a value (0, 1) that would hide an error in its use."""
    for name, t in tensors_of(model).items():
        noise = torch.randn(t.shape, generator=generator)
        with torch.no_grad():
            if name.endswith("running_var"):
                t.copy_(0.5 + noise.abs())
            elif t.dim() == 1 and name.endswith("weight"):
                t.copy_((1 + 0.2 * noise) * (gain if name.endswith("bn3.weight") else 1))
            elif t.dim() == 1:
                t.copy_(0.1 * noise)
            else:
                t.copy_(noise * (2 / t[0].numel()) ** 0.5)


def tensors_of(model):
    return {k: v for k, v in model.state_dict(keep_vars=True).items() if not k.endswith("num_batches_tracked")}


def prefixed(prefix, tensors):
    return {f"{prefix}.{k}": t.detach().clone() for k, t in tensors.items()}


def build(c, sgd, generator):
    model = ResNet(**c).train()
    randomise(model, c.get("gain", 1), generator)
    image = torch.randn((c["batch"], 3, *c["image"]), generator=generator)
    labels = torch.randint(CLASSES, (c["batch"],), generator=generator)
    out = {"image": image, "labels": labels.to(torch.int32)} | prefixed("param", tensors_of(model))

    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), **sgd)
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(trained(image), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    out |= {"losses": torch.stack(losses)} | prefixed("after10", tensors_of(trained))

    logits = model(image)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    out |= {"logits": logits.detach(), "loss": loss.detach()}
    out |= prefixed("grad", {k: p.grad for k, p in model.named_parameters()})
    out |= prefixed("moved", {k: t for k, t in tensors_of(model).items() if "running" in k})
    with torch.no_grad():
        return out | {"inference": model.eval()(image)}


def write(cases, sgd, tolerance, folder):
    for seed, (name, c) in enumerate(cases.items()):
        sgd = sgd | {"lr": c.get("lr", sgd["lr"])}
        tensors = build(c, sgd, torch.Generator().manual_seed(seed))
        about = {"model": c | {"classes": CLASSES}, "sgd": sgd, "tolerance": tolerance, "torch": torch.__version__}
        path = folder / f"{name}.safetensors"
        save_file({k: t.contiguous() for k, t in tensors.items()}, path, {"golden": json.dumps(about)})
        path.chmod(0o644)
        print(f"{path.name:32} {path.stat().st_size:9} bytes  losses {tensors['losses'][0]:.5f} .. "
              f"{tensors['losses'][-1]:.5f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--live", metavar="VITRUM_TESTS", help="compare full-size models with this test binary")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the number of threads changes the order of sums
    if not args.live:
        write(SMALL, SGD, STRICT, pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden")
        return
    with tempfile.TemporaryDirectory() as folder:
        write(FULL, SGD, LOOSE, pathlib.Path(folder))
        sys.exit(subprocess.run([args.live, "--gtest_filter=*GoldenResNet*_cpu"],
                                env=os.environ | {"VITRUM_GOLDEN": folder}).returncode)


if __name__ == "__main__":
    main()
