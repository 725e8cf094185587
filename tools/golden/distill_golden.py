"""Writes tests/golden/deit_distill.safetensors: a small distilled DeiT of timm's and ten steps of DeiT's losses.

    tools/python.sh tools/golden/distill_golden.py [--out DIR]

The file holds `pixels` (u8, normalised with 0.5), `labels`, `teacher` (the teacher's logits), `logits` (the mean), `cls`, `dist`, `features` and, under
timm's names, `param.NAME`. For each kind of loss (hard, soft, bce_hard): `losses.KIND` of ten AdamW steps on that one batch
and `grad.KIND.NAME` before the first. The metadata entry `golden` is JSON: the model and the settings.
"""

import argparse
import copy
import json
import pathlib

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.loss import BinaryCrossEntropy
from timm.models.deit import VisionTransformerDistilled

MODEL = dict(img_size=[8, 12], patch_size=4, in_chans=3, embed_dim=16, depth=1, num_heads=2, mlp_ratio=2, num_classes=5)
ALPHA, TAU, SMOOTHING, LR, DECAY, STEPS, BATCH = 0.3, 2.5, 0.1, 1e-3, 0.05, 10, 4


def soft(student, teacher):
    """KL at a temperature, the mean over images and classes, as DeiT's DistillationLoss computes it."""
    p, q = F.log_softmax(student / TAU, dim=1), F.log_softmax(teacher / TAU, dim=1)
    return F.kl_div(p, q, reduction="sum", log_target=True) * TAU * TAU / student.numel()


def hard(student, teacher):
    return F.cross_entropy(student, teacher.argmax(dim=1))


def task(logits, labels):
    return F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)


KINDS = {"hard": (task, hard), "soft": (task, soft), "bce_hard": (BinaryCrossEntropy(SMOOTHING), hard)}


def ten_steps(model, batch, kind):
    """The gradients before the first step, and each step's loss."""
    image, labels, teacher = batch
    base, distillation = KINDS[kind]
    decayed = {n for n, p in model.named_parameters() if p.ndim > 1 and "token" not in n and n != "pos_embed"}
    groups = [dict(params=[p for n, p in model.named_parameters() if (n in decayed) == decays],
                   weight_decay=DECAY if decays else 0) for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    losses, gradients = [], {}
    for step in range(STEPS):
        cls, dist = model(image)
        loss = (1 - ALPHA) * base(cls, labels) + ALPHA * distillation(dist, teacher)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "tests/golden")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = VisionTransformerDistilled(**MODEL).train()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    model.set_distilled_training(True)
    pixels = torch.randint(0, 256, (BATCH, MODEL["in_chans"], *MODEL["img_size"]), dtype=torch.uint8)
    image = (pixels / 255 - 0.5) / 0.5
    labels, teacher = torch.tensor([0, 3, 4, 1], dtype=torch.int32), 2 * torch.randn(BATCH, MODEL["num_classes"])
    with torch.no_grad():
        cls, dist = model(image)
        features = model.forward_head(model.forward_features(image), pre_logits=True)
    tensors = dict(pixels=pixels, labels=labels, teacher=teacher, cls=cls, dist=dist, logits=(cls + dist) / 2,
                   features=features)
    tensors |= {f"param.{n}": p.detach().clone() for n, p in model.named_parameters()}
    for kind in KINDS:
        losses, gradients = ten_steps(copy.deepcopy(model), (image, labels.long(), teacher), kind)
        tensors[f"losses.{kind}"] = torch.tensor(losses)
        tensors |= {f"grad.{kind}.{n}": g for n, g in gradients.items()}
    about = dict(model=MODEL, alpha=ALPHA, tau=TAU, smoothing=SMOOTHING, lr=LR, decay=DECAY, torch=torch.__version__,
                 timm=timm.__version__)
    save_file({k: t.contiguous() for k, t in tensors.items()}, args.out / "deit_distill.safetensors",
              {"golden": json.dumps(about)})


if __name__ == "__main__":
    main()
