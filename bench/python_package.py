"""Figures of the Python package, the command line beside them.

    bench/python_package.py --model DIR --photos DIR [--only import,call,threads,growth]

import: milliseconds of `import vitrum` beyond an empty Python's start, median of 21. call: microseconds of predict() beyond the
same calls of the C interface, on a model so small that this shows. threads: photos per second of eight threads that call
predict() and of `vitrum classify`, in turns, medians, and the CPU milliseconds that a photo costs each, which other work on the
machine changes less. growth: resident memory after 10^5 predictions.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import vitrum
from vitrum import _library

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python/tests"))
import tiny  # noqa: E402


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure_import(_):
    def start(code):
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    pairs = [(start("pass"), start("import vitrum")) for _ in range(21)]
    return {"import_ms": 1e3 * statistics.median(b - a for a, b in pairs)}


def tiny_model(folder):
    return vitrum.load(tiny.write_model(pathlib.Path(folder) / "tiny"), threads=1), tiny.png(tiny.pixels(8, 8), 8, 8)


def measure_call(_):
    """The C calls that predict() makes, with everything prepared, against predict()."""
    import ctypes

    from vitrum._inputs import fill

    with tempfile.TemporaryDirectory() as folder:
        model, photo = tiny_model(folder)
        lib, given = _library.lib(), _library.Input()
        kept = fill(given, photo)
        logits, index, probability = (ctypes.c_float * 7)(), (ctypes.c_int32 * 5)(), (ctypes.c_float * 5)()
        handle, size = model._handle, ctypes.sizeof(given)

        def bare():
            for _ in range(500):
                lib.vitrum_predict(handle, given, size, 1, logits, None, None)
                lib.vitrum_top(logits, 7, 5, index, probability)

        def full():
            for _ in range(500):
                model.predict(photo)

        bare(), full()
        pairs = [(seconds(bare), seconds(full)) for _ in range(31)]
        del kept
        return {"c_call_us": 2e3 * statistics.median(a for a, _ in pairs),
                "overhead_us": 2e3 * statistics.median(b - a for a, b in pairs)}


def measure_threads(args):
    photos = sorted(p for p in pathlib.Path(args.photos).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    command = [_library.binary_path(), "classify", "--model", args.model, "-q", "--json"]
    model = vitrum.load(args.model)
    work = [str(p) for p in photos] * args.rounds

    def threads():
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(model.predict, work))

    def batch():
        model.predict(work)

    def classify():  # as many photos, with what it takes to start taken off
        subprocess.run([*command, *work], check=True, stdout=subprocess.DEVNULL)

    def start():
        subprocess.run([*command, work[0]], check=True, stdout=subprocess.DEVNULL)

    def cost(call):
        """Seconds that pass, and seconds of CPUs."""
        used, passed = sum(os.times()[:4]), seconds(call)
        return passed, sum(os.times()[:4]) - used

    threads()
    once = statistics.median(cost(start) for _ in range(3))
    turns = []
    for _ in range(args.repeat):
        turn = [cost(threads), cost(batch), cost(classify)]
        turn[2] = [a - b for a, b in zip(turn[2], once)]
        turns.append(turn)
    found = {}
    for i, name in enumerate(("threads", "list", "classify")):
        found[f"{name}_per_s"] = len(work) / statistics.median(t[i][0] for t in turns)
        found[f"{name}_cpu_ms"] = 1e3 * statistics.median(t[i][1] for t in turns) / len(work)
    return {**found, "threads_to_classify": statistics.median(t[2][0] / t[0][0] for t in turns),
            "threads_to_classify_cpu": statistics.median(t[2][1] / t[0][1] for t in turns)}


def measure_growth(_):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with tempfile.TemporaryDirectory() as folder:
        model, photo = tiny_model(folder)
        marks = []
        for i in range(100_000):
            if i in (1_000, 50_000):
                marks.append(resident())
            model.predict(photo)
        return {"resident_mb": marks[0] / 1e6, "growth_kb_99000": (resident() - marks[0]) / 1e3,
                "growth_kb_50000": (resident() - marks[1]) / 1e3}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--photos", required=True)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="how often all photos are done in a turn")
    parser.add_argument("--only", default="import,call,threads,growth")
    args = parser.parse_args()
    for name in args.only.split(","):
        print(json.dumps({"what": name, **globals()[f"measure_{name}"](args)}), flush=True)


if __name__ == "__main__":
    main()
