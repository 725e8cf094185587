"""Inference with Vitrum and with its peers in turn on a CPU; prints medians and ratios.

    tools/python.sh bench/compare_infer.py [--vitrum build/release/vitrum] [--rounds 3] [--threads 2]
                                           [--model NAME ...] [--batch N ...] [--peer NAME ...] [--clock processor]
                                           [--precision f32|bf16|int8] [--image-size N]

bf16 is fair against peers that compute in it too: --precision bf16 --peer torch_bf16 torch_compile_bf16 openvino_bf16;
so is int8: --precision int8 --peer onnxruntime_int8 onnxruntime_vitrum openvino_int8 (needs nncf, and takes bf16 for
the rest of the model in OpenVINO, where the processor has it).

On a machine that others use, `--threads 1 --clock processor` compares processor time. Run with a Python that has torch, timm, onnxruntime and openvino. Everything takes its turn within every round, each in a
process of its own, so that a change in the machine's speed meets all alike.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ["torch_f32", "torch_compile_f32", "torch_bf16", "onnxruntime", "openvino_f32"]


def last_json(command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode or not done.stdout.strip():
        print(f"failed: {' '.join(map(str, command))}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def model_directory(model, size, at):
    """A directory in timm's layout with random weights, and the size of its images: `size`, or the model's own."""
    import timm
    from safetensors.torch import save_file

    from peer_infer import timm_model

    at.mkdir()
    net = timm_model(timm, model, size)
    size = size or net.pretrained_cfg["input_size"][-1]
    save_file(net.state_dict(), at / "model.safetensors")
    classes = net.num_classes
    config = {"architecture": model, "num_classes": classes, "pretrained_cfg": {
        "input_size": [3, size, size], "mean": [0.5] * 3, "std": [0.5] * 3, "num_classes": classes}}
    (at / "config.json").write_text(json.dumps(config))
    return size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vitrum", default=ROOT / "build/release/vitrum")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", nargs="+", default=["vit_tiny_patch16_224", "vit_base_patch16_224"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--peer", nargs="+", default=PEERS)
    parser.add_argument("--image-size", type=int, help="other than the model's own")
    parser.add_argument("--precision", choices=["f32", "bf16", "int8"], default="f32", help="Vitrum's")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for model in args.model:
            directory = pathlib.Path(temporary) / model
            onnx = f"{directory}.onnx"
            size = model_directory(model, args.image_size, directory)
            for precision, output in (("f32", onnx), ("int8", f"{directory}.int8.onnx")):
                subprocess.run([str(args.vitrum), "export", "--model", str(directory), "--output", output, "-q",
                                "--precision", precision], check=True)
            for batch in args.batch:
                compare(args, model, size, directory, onnx, batch)


def compare(args, model, size, directory, onnx, batch):
    times, shares = {}, []

    def run_vitrum(steps):
        return last_json([args.vitrum, "bench", "--model", directory, "--batch", batch, "--device", "cpu", "--threads",
                          args.threads, "--steps", steps, "--clock", args.clock, "--precision", args.precision, "--json"])

    # As long as the peers: a fifth of a second is at the mercy of whatever else happens in it.
    steps = max(5, math.ceil(4e3 / run_vitrum(3)["milliseconds"]))
    for _ in range(args.rounds):
        ours = run_vitrum(steps)
        times.setdefault(f"vitrum_{args.precision}", []).append(ours["milliseconds"])
        shares.append(ours["mfu"])
        for peer in args.peer:
            result = last_json([sys.executable, ROOT / "bench/peer_infer.py", peer, model, batch, args.threads, onnx,
                                size, args.clock])
            if result:
                times.setdefault(peer, []).append(result["milliseconds"])
    own = statistics.median(times[f"vitrum_{args.precision}"])
    print(f"{model}, batch {batch}: share of the matrix-product peak {statistics.median(shares):.2f}")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"  {name:20} {median:9.2f} ms (best {min(values):9.2f})   {median / own:5.2f}x Vitrum's", flush=True)


if __name__ == "__main__":
    main()
