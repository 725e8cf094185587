"""Swin-T, DeiT-S and ResNet-50 against PyTorch on the processor, in turns: inference and training.

    tools/python.sh bench/compare_families.py [--batch 8] [--rounds 3] [--threads 2] [--model NAME ...]
                                              [--precision f32 bf16] [--mode eager_f32 eager_bf16 compile_f32 compile_bf16]

Each measurement is a process of its own; PyTorch runs timm's model (ResNet also channels last, the better counts) with
fused AdamW, bf16 by autocast. Prints images/s, medians of the rounds, and the ratio of the better of either side. Needs
torch and timm, and a C++ compiler for torch.compile.
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


MODES = ["eager_f32", "eager_bf16", "compile_f32", "compile_bf16"]


def peer(name, work, mode, batch, threads, steps, now):
    import timm
    import torch

    torch.set_num_threads(threads)
    best = 0.0
    for layout in [torch.contiguous_format] + ([torch.channels_last] if name == "resnet50" else []):
        model = timm.create_model(MODELS[name]).to(memory_format=layout)
        x = torch.randn(batch, 3, 224, 224).to(memory_format=layout)
        target = torch.randint(0, 1000, (batch,))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        model.train(work == "train")
        net = torch.compile(model) if mode.startswith("compile") else model

        def forward():
            with torch.autocast("cpu", torch.bfloat16, enabled=mode.endswith("bf16")):
                return net(x)

        def step():
            if work == "infer":
                with torch.inference_mode():
                    return forward()
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(forward().float(), target).backward()
            return optimizer.step()

        step()
        times = []
        for _ in range(steps):
            start = now()
            step()
            times.append(now() - start)
        best = max(best, batch / statistics.median(times))
    print(best)


def ours(args, name, work, precision):
    run = subprocess.run([str(args.vitrum), "bench", "--model", name, "--mode", work, "--batch", str(args.batch), "--threads",
                          str(args.threads), "--precision", precision, "--device", "cpu", "--steps", str(args.steps),
                          "--clock", args.clock, "--json"], check=True, capture_output=True, text=True)
    return json.loads(run.stdout)["images_per_second"]


def theirs(args, name, work, mode):
    run = subprocess.run([sys.executable, __file__, "--peer", name, work, mode, "--batch", str(args.batch), "--threads",
                          str(args.threads), "--steps", str(args.steps), "--clock", args.clock], check=True, capture_output=True,
                         text=True)
    return float(run.stdout.split()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrum", default=ROOT / "build/release/vitrum")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--work", nargs="+", choices=["infer", "train"], default=["infer", "train"])
    parser.add_argument("--precision", nargs="+", choices=["f32", "bf16"], default=["f32"], help="ours")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=["eager_f32"], help="PyTorch's")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        now = time.process_time if args.clock == "processor" else time.perf_counter
        return peer(*args.peer, args.batch, args.threads, args.steps, now)
    for name in args.model:
        for work in args.work:
            rates = {}
            for _ in range(args.rounds):
                for precision in args.precision:
                    rates.setdefault(f"vitrum_{precision}", []).append(ours(args, name, work, precision))
                for mode in args.mode:
                    rates.setdefault(mode, []).append(theirs(args, name, work, mode))
            medians = {k: statistics.median(v) for k, v in rates.items()}
            best = [max(v for k, v in medians.items() if k.startswith("vitrum") == mine) for mine in (True, False)]
            print(f"{name}, {work}: " + ", ".join(f"{k} {v:.2f}" for k, v in medians.items())
                  + f"  best against best {best[0] / best[1]:.2f}x", flush=True)


if __name__ == "__main__":
    main()
