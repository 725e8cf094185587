"""Trains with Vitrum and with PyTorch in turn, and prints the medians and their ratios.

    tools/python.sh bench/compare.py [--vitrum build/release/vitrum] [--rounds 3] [--model NAME ...] [--json FILE]

Run with a Python that has torch and timm. Both sides take turns within every round, so that a change in the machine's
speed meets both alike. The ratio of a model is between the better precision of either side.
"""

import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys

from pytorch_train import MODELS, MODES

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUSY = 0.05  # part of the time in which something waited for a core


def last_json(command):
    """The last line of a command's output as JSON, or None (and its complaint on stderr) when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"failed with {done.returncode}: {' '.join(map(str, command))}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def runs(args, model):
    """(name, command) of everything that is measured for one model."""
    batch, threads = str(MODELS[model][0]), str(args.threads)
    for precision in args.precision:
        yield f"vitrum_{precision}", [args.vitrum, "bench", "--model", model, "--mode", "train", "--batch", batch,
                                      "--precision", precision, "--threads", threads, "--clock", args.clock, "--json"]
    for mode in args.mode:
        yield mode, [sys.executable, ROOT / "bench" / "pytorch_train.py", "--model", model, "--mode", mode,
                     "--threads", threads, "--seconds", str(args.seconds), "--clock", args.clock]


def median_of(results):
    keys = [k for k, v in results[0].items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return {k: statistics.median(r[k] for r in results if k in r) for k in keys}


def row(name, m, fastest):
    gemm, mfu, waiting = m.get("gemm_gflops"), m.get("mfu"), m.get("waiting", 0)
    print(f"  {name:14} {m['images_per_second']:9.1f} images/s {m['milliseconds']:9.2f} ms/step "
          f"{m['peak_bytes'] / 2**20:7.0f} MiB ({m.get('base_bytes', 0) / 2**20:.0f} before the model)  {m['images_per_second'] / fastest:5.2f}x PyTorch's best"
          + (f"  mfu {mfu:.2f}" if mfu else "") + (f"  peak {gemm:.0f} GF/s" if gemm else "")
          + ("  (busy machine)" if waiting > BUSY else ""))


def report(model, medians):
    peers = {k: m for k, m in medians.items() if k in MODES}
    ours = {k: m for k, m in medians.items() if k not in MODES}
    print(f"{model}, batch {MODELS[model][0]}")
    fastest = max((m["images_per_second"] for m in peers.values()), default=float("nan"))
    for name, m in medians.items():
        row(name, m, fastest)
    if ours and peers:
        speed = max(m["images_per_second"] for m in ours.values()) / fastest
        memory = min(m["peak_bytes"] for m in ours.values()) / min(m["peak_bytes"] for m in peers.values())
        busy = any(m.get("waiting", 0) > BUSY for m in medians.values())
        print(f"  best against best: {speed:.2f}x the throughput, {memory:.2f}x the peak memory"
              + (" (not to be trusted: the machine was busy)" if busy else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vitrum", default=ROOT / "build" / "release" / "vitrum")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all")
    parser.add_argument("--mode", action="append", choices=MODES, help="PyTorch's modes; default: all")
    parser.add_argument("--precision", action="append", choices=["f32", "bf16"], help="ours; default: both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10, help="of timed steps of each PyTorch run")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall",
                        help="processor time (with --threads 1) is for a machine that others use")
    parser.add_argument("--json", type=pathlib.Path, help="also append every result to this file as JSON lines")
    args = parser.parse_args()
    args.mode, args.precision = args.mode or MODES, args.precision or ["f32", "bf16"]
    for model in args.model or MODELS:
        results = collections.defaultdict(list)
        for turn in range(args.rounds):
            for name, command in runs(args, model):
                if (result := last_json(command)) is None:
                    continue
                results[name].append(result)
                if args.json:
                    with args.json.open("a") as lines:
                        lines.write(json.dumps({"model": model, "run": name, "round": turn, **result}) + "\n")
        report(model, {name: median_of(r) for name, r in results.items()})


if __name__ == "__main__":
    main()
