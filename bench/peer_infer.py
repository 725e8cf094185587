"""One peer's inference time on a CPU: peer_infer.py PEER MODEL BATCH THREADS ONNX SIZE [wall|processor]; prints one JSON line.

PEER: torch_f32, torch_bf16, torch_compile_f32, torch_compile_bf16, onnxruntime, openvino_f32, openvino_bf16,
onnxruntime_int8 (its own dynamic quantisation, per channel), onnxruntime_vitrum (the int8 file of `vitrum export`),
openvino_int8 (NNCF, the transformer preset). All but PyTorch run the ONNX file that `vitrum export` wrote. The median of at least 5 runs and 4 seconds, after a warm-up.
"""

import json
import os
import sys
import time

import numpy as np


def timm_model(timm, model, size):
    """`size` None: the model's own. Convolutional models take any."""
    if size is None or size == timm.get_pretrained_cfg(model).input_size[-1] or model.startswith(("convnext", "resnet")):
        return timm.create_model(model, pretrained=False)
    return timm.create_model(model, pretrained=False, img_size=size)


def torch_runner(peer, model, batch, threads, size):
    import timm
    import torch

    torch.set_num_threads(threads)
    net = timm_model(timm, model, size).eval()
    x = torch.randn(batch, 3, size, size)
    if "compile" in peer:
        net = torch.compile(net, mode="max-autotune-no-cudagraphs")
    narrow = peer.endswith("bf16")

    def run():
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            return net(x)

    return run


def onnxruntime_runner(batch, threads, path, size):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = np.random.randn(batch, 3, size, size).astype(np.float32)
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})


def quantized_by_onnxruntime(path):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    out = path.replace(".onnx", ".ort8.onnx")
    if not os.path.exists(out):
        quantize_dynamic(path, out, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"])
    return out


def quantized_by_nncf(model, size):
    """Calibrated on noise, which is enough for times."""
    import nncf

    images = [np.random.randn(1, 3, size, size).astype(np.float32) for _ in range(16)]
    return nncf.quantize(model, nncf.Dataset(images), model_type=nncf.ModelType.TRANSFORMER,
                         preset=nncf.QuantizationPreset.MIXED)


def openvino_runner(peer, batch, threads, path, size):
    import openvino as ov

    core = ov.Core()
    if peer.endswith("int8"):
        cached = path.replace(".onnx", ".nncf.xml")
        if not os.path.exists(cached):
            ov.save_model(quantized_by_nncf(core.read_model(path), size), cached, compress_to_fp16=False)
        path = cached
    model = core.read_model(path)
    model.reshape([batch, 3, size, size])
    compiled = core.compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if peer.endswith(("bf16", "int8")) else "f32"})
    request = compiled.create_infer_request()
    x = np.random.randn(batch, 3, size, size).astype(np.float32)
    return lambda: request.infer([x])


def main():
    peer, model, batch, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    size = int(sys.argv[6])
    if peer.startswith("torch"):
        run = torch_runner(peer, model, batch, threads, size)
    elif peer.startswith("onnxruntime"):
        path = sys.argv[5]
        if peer == "onnxruntime_int8":
            path = quantized_by_onnxruntime(path)
        if peer == "onnxruntime_vitrum":
            path = path.replace(".onnx", ".int8.onnx")
        run = onnxruntime_runner(batch, threads, path, size)
    else:
        run = openvino_runner(peer, batch, threads, sys.argv[5], size)
    for _ in range(2):
        run()
    now = time.process_time if sys.argv[7:] == ["processor"] else time.perf_counter
    times, end = [], time.perf_counter() + 4
    while len(times) < 5 or time.perf_counter() < end:
        start = now()
        run()
        times.append(now() - start)
    print(json.dumps({"milliseconds": 1e3 * sorted(times)[len(times) // 2]}))


if __name__ == "__main__":
    main()
