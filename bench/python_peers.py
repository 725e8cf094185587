"""Labels of a folder of photos by vitrum's package and by timm with PyTorch, each in a process of its own.

    bench/python_peers.py --model DIR --photos DIR --vitrum-python PY --timm-python PY [--threads 2] [--repeat 3] [--count 100]

Time to the first label is from the start of the interpreter, imports and loading included, and beside it the CPU seconds up to
there; peak memory is the process's largest resident set; photos per second are of the whole list behind the first label,
decoding and preprocessing included, and CPU milliseconds those of all threads and workers for a photo. On a machine that
others use, two threads of PyTorch wait for each other: only CPU time with --threads 1 is comparable there. Each run is printed on
standard error when it ends, medians at the end.
timm: the model's own transform, batches of 16 or one by one, a DataLoader of as many workers as threads, or none, whichever is
fastest here; vitrum: predict(list).
"""
import argparse
import json
import statistics
import subprocess
import sys

VITRUM = """
import sys, time, json, resource
start = time.perf_counter()
import vitrum
folder, threads, photos = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
model = vitrum.load(folder, threads=threads, device="cpu")
first = model.predict(photos[0], 1).label
first_s, first_cpu_s = time.perf_counter() - start, time.process_time()
start = time.perf_counter()
used = time.process_time()
found = [p[0].index for p in model.predict(photos, 1)]
rate, cpu = len(photos) / (time.perf_counter() - start), 1e3 * (time.process_time() - used) / len(photos)
print(json.dumps({"first_s": first_s, "first_cpu_s": first_cpu_s, "per_s": rate, "cpu_ms": cpu, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "found": found}))
"""
TIMM = """
import os, sys, time, json, resource
start = time.perf_counter()
import torch, timm
from PIL import Image
folder, threads, mode, photos = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
torch.set_num_threads(threads)
model = timm.create_model("local-dir:" + folder, pretrained=True).eval()
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
with torch.inference_mode():
    first = model(transform(Image.open(photos[0]).convert("RGB"))[None]).softmax(1).topk(1)
first_s, first_cpu_s = time.perf_counter() - start, time.process_time()

class Photos(torch.utils.data.Dataset):
    def __len__(self): return len(photos)
    def __getitem__(self, i): return transform(Image.open(photos[i]).convert("RGB"))

batch, workers = (1, 0) if mode == "single" else (16, 0) if mode == "batch" else (16, threads)
start, found, used = time.perf_counter(), [], sum(os.times()[:4])
with torch.inference_mode():
    for images in torch.utils.data.DataLoader(Photos(), batch_size=batch, num_workers=workers):
        found += model(images).argmax(1).tolist()
rate, cpu = len(photos) / (time.perf_counter() - start), 1e3 * (sum(os.times()[:4]) - used) / len(photos)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + (resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if workers else 0)
print(json.dumps({"first_s": first_s, "first_cpu_s": first_cpu_s, "per_s": rate, "cpu_ms": cpu, "peak_mb": peak / 1e3, "found": found}))
"""


KEYS = ("first_s", "first_cpu_s", "per_s", "cpu_ms", "peak_mb")


def run(python, code, *arguments):
    done = subprocess.run([python, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    import pathlib

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--photos", required=True)
    parser.add_argument("--vitrum-python", required=True)
    parser.add_argument("--timm-python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--count", type=int, help="only the first photos")
    args = parser.parse_args()
    photos = sorted(p for p in pathlib.Path(args.photos).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))[:args.count]
    runs = {name: [] for name in ("vitrum", "single", "batch", "workers")}
    for _ in range(args.repeat):
        for name, all_runs in runs.items():
            all_runs.append(run(args.vitrum_python, VITRUM, args.model, args.threads, *photos) if name == "vitrum" else
                            run(args.timm_python, TIMM, args.model, args.threads, name, *photos))
            print(name, {k: round(v, 3) for k, v in all_runs[-1].items() if k != "found"}, file=sys.stderr, flush=True)
    for name, all_runs in runs.items():
        agree = sum(a == b for a, b in zip(all_runs[0]["found"], runs["vitrum"][0]["found"]))
        print(json.dumps({"peer": name, **{k: statistics.median(r[k] for r in all_runs) for k in KEYS},
                          "agree": f"{agree} of {len(photos)}"}))


if __name__ == "__main__":
    main()
