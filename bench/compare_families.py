"""Swin-T, DeiT-S and ResNet-50 against PyTorch on the processor, in turns: inference and training, f32.

    venv/bin/python bench/compare_families.py [--batch 8] [--rounds 3] [--threads 2]

Each measurement is a process of its own; PyTorch runs timm's model eager (ResNet also channels last, the better counts)
with fused AdamW. Prints images/s, the median of the rounds, and the ratio. Needs torch and timm.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {"swin_tiny_patch4_window7_224": "swin_tiny_patch4_window7_224", "deit_small_patch16_224": "deit_small_patch16_224",
          "resnet50": "resnet50"}


def peer(name, mode, batch, threads, steps):
    import timm
    import torch

    torch.set_num_threads(threads)
    best = 0.0
    for layout in [torch.contiguous_format] + ([torch.channels_last] if name == "resnet50" else []):
        model = timm.create_model(MODELS[name]).to(memory_format=layout)
        x = torch.randn(batch, 3, 224, 224).to(memory_format=layout)
        target = torch.randint(0, 1000, (batch,))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        model.train(mode == "train")

        def step():
            if mode == "infer":
                with torch.inference_mode():
                    return model(x)
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(x), target).backward()
            return optimizer.step()

        step()
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        best = max(best, batch / statistics.median(times))
    print(best)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrum", default=ROOT / "build/release/vitrum")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(*args.peer, args.batch, args.threads, args.steps)
    print(f"{'model, mode':42} {'Vitrum':>8} {'PyTorch':>8}  ratio")
    for name in MODELS:
        for mode in ["infer", "train"]:
            ours, theirs = [], []
            for _ in range(args.rounds):
                run = subprocess.run([str(args.vitrum), "bench", "--model", name, "--mode", mode, "--batch", str(args.batch),
                                      "--threads", str(args.threads), "--precision", "f32", "--device", "cpu", "--steps",
                                      str(args.steps), "--json"], check=True, capture_output=True, text=True)
                ours.append(json.loads(run.stdout)["images_per_second"])
                run = subprocess.run([sys.executable, __file__, "--peer", name, mode, "--batch", str(args.batch), "--threads",
                                      str(args.threads), "--steps", str(args.steps)], check=True, capture_output=True, text=True)
                theirs.append(float(run.stdout.split()[-1]))
            a, b = statistics.median(ours), statistics.median(theirs)
            print(f"{name + ', ' + mode:42} {a:8.2f} {b:8.2f}  {a / b:.2f}", flush=True)


if __name__ == "__main__":
    main()
