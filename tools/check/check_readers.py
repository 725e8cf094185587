#!/usr/bin/env python3
"""Reads real checkpoints, written here by torch, NumPy and transformers, and compares every tensor byte for byte.

    tools/check/check_readers.py [--dump build/release/tests/dump_tensors] [--golden tests/golden/readers]

--golden also writes the small files of tests/weights/readers_test.cpp. Needs torch, NumPy and safetensors; the sharded part
also needs transformers.
"""
import argparse
import collections
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file

WIDENED = {torch.int16: torch.int32, torch.int8: torch.int32, torch.bool: torch.uint8}


def small_state():
    """One tensor of each kind that checkpoints hold, a few hundred bytes in all."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(4, 6, generator=generator)
    shared = torch.randn(10, generator=generator)
    return collections.OrderedDict([
        ("f32", base),
        ("f16", base.half()),
        ("bf16", base.bfloat16()),
        ("f64", base.double()),
        ("i64", torch.tensor(1234567890123)),
        ("i32", torch.arange(3, dtype=torch.int32)),
        ("i16", torch.tensor([-2, 300], dtype=torch.int16)),
        ("i8", torch.tensor([-1, 7], dtype=torch.int8)),
        ("u8", torch.tensor([0, 255], dtype=torch.uint8)),
        ("bool", torch.tensor([True, False])),
        ("transposed", base.t()),
        ("permuted", torch.randn(2, 3, 4, generator=generator).permute(2, 0, 1)),
        ("half.transposed", base.half().t()),
        ("channels_last", torch.randn(2, 3, 2, 2, generator=generator).to(memory_format=torch.channels_last)),
        ("shared.head", shared[:4]),
        ("shared.tail", shared[4:]),
        ("shared.step", shared[1::3]),
        ("parameter", torch.nn.Parameter(base.clone())),
        ("scalar", torch.tensor(0.5)),
        ("empty", torch.empty(0, 3)),
        ("position_ids", torch.arange(5).expand((1, -1))),
    ])


def as_read(tensor):
    tensor = tensor.detach()
    return tensor.to(WIDENED.get(tensor.dtype, tensor.dtype)).contiguous()


def torch_files(folder):
    """(name, object to save, expected tensors, options of torch.save)"""
    state = small_state()
    scheduler = {"milestones": collections.Counter([3]), "metric": np.float64(0.5), "curve": np.arange(3),
                 "device": torch.device("cpu")}
    args = argparse.Namespace(lr=1e-3, output_dir=pathlib.PosixPath("x"), dtype=torch.float32,
                              size=torch.Size([2, 3]))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    yield "plain.pth", state, state, {}
    yield "dict.pth", dict(state), state, {}
    for protocol in (3, 4, 5):
        yield f"protocol{protocol}.pth", state, state, {"pickle_protocol": protocol}
    yield "model.pth", {"epoch": 3, "model": state, "args": args, "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler, "seed": 2**80}, state, {}
    yield "state_dict.pt", {"state_dict": state, "state_dict_ema": {"w": torch.ones(1)}}, state, {}
    yield "model_state_dict.bin", {"model_state_dict": state}, state, {}
    yield "teacher.pth", {"epoch": 1, "teacher": state, "student": {"w": torch.ones(1)}}, state, {}
    yield "nested.pth", {"state_dict": {"model": state}}, state, {}
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4))
    yield "module.pth", module.state_dict(), module.state_dict(), {}  # OrderedDict with _metadata


def numpy_arrays():
    rng = np.random.default_rng(0)
    base = rng.standard_normal((4, 6)).astype("f4")
    return {
        "Transformer/encoderblock_0/LayerNorm_0/bias": base[0], "f16": base.astype("f2"), "f64": base.astype("f8"),
        "i32": np.arange(3, dtype="i4"), "i64": np.array(5), "u8": np.arange(3, dtype="u1"),
        "bool": np.array([True, False]), "fortran": np.asfortranarray(base), "scalar": np.array(0.5, "f4"),
        "fortran3": np.asfortranarray(rng.standard_normal((2, 3, 4)).astype("f2")), "empty": np.empty((0, 3), "f4"),
        "bf16": torch.tensor([1.5, -2.0]).bfloat16().view(torch.int16).numpy().view("V2"),
    }


def numpy_expected(array):
    if array.dtype.kind == "V":
        return torch.from_numpy(array.view("i2").copy()).view(torch.bfloat16)
    return as_read(torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)))


class Checker:
    def __init__(self, dump, folder):
        self.dump, self.folder, self.tensors, self.files = dump, folder, 0, 0

    def read(self, path):
        out = self.folder / "out.safetensors"
        return subprocess.run([self.dump, path, out], capture_output=True, text=True), out

    def same(self, path, expected):
        done, out = self.read(path)
        if done.returncode != 0:
            sys.exit(f"{path}: exit {done.returncode}: {done.stderr}")
        got = load_file(out)
        if set(got) != set(expected):
            sys.exit(f"{path}: {sorted(set(got) ^ set(expected))} on one side only")
        for name, tensor in expected.items():
            wanted = as_read(tensor)
            if got[name].dtype != wanted.dtype or got[name].shape != wanted.shape:
                sys.exit(f"{path}: {name} is {got[name].dtype} {got[name].shape}, not {wanted.dtype} {wanted.shape}")
            if got[name].reshape(-1).view(torch.uint8).tolist() != wanted.reshape(-1).view(torch.uint8).tolist():
                sys.exit(f"{path}: {name} differs")
        self.tensors += len(expected)
        self.files += 1
        print(f"same      {path.name}: {len(expected)} tensors")

    def refused(self, path, part):
        done, _ = self.read(path)
        if done.returncode != 3 or part not in done.stderr or done.stderr.count("\n") != 1:
            sys.exit(f"{path}: exit {done.returncode}, expected 3 with '{part}': {done.stderr}")
        self.files += 1
        print(f"refused   {done.stderr.strip().replace(str(self.folder) + '/', '')}")


def check_torch(check, golden):
    folder = check.folder
    for name, content, expected, options in torch_files(folder):
        torch.save(content, folder / name, **options)
        check.same(folder / name, expected)
    for name in ("plain.pth", "model.pth") if golden else ():
        (golden / name).write_bytes((folder / name).read_bytes())
    state = small_state()
    torch.save(state, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    check.refused(folder / "legacy.pth", "save it again with torch.save")
    torch.save(torch.nn.Linear(2, 2), folder / "whole.pth")
    check.refused(folder / "whole.pth", "torch.nn.modules.linear.Linear")
    torch.save({"w": torch.ones(1).expand(1000)}, folder / "expanded.pth")
    check.refused(folder / "expanded.pth", "repeats the elements")
    torch.save({"epoch": 3}, folder / "empty.pth")
    check.refused(folder / "empty.pth", "no dictionary of tensors")
    torch.jit.script(torch.nn.Linear(2, 2)).save(folder / "script.pt")
    check.refused(folder / "script.pt", "TorchScript")


def check_numpy(check, golden):
    folder, arrays = check.folder, numpy_arrays()
    expected = {name: numpy_expected(array) for name, array in arrays.items()}
    for name, save in ("stored.npz", np.savez), ("deflated.npz", np.savez_compressed):
        save(folder / name, **arrays)
        check.same(folder / name, expected)
        if golden:
            (golden / name).write_bytes((folder / name).read_bytes())
    big = {"kernel": np.random.default_rng(1).integers(0, 4, (3000, 1000)).astype("f4")}
    np.savez_compressed(folder / "big.npz", **big)
    check.same(folder / "big.npz", {"kernel": torch.from_numpy(big["kernel"])})
    np.savez(folder / "object.npz", x=np.array([{}], dtype=object))
    check.refused(folder / "object.npz", "Python objects")
    np.savez(folder / "big-endian.npz", x=np.ones(3, ">f4"))
    check.refused(folder / "big-endian.npz", "little-endian")


def check_sharded(check):
    try:
        import transformers
    except ImportError:
        return print("skipped   sharded: transformers is not installed")
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
                                    image_size=32, patch_size=8)
    model = transformers.ViTForImageClassification(config)
    folder = check.folder / "sharded"
    model.save_pretrained(folder, max_shard_size="40KB")
    written = {}  # not model.state_dict(): transformers renames on the way to disk
    for shard in folder.glob("*.safetensors"):
        written.update(load_file(shard))
    if len(written) != len(model.state_dict()):
        sys.exit("the shards do not hold the model")
    check.same(folder / "model.safetensors.index.json", written)
    print(f"          in {len(list(folder.glob('*.safetensors')))} files")
    next(folder.glob("*-00002-*.safetensors")).unlink()
    check.refused(folder / "model.safetensors.index.json", "No such file")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", default="build/release/tests/dump_tensors", type=pathlib.Path)
    parser.add_argument("--golden", type=pathlib.Path)
    options = parser.parse_args()
    if options.golden:
        options.golden.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        check = Checker(options.dump.resolve(), pathlib.Path(folder))
        check_torch(check, options.golden)
        check_numpy(check, options.golden)
        check_sharded(check)
        print(f"check_readers: {check.files} files, {check.tensors} tensors, all as expected")


if __name__ == "__main__":
    main()
