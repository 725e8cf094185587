#!/usr/bin/env python3
"""What people build today: FastAPI with a dynamic batcher in front of ONNX Runtime or OpenVINO. For comparisons with `vitrum
serve` (bench/compare_serve.py); it runs the file that `vitrum export` writes.

    uvicorn runs on uvloop and httptools. Photos are decoded and resized by Pillow on a pool of threads (Pillow gives the
    interpreter's lock back meanwhile). The batcher takes what is ready, up to --max-batch, and runs it on a thread of its own
    (both libraries give the lock back, too); --delay-ms makes it wait for more.
"""
import argparse
import asyncio
import contextlib
import io
import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from PIL import Image


class OnnxRuntime:
    def __init__(self, path, threads):
        import onnxruntime as ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name

    def __call__(self, batch):
        return self.session.run(None, {self.input: batch})[0]


class OpenVino:
    def __init__(self, path, threads, precision):
        import openvino as ov
        core = ov.Core()
        model = core.read_model(path)
        self.compiled = core.compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision})
        self.request = self.compiled.create_infer_request()

    def __call__(self, batch):
        self.request.infer([batch])
        return self.request.get_output_tensor(0).data.copy()


class Batcher:
    def __init__(self, model, most, delay):
        self.model, self.most, self.delay = model, most, delay
        self.thread = ThreadPoolExecutor(1)
        self.queue = None

    async def __call__(self, pixels):
        answer = asyncio.get_running_loop().create_future()
        await self.queue.put((pixels, answer))
        return await answer

    async def run(self):
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.queue.get()]
            if self.delay > 0:
                end = loop.time() + self.delay
                while len(batch) < self.most and (left := end - loop.time()) > 0:
                    try:
                        batch.append(await asyncio.wait_for(self.queue.get(), left))
                    except asyncio.TimeoutError:
                        break
            while len(batch) < self.most and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            stacked = np.stack([pixels for pixels, _ in batch])
            logits = await loop.run_in_executor(self.thread, self.model, stacked)
            for (_, answer), row in zip(batch, logits):
                if not answer.cancelled():
                    answer.set_result(row)


def preprocess(data, config):
    size = config["input_size"][-1]
    edge = int(size / config["crop_pct"])
    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = image.size
    scale = edge / min(width, height)
    resized = (edge if width <= height else int(width * scale), edge if height <= width else int(height * scale))
    image = image.resize(resized, Image.BICUBIC)
    left, top = round((resized[0] - size) / 2), round((resized[1] - size) / 2)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), dtype=np.float32)
    mean, std = np.float32(config["mean"]), np.float32(config["std"])
    return np.ascontiguousarray(((pixels / 255 - mean) / std).transpose(2, 0, 1))


def top(logits, labels, count=5):
    best = np.argpartition(logits, -count)[-count:]
    best = best[np.argsort(-logits[best])]
    exp = np.exp(logits - logits.max())
    probability = exp / exp.sum()
    return [{"label": labels[i] if labels else str(i), "index": int(i), "probability": float(probability[i])} for i in best]


def make_app(batcher, workers, config, labels):
    pool = ThreadPoolExecutor(workers)

    @contextlib.asynccontextmanager
    async def lifespan(_):
        batcher.queue = asyncio.Queue()
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/classify")
    async def classify(request: Request):
        data = await request.body()
        pixels = await asyncio.get_running_loop().run_in_executor(pool, preprocess, data, config)
        logits = await batcher(pixels)
        body = json.dumps({"results": [{"predictions": top(logits, labels)}]})
        return Response(body, media_type="application/json")

    return app


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--onnx", required=True)
    parser.add_argument("--model", required=True, help="the directory that was exported, for its preprocessing")
    parser.add_argument("--engine", choices=["onnxruntime", "openvino"], required=True)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="of OpenVINO")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--threads", type=int, default=2, help="of the model")
    parser.add_argument("--workers", type=int, default=2, help="threads that decode")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--delay-ms", type=float, default=0)
    a = parser.parse_args()
    stored = json.loads((pathlib.Path(a.model) / "config.json").read_text())
    given = stored.get("pretrained_cfg", stored)
    config = {"input_size": given.get("input_size", [3, 224, 224]), "crop_pct": given.get("crop_pct", 0.9),
              "mean": given.get("mean", [0.5] * 3), "std": given.get("std", [0.5] * 3)}
    model = OnnxRuntime(a.onnx, a.threads) if a.engine == "onnxruntime" else OpenVino(a.onnx, a.threads, a.precision)
    for batch in range(1, a.max_batch + 1):  # no first time while it is measured
        model(np.zeros([batch] + config["input_size"], dtype=np.float32))
    app = make_app(Batcher(model, a.max_batch, 1e-3 * a.delay_ms), a.workers, config, given.get("label_names"))
    uvicorn.run(app, host="127.0.0.1", port=a.port, log_level="warning", access_log=False, loop="uvloop", http="httptools")


if __name__ == "__main__":
    main()
