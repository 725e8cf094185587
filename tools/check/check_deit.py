"""Compares DeiT with timm and transformers, and `vitrum distill` with PyTorch: random weights and images.

    tools/python.sh tools/check/check_deit.py [--vitrum build/release/vitrum] [--model deit_tiny_distilled_patch16_224]

Needs torch, timm, transformers, onnxruntime, safetensors and numpy. Reads what they write, at the stored and at another image size; they
load what `vitrum convert` writes; ten steps of each loss give the losses that PyTorch gives. Exit status 1 otherwise.
"""

import argparse
import json
import pathlib
import struct
import sys
import tempfile

import numpy as np
import onnxruntime
import timm
import torch
import transformers
from safetensors.torch import load_file
from timm.models import save_for_hf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
import distill_golden
from check_dialects import Vitrum
from check_live import perturb

SIDE, IMAGES, CLASSES = 28, 24, 10


def distilled(name, **args):
    model = timm.create_model(name, **args).eval()
    perturb(model)
    return model


def check_timm(v, name, folder):
    model = distilled(name)
    side = model.patch_embed.img_size[0]
    image, other = torch.randn(2, 3, side, side), torch.randn(2, 3, side + 32, side + 32)
    save_for_hf(model, folder / "timm", safe_serialization=True)
    yield "timm", v.forward(folder / "timm", image), model(image)
    larger = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True, img_size=side + 32).eval()
    yield "timm, larger images", v.forward(folder / "timm", other, "--image-size", side + 32), larger(other)
    features = model.forward_head(model.forward_features(image), pre_logits=True)
    yield "timm features", v.forward(folder / "timm", image, "--num-classes", 0), features
    torch.save({"model": model.state_dict()}, folder / "deit.pth")
    yield "DeiT's .pth", v.forward(folder / "deit.pth", image, "--arch", name), model(image)
    v.convert(folder / "timm", folder / "hf", "hf")
    theirs = transformers.DeiTForImageClassificationWithTeacher.from_pretrained(folder / "hf").eval()
    yield "convert --to hf", theirs(image).logits, model(image)
    yield "and read again", v.forward(folder / "hf", image), model(image)
    v.convert(folder / "hf", folder / "back", "timm")
    again = timm.create_model(f"local-dir:{folder / 'back'}", pretrained=True).eval()
    yield "convert --to timm", again(image), model(image)
    v.run("export", "--model", folder / "timm", "--output", folder / "deit.onnx")
    session = onnxruntime.InferenceSession(folder / "deit.onnx", providers=["CPUExecutionProvider"])
    answer = session.run(None, {session.get_inputs()[0].name: image.numpy()})[0]
    yield "export, in ONNX Runtime", torch.from_numpy(answer), model(image)
    before, after = load_file(folder / "timm/model.safetensors"), load_file(folder / "back/model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before), "round trip"


def check_transformers(v, name, folder):
    size = timm.create_model(name)
    config = transformers.DeiTConfig(hidden_size=size.embed_dim, num_hidden_layers=3, num_attention_heads=3,
                                     intermediate_size=4 * size.embed_dim, num_labels=7)
    image, other = torch.randn(2, 3, 224, 224), torch.randn(2, 3, 256, 256)
    for kind in (transformers.DeiTForImageClassificationWithTeacher, transformers.DeiTForImageClassification):
        model = kind(config).eval()
        perturb(model)
        model.save_pretrained(folder / kind.__name__)
        yield kind.__name__, v.forward(folder / kind.__name__, image), model(image).logits
        yield "  larger images", v.forward(folder / kind.__name__, other, "--image-size", 256), \
            model(other, interpolate_pos_encoding=True).logits
        v.convert(folder / kind.__name__, folder / (kind.__name__ + "2"), "hf")
        again = kind.from_pretrained(folder / (kind.__name__ + "2")).eval()
        yield "  convert --to hf", again(image).logits, model(image).logits


def write_idx(folder, name, pixels, labels):
    count = len(labels)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, SIDE, SIDE) + pixels.tobytes())
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def run_distill(v, folder, out, kind, **keys):
    keys = dict(model=folder / "student", data=f"mnist:{folder}", teacher=folder / "teacher", epochs=10, batch_size=IMAGES,
                schedule="constant", precision="f32", mean="[0.5]", std="[0.5]", alpha=distill_golden.ALPHA,
                tau=distill_golden.TAU, label_smoothing=distill_golden.SMOOTHING, lr=distill_golden.LR,
                distillation="soft" if kind == "soft" else "hard", eval_every=10,
                loss="bce" if kind.startswith("bce") else "cross_entropy") | keys
    v.run("distill", "--out", folder / out, *(x for k, value in keys.items() for x in ("--set", f"{k}={value}")))
    rows = (folder / out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row)["train_loss"] for row in rows]


def check_losses(v, folder):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (IMAGES, 1, SIDE, SIDE), dtype=np.uint8)
    labels = np.arange(IMAGES, dtype=np.uint8) % CLASSES
    write_idx(folder, "train", pixels, labels)
    write_idx(folder, "t10k", pixels, labels)
    sizes = dict(img_size=SIDE, patch_size=7, in_chans=1, embed_dim=32, depth=2, num_heads=2, num_classes=CLASSES)
    teacher = distilled("vit_tiny_patch16_224", **sizes)
    teacher.pretrained_cfg |= dict(mean=[0.3], std=[0.4], input_size=(1, SIDE, SIDE))
    save_for_hf(teacher, folder / "teacher", safe_serialization=True, model_args=sizes)
    student = timm.create_model("deit_tiny_distilled_patch16_224", **sizes)
    student.pretrained_cfg |= dict(mean=[0.5], std=[0.5], input_size=(1, SIDE, SIDE), crop_pct=1.0)
    save_for_hf(student, folder / "student", safe_serialization=True, model_args=sizes)
    image = torch.from_numpy(pixels).float() / 255
    with torch.no_grad():
        answers = teacher((image - 0.3) / 0.4)
    for kind in distill_golden.KINDS:
        run_distill(v, folder, f"start_{kind}", kind, lr=0, epochs=1)
        student.load_state_dict(load_file(folder / f"start_{kind}/last/model.safetensors"))
        student.train()
        student.set_distilled_training(True)
        batch = ((image - 0.5) / 0.5, torch.from_numpy(labels).long(), answers)
        expected, _ = distill_golden.ten_steps(student, batch, kind)
        yield f"ten steps, {kind}", torch.tensor(run_distill(v, folder, kind, kind)), torch.tensor(expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--vitrum", default=root / "build" / "release" / "vitrum")
    parser.add_argument("--model", default="deit_tiny_distilled_patch16_224")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    torch.manual_seed(0)
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        v = Vitrum(args.vitrum, folder)
        with torch.no_grad():
            results = [*check_timm(v, args.model, folder), *check_transformers(v, args.model, folder)]
        for name, ours, theirs in [*results, *check_losses(v, folder)]:
            assert ours.shape == theirs.shape, f"{name}: shape {ours.shape}, expected {theirs.shape}"
            error = (ours - theirs).abs().max().item()
            worst = max(worst, error) if error == error else float("inf")
            print(f"{name:42} largest difference {error:.1e}")
    sys.exit(worst > args.tolerance)


if __name__ == "__main__":
    main()
