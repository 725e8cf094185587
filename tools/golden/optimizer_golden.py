"""Writes tests/golden/optimizers.safetensors: ten steps of optimisers of PyTorch and timm.

    tools/python.sh tools/golden/optimizer_golden.py [--out FILE]

A handful of tensors with gradients drawn beforehand, so that only the optimiser counts: `param.NAME`, `grad.STEP.NAME`,
and for each run `after.RUN.NAME`. The metadata entry `golden` is JSON: for each run the keys of a recipe, and `slope`,
which makes the gradient at weights w `grad + slope * w` (SAM looks at it from two places).

torch.optim.Muon rounds to bf16 inside; runs named `muon*` have the same function in f32, `muon_torch` is PyTorch's own.
"""

import argparse
import json
import pathlib

import timm
import torch
import torch.optim._muon as torch_muon
from safetensors.torch import save_file
from timm.optim import Lamb, Lion

SHAPES = {
    "blocks.0.attn.qkv.weight": (24, 8),
    "blocks.0.attn.qkv.bias": (24,),
    "blocks.0.mlp.fc2.weight": (8, 20),
    "blocks.1.conv.weight": (6, 18),
    "pos_embed": (1, 4, 8),
    "head.weight": (5, 8),
}
STEPS = 10
MUON = dict(optimizer="muon", lr=0.02, adamw_lr=1e-3, weight_decay=0.05)
RUNS = {  # as recipes name it; `slope` is no recipe key
    "sgd_nesterov": dict(optimizer="sgd", lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "lion": dict(optimizer="lion", lr=1e-3, weight_decay=0.05),
    "lamb": dict(optimizer="lamb", lr=5e-3, weight_decay=0.05),
    "lamb_unclipped": dict(optimizer="lamb", lr=5e-3, weight_decay=0.05, clip_norm=0.0),
    "muon": MUON,
    "muon_match": MUON | dict(muon_scale="match_rms_adamw", lr=1e-3),
    "muon_plain": MUON | dict(nesterov=False, momentum=0.9, clip_norm=0.5),
    "muon_torch": MUON,
    "sam": dict(optimizer="sgd", lr=0.05, momentum=0.9, sam=0.5, slope=0.5),
}


def newton_schulz_f32(grad, coefficients, steps, eps):
    """torch.optim's function without its rounding."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def decays(name):
    return name.endswith("weight")


def groups(params, decay, keep=lambda name: True):
    return [dict(params=[p for n, p in params.items() if decays(n) == d and keep(n)], weight_decay=decay if d else 0.0)
            for d in (True, False)]


def optimizers(run, params):
    decay = run.get("weight_decay", 0.0)
    kind, lr = run["optimizer"], run["lr"]
    if kind == "sgd":
        return [torch.optim.SGD(groups(params, decay), lr=lr, momentum=run["momentum"],
                                nesterov=run.get("nesterov", False))]
    if kind == "lion":
        return [Lion(groups(params, decay), lr=lr)]
    if kind == "lamb":
        return [Lamb(groups(params, decay), lr=lr, max_grad_norm=None if "clip_norm" in run else 1.0)]
    matrix = lambda name: name.startswith("blocks.") and name.endswith(".weight")
    return [torch.optim.Muon([p for n, p in params.items() if matrix(n)], lr=lr, weight_decay=decay,
                             momentum=run.get("momentum", 0.95), nesterov=run.get("nesterov", True),
                             adjust_lr_fn=run.get("muon_scale", "original")),
            torch.optim.AdamW(groups(params, decay, lambda n: not matrix(n)), lr=run["adamw_lr"])]


def train(run, start, gradients):
    params = {n: p.clone().requires_grad_() for n, p in start.items()}
    steppers = optimizers(run, params)

    def backward(step):
        for n, p in params.items():
            p.grad = gradients[step][n] + run.get("slope", 0.0) * p.detach()

    for step in range(STEPS):
        backward(step)
        if "sam" in run:  # Foret et al.: up by rho along the gradient, and the gradient found there
            with torch.no_grad():
                norm = torch.cat([p.grad.flatten() for p in params.values()]).norm()
                before = {n: p.clone() for n, p in params.items()}
                for p in params.values():
                    p += run["sam"] * p.grad / (norm + 1e-12)
            backward(step)
            with torch.no_grad():
                for n, p in params.items():
                    p.copy_(before[n])
        if run.get("clip_norm"):
            torch.nn.utils.clip_grad_norm_(params.values(), run["clip_norm"])
        for optimizer in steppers:
            optimizer.step()
    return {n: p.detach() for n, p in params.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "tests" /
                        "golden" / "optimizers.safetensors")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    start = {n: 0.3 * torch.randn(s, generator=generator) for n, s in SHAPES.items()}
    gradients = [{n: 0.3 * torch.randn(s, generator=generator) for n, s in SHAPES.items()} for _ in range(STEPS)]
    out = {f"param.{n}": p for n, p in start.items()}
    out |= {f"grad.{i}.{n}": g for i, gs in enumerate(gradients) for n, g in gs.items()}
    rounded = torch_muon._zeropower_via_newtonschulz
    for name, run in RUNS.items():
        torch_muon._zeropower_via_newtonschulz = rounded if name == "muon_torch" else newton_schulz_f32
        copies = [{n: g.clone() for n, g in gs.items()} for gs in gradients]  # timm's Lamb writes to them
        out |= {f"after.{name}.{n}": p for n, p in train(run, start, copies).items()}
    about = {"runs": RUNS, "torch": torch.__version__, "timm": timm.__version__}
    save_file({k: t.contiguous() for k, t in out.items()}, args.out, {"golden": json.dumps(about)})
    args.out.chmod(0o644)
    print(f"{args.out.name} {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
