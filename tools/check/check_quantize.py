"""Compares int8 with a statement of the scheme in NumPy, with ONNX Runtime, and with transformers + compressed-tensors.

    tools/python.sh tools/check/check_quantize.py [--vitrum build/release/vitrum] [--model DIR --data DATA]

A model of one block is compared number by number. In deeper ones the smallest difference decides some roundings
otherwise, and those decide others: two right computations are as far apart as each is from f32, or less. There the
distance is held to that. Files for others (ONNX, transformers) have attention in f32, and are compared with the
scheme's layers alone. With --model and --data (a real model and photos) agreement with f32 is measured, too.
Needs torch, timm, transformers, compressed-tensors, onnxruntime and safetensors. Exit status 1 where anything differs.
"""

import argparse
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file

F32 = np.float32
NAMES = ("qkv", "proj", "fc1", "fc2")
failed = []


class ByteLinear(torch.nn.Module):
    """A linear layer of eight bits as core/eight_bits.h states it."""

    def __init__(self, layer):
        super().__init__()
        w = layer.weight.detach().numpy()
        scale = (np.abs(w).max(1) / F32(127)).astype(F32)
        self.scale = ((scale.view(np.uint32) + np.uint32(0x7F)) & ~np.uint32(0x7F)).view(F32)
        self.bytes = np.clip(np.rint(w / self.scale[:, None]), -127, 127).astype(np.int64)
        self.bias = layer.bias.detach().numpy()

    def forward(self, x):
        rows = x.detach().numpy().reshape(-1, x.shape[-1])
        low, high = np.minimum(rows.min(1), 0), np.maximum(rows.max(1), 0)
        step = ((high - low) / F32(255)).astype(F32)
        inverse = (F32(1) / step).astype(F32)
        zero = np.rint(-low * inverse)
        q = np.clip(np.rint(rows.astype(np.float64) * inverse[:, None] + zero[:, None]), 0, 255).astype(np.int64)
        sums = q @ self.bytes.T - zero[:, None].astype(np.int64) * self.bytes.sum(1)
        y = sums.astype(F32) * (step[:, None] * self.scale[None]) + self.bias
        return torch.from_numpy(y).reshape(*x.shape[:-1], -1)


def to_signed(x, axis):
    step = (np.abs(x).max(axis, keepdims=True) / F32(127)).astype(F32)
    return np.rint(x * (F32(1) / step)).astype(np.int64), step


