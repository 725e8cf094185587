#!/usr/bin/env python3
"""PyTorch + timm on a GPU, as strong as it gets: compiled, bf16 (AMP and pure), fused AdamW, flash attention.

usage: pytorch_gpu.py train|infer MODEL BATCH [--image-size N] [--modes amp,pure]
Prints one JSON line for each mode; inputs are on the card already.
"""
import argparse
import json
import time

import timm
import torch


def build(args):
    options = {} if args.image_size is None else {"img_size": args.image_size}
    if args.model == "vit_256x12_p4_32":  # the small model of the comparison, which timm has no name for
        return timm.models.vision_transformer.VisionTransformer(
            img_size=32, patch_size=4, embed_dim=256, depth=12, num_heads=4, num_classes=10)
    return timm.create_model(args.model, num_classes=1000, **options)


def timed(step, seconds=3.0):
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 10)
    return sorted(times)[len(times) // 2]


def train(args, mode):
    model = build(args).cuda()
    if mode == "pure":
        model = model.bfloat16()
    model = model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)
    size = args.image_size or (32 if args.model.endswith("_32") else 224)
    dtype = torch.bfloat16 if mode == "pure" else torch.float32
    x = torch.randn(args.batch, 3, size, size, device="cuda", dtype=dtype)
    y = torch.randint(0, 10, (args.batch,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=mode == "amp"):
            loss = torch.nn.functional.cross_entropy(compiled(x).float(), y)
        loss.backward()
        optimizer.step()

    return timed(step)


def infer(args, mode):
    model = build(args).cuda().eval().bfloat16()
    compiled = torch.compile(model, mode="max-autotune" if mode == "autotune" else "reduce-overhead")
    size = args.image_size or (32 if args.model.endswith("_32") else 224)
    x = torch.randn(args.batch, 3, size, size, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        return timed(lambda: compiled(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["train", "infer"])
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--modes")
    args = parser.parse_args()
    modes = args.modes or ("amp,pure" if args.task == "train" else "graphs")
    for mode in modes.split(","):
        torch.cuda.reset_peak_memory_stats()
        seconds = (train if args.task == "train" else infer)(args, mode)
        print(json.dumps({
            "peer": "pytorch", "task": args.task, "mode": mode, "model": args.model, "batch": args.batch,
            "images_per_second": args.batch / seconds, "milliseconds": 1e3 * seconds,
            "peak_bytes": torch.cuda.max_memory_allocated(), "version": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
