"""What slices and processes cost, and what PyTorch's DDP makes of the same two cores.

    tools/python.sh bench/ranks.py [--vitrum build/release/vitrum] [--rounds 5] [--model vit_tiny_patch16_224] [--batch 32]

Run with a Python that has torch and timm (--no-peer without). Every round runs, in turn: one process with two threads, the same with
four slices, two processes of one thread each, and PyTorch's DDP over gloo with two processes of one thread. All train the same
architecture in f32 with AdamW on noise in memory. Printed are medians over the rounds: images a second by the wall clock,
and user time an image, which other work on the machine disturbs less: neither waiting for another process counts in it, nor
memory that the kernel clears, nor copies through sockets.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from pytorch_train import waited_seconds

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIDES = {"vit_tiny_patch16_224": 224, "vit_tiny_cifar": 32}


def write_noise(folder, side, images):
    """Grey images of noise in MNIST's format: nothing to decode, crop or resize."""
    for part, count in ("train", images), ("t10k", 2):
        pixels = random.Random(count).randbytes(count * side * side)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, side, side) + pixels)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + bytes(i % 10 for i in range(count)))


def run_vitrum(args, folder, ranks, threads, slices, epochs):
    """Images a second of the last epoch, and seconds of user time of the whole."""
    out = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "run"
    command = [args.vitrum, "train", "--model", args.model, "--data", f"mnist:{folder}", "--epochs", epochs, "--batch-size", args.batch,
               "--ranks", ranks, "--threads", threads, "--device", "cpu", "--precision", "f32", "--out", out, "-q", "--json",
               "--set", f"slices={slices}", "--set", "eval_every=1000"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return rows[-1]["images_per_second"], after.ru_utime - before.ru_utime


def measure_vitrum(args, folder, *how):
    # What both runs have in common, starting and saving, does not count.
    short = run_vitrum(args, folder, *how, 1)[1]
    speed, long = run_vitrum(args, folder, *how, 3)
    return speed, (long - short) / (2 * args.images)


def measure_ddp(args, compiled):
    command = [sys.executable, __file__, "--ddp-rank", "0", "--model", args.model, "--batch", str(args.batch), "--steps", str(args.steps)]
    environment = os.environ | dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(random.randrange(20000, 40000)), WORLD_SIZE="2",
                                    OMP_NUM_THREADS="1", COMPILED="1" if compiled else "")
    processes = []
    for rank in 0, 1:
        command[3] = str(rank)
        processes.append(subprocess.Popen(command, env=environment | dict(RANK=str(rank)), stdout=subprocess.PIPE, text=True))
    results = [json.loads(process.communicate()[0].strip().splitlines()[-1]) for process in processes]
    return (args.batch / statistics.median(results[0]["seconds"]), sum(r["processor"] for r in results) / (args.steps * args.batch))


def ddp_rank(args):
    """One process of PyTorch's side: half of the batch, the gradients' buckets exchanged while the others are computed."""
    import timm
    import torch
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    side, own = SIDES[args.model], args.batch // 2
    if side == 224:
        model = timm.create_model(args.model, in_chans=1, num_classes=10)
    else:
        model = timm.models.VisionTransformer(img_size=32, patch_size=4, in_chans=1, num_classes=10, embed_dim=192, depth=9, num_heads=12,
                                             mlp_ratio=2)
    model = torch.nn.parallel.DistributedDataParallel(model.train(), gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    images, labels = torch.rand(own, 1, side, side), torch.randint(10, (own,))
    loss_of = lambda: torch.nn.functional.cross_entropy(model(images), labels)
    if os.environ["COMPILED"]:
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        optimizer.step()

    for _ in range(3):
        step()
    seconds, processor = [], os.times().user
    for _ in range(args.steps):
        torch.distributed.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(dict(seconds=seconds, processor=os.times().user - processor)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vitrum", default=ROOT / "build" / "release" / "vitrum")
    parser.add_argument("--model", choices=SIDES, default="vit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4, help="of an epoch, and that are timed of PyTorch's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--compiled", action="store_true", help="torch.compile, too")
    parser.add_argument("--ddp-rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ddp_rank is not None:
        return ddp_rank(args)
    args.images = args.steps * args.batch
    measured, waited, start = {}, waited_seconds(), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_noise(folder, SIDES[args.model], args.images)
        runs = {"1 process x 2 threads": lambda: measure_vitrum(args, folder, 1, 2, 1),
                "the same, 4 slices": lambda: measure_vitrum(args, folder, 1, 2, 4),
                "2 processes x 1 thread": lambda: measure_vitrum(args, folder, 2, 1, 2)}
        if not args.no_peer:
            runs["PyTorch DDP, 2 x 1"] = lambda: measure_ddp(args, False)
        if args.compiled:
            runs["PyTorch DDP, compiled"] = lambda: measure_ddp(args, True)
        for number in range(args.rounds):
            for what, run in runs.items():
                measured.setdefault(what, []).append(run())
                speed, processor = measured[what][-1]
                print(f"round {number + 1}  {what:24} {speed:8.2f} images/s  {1e3 * processor:8.2f} ms of user time an image", flush=True)
    first = [statistics.median(r[i] for r in next(iter(measured.values()))) for i in (0, 1)]
    for what, results in measured.items():
        speed, processor = (statistics.median(r[i] for r in results) for i in (0, 1))
        print(f"median   {what:24} {speed:8.2f} images/s ({speed / first[0]:.3f})  {1e3 * processor:8.2f} ms ({first[1] / processor:.3f})")
    print(f"something waited for a core {100 * (waited_seconds() - waited) / (time.perf_counter() - start):.0f} % of the time")


if __name__ == "__main__":
    main()