class ByteAttention(torch.nn.Module):
    """Attention of eight bits, stated there too."""

    CURVE = [F32(c) for c in (254.98164, 176.781547, 61.8658407, 14.0687651)]

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, **_):
        heads = self.layer.num_heads
        qkv = self.layer.qkv(x).detach().numpy()
        images, tokens, width = qkv.shape
        q, k, v = qkv.reshape(images, tokens, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        mean = (np.add.reduce(v, -2, keepdims=True) * (F32(1) / F32(tokens))).astype(F32)
        (q, q_step), (k, k_step), (v, v_step) = to_signed(q, -1), to_signed(k, -1), to_signed(v - mean, -2)
        scores = (q @ k.swapaxes(-1, -2)).astype(F32) * k_step.swapaxes(-1, -2)
        slope = q_step * F32(1 / np.sqrt(q.shape[-1])) * F32(1.44269504)
        exponent = np.minimum((scores - scores.max(-1, keepdims=True)).astype(np.float64) * slope, 0)
        whole = np.rint(exponent)
        weights = np.ldexp(np.polyval(self.CURVE[::-1], exponent - whole), whole.astype(int))
        sums = np.rint(weights).astype(np.int64) @ v
        y = sums.astype(F32) * (v_step / weights.sum(-1, keepdims=True).astype(F32)) + mean
        return self.layer.proj(torch.from_numpy(y.transpose(0, 2, 1, 3).reshape(images, tokens, width // 3)))


def with_bytes(net, attention):
    if attention:
        for block in net.blocks:
            block.attn = ByteAttention(block.attn)
    for name, layer in list(net.named_modules()):
        if name.startswith("blocks.") and name.rsplit(".")[-1] in NAMES:
            parent = net.get_submodule(name.rsplit(".", 1)[0])
            setattr(parent, name.rsplit(".", 1)[1], ByteLinear(layer))
    return net


def distance(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def check(what, value, most):
    print(f"{what:66} {value:.2e}  (at most {most:.1e})")
    if not value <= most:
        failed.append(what)


def vitrum(args, *words):
    done = subprocess.run([args.vitrum, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"vitrum {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def write_model(net, depth, at):
    at.mkdir()
    save_file(net.state_dict(), at / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 1000, "model_args": {"depth": depth},
              "pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3,
                                 "num_classes": 1000}}
    (at / "config.json").write_text(json.dumps(config))


def check_depth(args, depth, work):
    torch.manual_seed(depth)
    net = timm.create_model("vit_tiny_patch16_224", pretrained=False, depth=depth).eval()
    for name, p in net.named_parameters():
        if name.endswith("weight") and p.dim() == 2:
            torch.nn.init.normal_(p, std=p.shape[1] ** -0.5)
    directory = work / f"depth{depth}"
    write_model(net, depth, directory)
    x = np.random.default_rng(depth).standard_normal((3, 3, 224, 224)).astype(F32)
    np.save(work / "x.npy", x)
    with torch.no_grad():
        plain = net(torch.from_numpy(x)).numpy()
        layers = with_bytes(copy.deepcopy(net), attention=False)(torch.from_numpy(x)).numpy()
        stated = with_bytes(net, attention=True)(torch.from_numpy(x)).numpy()
    own = distance(stated, plain)
    most = 1e-3 if depth == 1 else own

    def ours(model, precision):
        out = work / "y.npy"
        vitrum(args, "forward", "--model", model, "--input", work / "x.npy", "--output", out, "--precision", precision,
               "--force", "-q")
        return np.load(out)

    print(f"depth {depth}: the scheme is {own:.2e} from f32, {distance(layers, plain):.2e} with attention in f32")
    check("  vitrum forward --precision int8 against the scheme", distance(ours(directory, "int8"), stated), most)
    small = work / f"int8-{depth}"
    vitrum(args, "quantize", directory, small, "-q")
    check("  the quantised directory against the model rounded on load",
          distance(ours(small, "int8"), ours(directory, "int8")), 0)
    onnx = work / f"{depth}.onnx"
    vitrum(args, "export", "--model", small, "--output", onnx, "-q")
    runtime = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    # Its norms end in other last bits than PyTorch's.
    check("  ONNX Runtime against the scheme's layers", distance(runtime.run(None, {"pixel_values": x})[0], layers),
          own / 2 if depth == 1 else own)
    check_transformers(args, directory, work / f"hf-{depth}", x, layers, most)


def check_transformers(args, directory, target, x, layers, most):
    from transformers import AutoModelForImageClassification

    vitrum(args, "quantize", directory, target, "--to", "hf", "-q")
    with safe_open(target / "model.safetensors", "pt") as file:
        kinds = [str(file.get_tensor(k).dtype) for k in file.keys()]
    print(f"  safetensors reads {kinds.count('torch.int8')} matrices of int8 and {kinds.count('torch.float32')} others")
    model = AutoModelForImageClassification.from_pretrained(target).eval()
    with torch.no_grad():
        theirs = model(pixel_values=torch.from_numpy(x)).logits.numpy()
    # Its rounding of rows has a zero point of eight bits with a sign, and is not the same to the bit.
    check("  transformers with compressed-tensors against the scheme's layers", distance(theirs, layers),
          max(most, 2e-2))


def check_real(args, work):
    out = vitrum(args, "quantize", args.model, work / "real", "--data", args.data, "--json", "-q")
    r = json.loads(out)
    print(f"{args.model}: {r['agreement'] * 100:.1f} % of {r['images']} labels as in f32, "
          f"top-1 {100 * r['top1_before']:.2f} -> {100 * r['top1']:.2f} %")
    check("  labels that change", 1 - r["agreement"], 0.0101)
    check("  logits, relative", r["logits_error"], 0.04)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vitrum", default=pathlib.Path(__file__).resolve().parents[2] / "build/release/vitrum")
    parser.add_argument("--model")
    parser.add_argument("--data")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        for depth in (1, 4):
            check_depth(args, depth, work)
        if args.model:
            check_real(args, work)
    if failed:
        sys.exit(f"check_quantize: differs: {', '.join(failed)}")
    print("check_quantize: all well")


if __name__ == "__main__":
    main()
