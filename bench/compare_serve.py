#!/usr/bin/env python3
"""`vitrum serve` beside what people build today, on the same photos, model and cores, in turns:

    venv/bin/pip install fastapi 'uvicorn[standard]' onnxruntime openvino pillow
    venv/bin/python bench/compare_serve.py --model DIR --images DIR

First the photos a second of each with --connections that ask as soon as they are answered; beside them the rate of `vitrum
classify`. Then latencies at one rate for all, --load of what the slowest reached. The client is `vitrum bench --mode serve`.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent


def wait_for(port, process):
    for _ in range(600):
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended with {process.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1)
            return
        except urllib.error.HTTPError as e:
            if e.code == 404:  # a peer has no such page, but it answers
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"nothing answers on port {port}")


def load(a, port, rate):
    command = [a.vitrum, "bench", "--mode", "serve", "--url", f"http://127.0.0.1:{port}/v1/classify", "--rate", str(rate),
               "--connections", str(a.connections), "--duration", str(a.seconds), "--json", a.images]
    result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    if list(result["statuses"]) != ["200"] or result["unanswered"]:
        print(f"port {port}: {result['statuses']}, {result['unanswered']} unanswered", file=sys.stderr)
    return result


def classify_rate(a):
    """Photos a second, without what the process takes to start."""
    photos = sorted(str(p) for p in pathlib.Path(a.images).rglob("*.JPEG")) or [a.images]

    def seconds(times):
        start = time.monotonic()
        subprocess.run([a.vitrum, "classify", "-", "--model", a.model, "--json", "--precision", a.precision],
                       input="\n".join(photos * times).encode(), stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - start

    few, many = seconds(1), seconds(1 + a.repeat)
    return a.repeat * len(photos) / (many - few)


def check_answers(a, ports):
    """All of them mean the same: the same first label for every photo."""
    photos = sorted(pathlib.Path(a.images).rglob("*.JPEG"))[:20]
    for photo in photos:
        found = set()
        for port in ports:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/classify", data=photo.read_bytes(),
                                             headers={"Content-Type": "image/jpeg"})
            answer = json.load(urllib.request.urlopen(request))
            found.add(answer["results"][0]["predictions"][0]["index"])
        if len(found) > 1:
            print(f"{photo.name}: the servers do not agree: {found}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrum", default=str(HERE.parent / "build/release/vitrum"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", required=True)
    parser.add_argument("--engine", nargs="*", default=["onnxruntime", "openvino"])
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--max-batch", type=int, default=8, help="of the peers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--repeat", type=int, default=4, help="times that classify sees all photos")
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--port", type=int, default=8090)
    a = parser.parse_args()
    processes, servers = [], {}

    def start(name, command):
        port = a.port + len(servers)
        processes.append(subprocess.Popen([*command(port)]))
        wait_for(port, processes[-1])
        servers[name] = port

    try:
        with tempfile.TemporaryDirectory() as folder:
            onnx = f"{folder}/model.onnx"
            subprocess.run([a.vitrum, "export", "--model", a.model, "--output", onnx, "--quiet"], check=True)
            start("vitrum", lambda port: [a.vitrum, "serve", "--quiet", "--model", f"m={a.model}", "--listen",
                                          f"127.0.0.1:{port}", "--precision", a.precision, "--threads", str(a.threads)])
            for engine in a.engine:
                start(engine, lambda port: [sys.executable, HERE / "peer_serve.py", "--onnx", onnx, "--model", a.model,
                                            "--engine", engine, "--precision", a.precision, "--port", str(port),
                                            "--threads", str(a.threads), "--workers", str(a.threads),
                                            "--max-batch", str(a.max_batch)])
            check_answers(a, servers.values())
            rates = {name: [] for name in [*servers, "classify"]}
            for _ in range(a.rounds):
                for name, port in servers.items():
                    rates[name].append(load(a, port, "max")["requests_per_second"])
                if a.repeat > 0:
                    rates["classify"].append(classify_rate(a))
            medians = {name: statistics.median(values) for name, values in rates.items() if values}
            rate = a.load * min(medians[name] for name in servers)
            latencies = {name: [] for name in servers}
            for _ in range(a.rounds):
                for name, port in servers.items():
                    latencies[name].append(load(a, port, f"{rate:.2f}")["latency_ms"])
    finally:
        for process in processes:
            process.terminate()
    print(f"{'':14}{'photos/s':>10}   at {rate:.1f} a second: {'p50':>8}{'p90':>8}{'p99':>8} ms")
    for name, value in medians.items():
        row = f"{name:14}{value:10.1f}"
        if name in latencies:
            row += " " * 22 + "".join(f"{statistics.median(r[q] for r in latencies[name]):8.1f}" for q in ("p50", "p90", "p99"))
        print(row)
    print(json.dumps({"rates": rates, "latencies": latencies}))


if __name__ == "__main__":
    main()
