"""Compares SigLIP 2 for images of any shape (NaFlex) with transformers and timm: random weights, photos of many shapes.

    tools/python.sh tools/check/check_naflex.py [--build build/release] [--device cpu]

Needs torch, transformers, timm, tokenizers, safetensors, numpy, Pillow, onnxruntime, and build/release/tests/
dump_gradients. A Siglip2Model in a small size: vectors of photos (`embed`) and texts, probabilities (`classify
--labels`), both towers as `convert` writes them; Siglip2ForImageClassification; timm's naflexvit at several sizes, in
and out, its gradients, and its ONNX file. Exit status 1 where one differs by more than 2e-5 of the largest value
(gradients: 1e-4 of the norm). Photos so tall that they are a single column of patches are left out: where PyTorch 2.15
makes a column of positions longer, it disagrees with what it makes of the same row.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from timm.models import save_for_hf
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

from check_tokenizers import make_gemma
from check_zero_shot import CONTEXT, LABELS, Check, perturb

PATCH, PATCHES = 8, 49
SHAPES = (60, 80), (80, 60), (33, 200), (200, 33), (64, 64), (7, 9), (123, 77), (77, 123), (60, 80)
TOWER = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, patch_size=PATCH,
             num_patches=PATCHES)


def photos_in(folder):
    draw = np.random.default_rng(5)
    (folder / "photos").mkdir(exist_ok=True)
    images = [Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in SHAPES]
    for i, image in enumerate(images):
        image.save(folder / "photos" / f"{i}.png")
    return images


def save(model, processor, folder):
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def check_pair(check):
    """Both towers, at several limits of patches."""
    folder = check.folder / "pair"
    folder.mkdir()
    tok = make_gemma()
    tok.save(str(folder / "tokenizer.json"))
    tok.enable_truncation(CONTEXT)
    tok.enable_padding(length=CONTEXT, pad_id=0, pad_token="<pad>")
    ids = torch.tensor([tok.encode(t).ids for t in LABELS])
    text = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, projection_size=64,
                max_position_embeddings=CONTEXT, vocab_size=tok.get_vocab_size(), bos_token_id=2, eos_token_id=1,
                pad_token_id=0)
    model = transformers.Siglip2Model(transformers.Siglip2Config(text_config=text, vision_config=TOWER))
    perturb(model)
    with torch.no_grad():
        model.logit_scale.fill_(1.3)
        model.logit_bias.fill_(-1.5)
    images = photos_in(folder)
    arguments = [a for t in LABELS for a in ("--text", t)]
    for patches in (PATCHES, 20, 256):
        processor = Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=patches)
        inputs = processor(images, return_tensors="pt")
        with torch.no_grad():
            out = model(input_ids=ids, **inputs)
            vectors = model.get_image_features(**inputs).pooler_output
            texts = model.get_text_features(input_ids=ids).pooler_output
        if patches == PATCHES:
            save(model, processor, folder)
            check.close("vectors of texts", check.embed(*arguments, "--model", folder), texts)
        limit = [] if patches == PATCHES else ["--max-patches", patches]
        check.close(f"vectors of photos, {patches} patches", check.embed(folder / "photos", "--model", folder, *limit),
                    vectors)
        names = folder / "names.txt"
        names.write_text("\n".join(LABELS) + "\n")
        lines = check.run("classify", folder / "photos", "--model", folder, "--labels", f"@{names}", "--top-k", 9, "--json",
                          *limit)
        ours = np.zeros((len(images), len(LABELS)))
        for row, line in zip(ours, lines.splitlines()):
            for p in json.loads(line)["predictions"]:
                row[p["index"]] = p["probability"]
        check.close(f"probabilities, {patches} patches", ours, out.logits_per_image.sigmoid(), 1)
    check.run("convert", folder, check.folder / "again", "--to", "hf")
    other, loading = transformers.AutoModel.from_pretrained(check.folder / "again", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
    processor = Siglip2ImageProcessorPil.from_pretrained(check.folder / "again")
    inputs = processor(images, return_tensors="pt")
    with torch.no_grad():
        wanted = model(input_ids=ids, **inputs).logits_per_image
        check.close("both towers, converted", other.eval()(input_ids=ids, **inputs).logits_per_image.numpy(), wanted)
    check.run("convert", folder, check.folder / "tower", "--to", "hf", "--image-only")
    tower = transformers.Siglip2VisionModel.from_pretrained(check.folder / "tower").eval()
    with torch.no_grad():
        vectors = model.get_image_features(**inputs).pooler_output
        check.close("the image tower, converted", tower(**inputs).pooler_output.numpy(), vectors)
    check.close("the image tower, read", check.embed(folder / "photos", "--model", check.folder / "tower"), vectors)
    check.run("convert", folder, check.folder / "timm", "--to", "timm")
    check.close("converted to timm's names", check.embed(folder / "photos", "--model", check.folder / "timm"), vectors)
    loaded = timm.create_model(f"local-dir:{check.folder / 'timm'}", pretrained=True).eval()
    patches, mask, shapes = inputs["pixel_values"], inputs["pixel_attention_mask"].bool(), inputs["spatial_shapes"]
    coordinates = torch.zeros(*mask.shape, 2, dtype=torch.long)
    for i, (rows, columns) in enumerate(shapes.tolist()):
        grid = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        coordinates[i, :rows * columns] = torch.stack(grid, -1).reshape(-1, 2)
    with torch.no_grad():
        theirs = loaded(patches, patch_coord=coordinates, patch_valid=mask)
    check.close("timm computes the same with them", theirs.numpy(), vectors)


def check_classifier(check):
    folder = check.folder / "classifier"
    model = transformers.Siglip2ForImageClassification(transformers.Siglip2Config(vision_config=TOWER, num_labels=5))
    perturb(model)
    processor = Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=PATCHES)
    folder.mkdir()
    images = photos_in(folder)
    save(model, processor, folder)
    with torch.no_grad():
        theirs = model(**processor(images, return_tensors="pt")).logits.softmax(-1)
    check.run("convert", folder, check.folder / "classifier_hf", "--to", "hf")
    check.run("convert", folder, check.folder / "classifier_timm", "--to", "timm")
    loaded = transformers.Siglip2ForImageClassification.from_pretrained(check.folder / "classifier_hf").eval()
    with torch.no_grad():
        again = loaded(**processor(images, return_tensors="pt")).logits.softmax(-1)
    check.close("classifier, loaded from convert --to hf", again.numpy(), theirs, 1)
    for at in (folder, check.folder / "classifier_hf", check.folder / "classifier_timm"):
        lines = check.run("classify", folder / "photos", "--model", at, "--top-k", 9, "--json")
        ours = np.zeros((len(images), 5))
        for row, line in zip(ours, lines.splitlines()):
            for p in json.loads(line)["predictions"]:
                row[p["index"]] = p["probability"]
        check.close(f"{at.name}: probabilities", ours, theirs, 1)


def check_timm(check):
    args = dict(patch_size=8, embed_dim=32, depth=3, num_heads=2, pos_embed_grid_size=(6, 6), num_classes=5)
    model = perturb(timm.create_model("naflexvit_base_patch16_siglip", **args))
    folder = check.folder / "naflexvit"
    save_for_hf(model, folder, safe_serialization=True, model_args=args)
    for height, width in ((48, 48), (64, 64), (96, 40), (16, 88)):
        x = torch.randn(2, 3, height, width)
        np.save(check.folder / "in.npy", x.numpy())
        check.run("forward", "--model", folder, "--input", check.folder / "in.npy", "--output", check.folder / "out.npy",
                  "--force", "--image-size", f"{height}x{width}")
        with torch.no_grad():
            check.close(f"timm's naflexvit at {height} x {width}", np.load(check.folder / "out.npy"), model(x))
    check.run("convert", folder, check.folder / "naflexvit_again", "--to", "timm")
    again = timm.create_model(f"local-dir:{check.folder / 'naflexvit_again'}", pretrained=True).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        check.close("timm's naflexvit, written by convert", again(x).numpy(), model(x))
    check.run("export", "--model", folder, "--output", check.folder / "naflex.onnx", "--image-size", 64)
    session = onnxruntime.InferenceSession(check.folder / "naflex.onnx")
    with torch.no_grad():
        check.close("onnxruntime", session.run(None, {session.get_inputs()[0].name: x.numpy()})[0], model(x))
    # Gradients of a cross-entropy, at the size of the directory.
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["input_size"] = [3, 64, 64]
    (folder / "config.json").write_text(json.dumps(config))
    labels = torch.tensor([0, 3])
    torch.nn.functional.cross_entropy(model(x), labels).backward()
    np.save(check.folder / "in.npy", x.numpy())
    np.save(check.folder / "labels.npy", labels.numpy().astype(np.float32))
    subprocess.run([check.vitrum.parent / "tests" / "dump_gradients", folder, check.folder / "in.npy",
                    check.folder / "labels.npy", check.folder / "out.safetensors"], check=True)
    found = load_file(check.folder / "out.safetensors")
    worst = 0
    for name, p in model.named_parameters():
        ours, theirs = found[in_our_names(name)], p.grad
        if name == "embeds.pos_embed":
            theirs = theirs.flatten(0, 2).T
        if name == "embeds.proj.weight":
            theirs = theirs.reshape(-1, 8, 8, 3).permute(0, 3, 1, 2)
        error = (ours.reshape(theirs.shape) - theirs).norm() / theirs.norm().clamp(min=1e-12)
        worst = max(worst, error.item())
    print(f"{'gradients of every parameter':58} {worst:.2g}")
    check.bad += not worst <= 1e-4


def in_our_names(name):
    swaps = {"embeds.pos_embed": "pos_grid", "embeds.proj.weight": "patch_embed.proj.weight",
             "embeds.proj.bias": "patch_embed.proj.bias"}
    return swaps.get(name, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default="build/release")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check = Check(args, pathlib.Path(folder))
        for part in (check_pair, check_classifier, check_timm):
            part(check)
    sys.exit(1 if check.bad else 0)


if __name__ == "__main__":
    main()
