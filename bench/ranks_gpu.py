"""Several processes on one card: whether they leave the bits of one, and what being one of several costs.

    python3 bench/ranks_gpu.py [--vitrum build/release/vitrum] [--skip bits|speed] [--model vit_base_patch16_224] [--batch 256]

Needs the binary, libvitrum_cuda.so beside it, and Python alone. Data are made here.

bits: 1, 2, 3 and 8 processes that share the card (bytes go through the host's memory, since NCCL wants a card for each) train the
same small ViT in bf16, and so do three whose run is killed and gone on with by others, on a machine that remembers no choice of
kernels. The SHA-256 of each state must be the same. Muon, whose products are batched by who updates what, is compared as well.

speed: a step of training in one process; the same as one of several, in which NCCL brings gradients and weights from the process to
itself, inside the captured step (goal: at least 0.985 of plain); and the batch in four slices. Without libnccl.so.2 the second is
left out. Exit code 1: bits differ, or the goal was missed.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOAL = 0.985


def write_images(folder):
    """Ten kinds of noisy squares, 28 x 28, in MNIST's format."""
    draw = random.Random(1)
    for part, count in ("train", 4000), ("t10k", 500):
        pixels, labels = bytearray(), bytearray()
        for i in range(count):
            kind = draw.randrange(10)
            image = bytearray(b & 63 for b in draw.randbytes(28 * 28))
            for row in range(2 * kind, 2 * kind + 8):
                at = 28 * row + 2 * ((7 * kind) % 10)
                image[at:at + 8] = bytes(200 + (b & 31) for b in image[at:at + 8])
            pixels += image
            labels.append(kind)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, 28, 28) + pixels)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)


def words(*all_of_them):
    return [str(word) for word in all_of_them]


class Bits:
    def __init__(self, args, folder):
        self.args, self.folder, self.failed = args, folder, False
        write_images(folder)

    def environment(self, cache="cache", **more):
        return os.environ | dict(VITRUM_CACHE=str(self.folder / cache)) | more

    def train(self, out, ranks, optimizer="adamw"):
        return words(self.args.vitrum, "train", "--model", "vit_mnist", "--data", f"mnist:{self.folder}", "--out", self.folder / out,
                     "--ranks", ranks, "--device", "cuda", "--precision", "bf16", "--threads", 2, "-q", "--epochs", 2,
                     "--batch-size", 256,
                     *(w for key in (f"optimizer={optimizer}", "slices=8", "clip_norm=1", "ema=0.9", "checkpoint_every=4") for w in ("--set", key)))

    def resume(self, out, ranks):
        return words(self.args.vitrum, "train", "--resume", self.folder / out, "--ranks", ranks, "--device", "cuda", "--threads", 2, "-q")

    def digest(self, out):
        return hashlib.sha256((self.folder / out / "state" / "state.safetensors").read_bytes()).hexdigest()[:16]

    def run(self, what, command, cache="cache"):
        start = time.perf_counter()
        done = subprocess.run(command, env=self.environment(cache), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{what}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return time.perf_counter() - start

    def compare(self, what, out, expected, seconds):
        digest = self.digest(out)
        self.failed = self.failed or digest != expected
        print(f"{what:44} {digest}  {'the same' if digest == expected else 'DIFFERENT'}  {seconds:5.1f} s", flush=True)

    def kill_when_saved(self, command, out, cache):
        """SIGKILL to the first process once it has saved in this part of the run."""
        state = self.folder / out / "state" / "state.safetensors"
        before = state.stat().st_mtime_ns if state.exists() else 0
        process = subprocess.Popen(command, env=self.environment(cache), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.perf_counter() + 60
        while process.poll() is None and time.perf_counter() < limit and (not state.exists() or state.stat().st_mtime_ns == before):
            time.sleep(0.005)
        killed = process.poll() is None
        process.kill()
        process.wait()
        return killed

    def measure(self):
        seconds = self.run("1 process", self.train("on1", 1))
        expected = self.digest("on1")
        self.compare("AdamW, 1 process", "on1", expected, seconds)
        for ranks in 2, 3, 8:
            seconds = self.run(f"{ranks} processes", self.train(f"on{ranks}", ranks))
            self.compare(f"AdamW, {ranks} processes", f"on{ranks}", expected, seconds)
        start = time.perf_counter()
        killed = self.kill_when_saved(self.train("killed", 3), "killed", "cache")
        self.run("resumed", self.resume("killed", 2), "another cache")
        self.compare(f"AdamW, 3 {'killed' if killed else 'NOT killed in time'}, resumed by 2", "killed", expected, time.perf_counter() - start)
        seconds = self.run("Muon", self.train("muon1", 1, "muon"))
        expected = self.digest("muon1")
        self.compare("Muon, 1 process", "muon1", expected, seconds)
        self.compare("Muon, 3 processes", "muon3", expected, self.run("Muon", self.train("muon3", 3, "muon")))
        self.refusal()
        return not self.failed

    def refusal(self):
        done = subprocess.run(self.train("nccl", 2), env=self.environment(VITRUM_NCCL="1"), capture_output=True, text=True)
        print(f"two that insist on NCCL: exit code {done.returncode}, {done.stderr.strip()}")
        self.failed = self.failed or done.returncode != 2


def bench(args, cache, slices, nccl):
    """Images a second, and how it is linked to itself; (None, why) where that cannot be."""
    command = words(args.vitrum, "bench", "--mode", "train", "--model", args.model, "--batch", args.batch, "--slices", slices, "--device",
                    "cuda", "--precision", "bf16", "--steps", 4, "--warmup", 1, "--json")
    environment = os.environ | dict(VITRUM_CACHE=cache, VITRUM_NCCL="1" if nccl else "0")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip()
    result = json.loads(done.stdout)
    return result["images_per_second"], result.get("link", "")


def measure_speed(args, folder):
    cases = {"plain": (1, False), "NCCL, to itself": (1, True), "4 slices": (4, False)}
    speeds, links = {}, {}
    for turn in range(args.rounds):
        for name, (slices, nccl) in cases.items():
            if links.get(name) == "none":
                continue
            speed, link = bench(args, str(folder / "cache"), slices, nccl)
            if speed is None:
                if name == "plain" or not nccl:
                    sys.exit(f"{name}: {link}")
                print(f"{name}: left out: {link}")
                links[name] = "none"
                continue
            speeds.setdefault(name, []).append(speed)
            links[name] = link
            print(f"round {turn + 1}  {name:16} {speed:9.1f} images/s  {link}", flush=True)
    plain = statistics.median(speeds["plain"])
    for name, all_of_them in speeds.items():
        middle = statistics.median(all_of_them)
        print(f"median   {name:16} {middle:9.1f} images/s  {middle / plain:.4f} of plain")
    own = speeds.get("NCCL, to itself")
    return not own or statistics.median(own) / plain >= GOAL


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--vitrum", type=pathlib.Path, default=ROOT / "build" / "release" / "vitrum")
    parser.add_argument("--skip", choices=("bits", "speed"))
    parser.add_argument("--model", default="vit_base_patch16_224", help="whose speed is measured")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    args.vitrum = args.vitrum.resolve()
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if args.skip != "bits":
            good = Bits(args, folder).measure() and good
        if args.skip != "speed":
            good = measure_speed(args, folder) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
