"""PyTorch's side of the training benchmark: images per second of whole training steps on synthetic data in memory.

    tools/python.sh bench/pytorch_train.py --model vit_mnist [--mode MODE ...] [--threads 2]

Needs torch and timm (and a C++ compiler for torch.compile). Each mode runs in a fresh process, so that peak_bytes is
its own; base_bytes is what the process held before it had a model. Prints one JSON line a mode; waiting is the part
of the time in which something on the machine waited for a core: above a few percent, do not trust the median.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

MODES = ["eager_f32", "eager_bf16", "compile_f32", "compile_bf16"]
MODELS = {  # name: (batch, image shape, classes, optimizer, its options): as the documents train them
    "vit_mnist": (128, (1, 28, 28), 100, "Adam", dict(lr=3e-4, weight_decay=1e-4)),
    "minvit_cifar10": (64, (3, 32, 32), 10, "AdamW", dict(lr=1e-3, weight_decay=0.05)),
    "vit_tiny_patch16_224": (32, (3, 224, 224), 1000, "AdamW", dict(lr=1e-3, weight_decay=0.05)),
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all")
    parser.add_argument("--batch", type=int, help="default: the model's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10, help="of timed steps")
    parser.add_argument("--chunks", type=int, default=15, help="timed chunks; the median is reported")
    parser.add_argument("--optimizer", choices=["fused", "foreach", "loop"], default="fused")
    parser.add_argument("--compile-mode", default="default", help="torch.compile's mode")
    parser.add_argument("--fallback-random", action="store_true",
                        help="compiled dropout draws from eager's generator, not from inductor's")
    parser.add_argument("--matmul-precision", choices=["highest", "high", "medium"], default="highest")
    parser.add_argument("--no-sdpa", action="store_true", help="minViT's attention spelt out, as its document has it")
    parser.add_argument("--no-gemm", action="store_true", help="skip the GEMM peak")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def gemm_gflops(torch, n=2048, rounds=5):
    """The best of several square products, in 1e9 operations a second."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times[1:]) / 1e9


def create(name, sdpa):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools/golden"))
    from peer_models import MinViT, MnistViT
    if name == "vit_mnist":
        return MnistViT()
    if name == "minvit_cifar10":
        return MinViT(sdpa=sdpa)
    import timm
    return timm.create_model(name)


def training_step(args, torch, batch):
    """A closure that does one step: forward, loss, backward, update."""
    _, shape, classes, optimizer, options = MODELS[args.model]
    model = create(args.model, not args.no_sdpa).train()
    kind = {"fused": dict(fused=True), "foreach": dict(foreach=True), "loop": dict(foreach=False)}[args.optimizer]
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), **options, **kind)
    images, labels = torch.rand(batch, *shape), torch.randint(classes, (batch,))
    bf16 = args.mode[0].endswith("bf16")

    def loss_of(images, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return torch.nn.functional.cross_entropy(model(images), labels)

    if args.mode[0].startswith("compile"):
        import torch._inductor.config as inductor
        inductor.fallback_random = args.fallback_random
        loss_of = torch.compile(loss_of, mode=args.compile_mode)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(images, labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def waited_seconds():
    """Time since boot in which some task waited for a core (pressure stall information), 0 where unknown."""
    try:
        return int(pathlib.Path("/proc/pressure/cpu").read_text().split("total=")[1].split()[0]) / 1e6
    except OSError:
        return 0.0


def step_seconds(step, seconds, chunks, now):
    """The mean time of a step in each chunk."""
    for _ in range(3):
        step()
    start = now()
    step()
    steps = max(1, round(seconds / chunks / (now() - start)))
    means = []
    for _ in range(chunks):
        start = now()
        for _ in range(steps):
            step()
        means.append((now() - start) / steps)
    return means


def measure(args):
    import torch
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    batch = args.batch or MODELS[args.model][0]
    base = resident_bytes()
    step = training_step(args, torch, batch)
    step()  # compiles
    waited, start = waited_seconds(), time.perf_counter()
    chunks = step_seconds(step, args.seconds, args.chunks,
                          time.process_time if args.clock == "processor" else time.perf_counter)
    waiting = (waited_seconds() - waited) / (time.perf_counter() - start)
    seconds = statistics.median(chunks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = dict(model=args.model, mode=args.mode[0], batch=batch, threads=args.threads, optimizer=args.optimizer,
                  images_per_second=round(batch / seconds, 2), milliseconds=round(seconds * 1e3, 3),
                  best_images_per_second=round(batch / min(chunks), 2), peak_bytes=peak, base_bytes=base,
                  waiting=round(waiting, 3), torch=torch.__version__)
    if not args.no_gemm:
        result["gemm_gflops"] = round(gemm_gflops(torch), 1)
    print(json.dumps(result), flush=True)


def main():
    args = parse()
    if args.in_process:
        return measure(args)
    for mode in args.mode or MODES:
        # argparse keeps every --mode; the child looks at the first, so ours comes before the caller's.
        subprocess.run([sys.executable, __file__, "--mode", mode, *sys.argv[1:], "--in-process"], check=True)


if __name__ == "__main__":
    main()
