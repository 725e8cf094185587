"""Compares classification of real photos with timm and Pillow: same top-1 for every photo, probabilities within 1e-3.

    tools/python.sh tools/check/check_photos.py --model DIR --images DIR [--vitrum build/release/vitrum] [--precision f32]
        [--image-size 160]

DIR of --images holds labels.csv (file,class) and the files it names; the model directory is in timm's layout. Also
prints top-1 and top-5 of `vitrum eval` in f32 and bf16 and of timm. Needs torch, timm and Pillow. Exit status 1 on a
difference.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys

import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

TOLERANCE = 1e-3


def timm_probabilities(folder, paths, image_size):
    sized = {} if image_size is None else dict(img_size=image_size)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True, **sized).eval()
    config = resolve_model_data_config(model)
    if image_size is not None:
        config["input_size"] = (3, *((image_size,) * 2 if isinstance(image_size, int) else image_size))
    transform = create_transform(**config, is_training=False)
    rows = []
    with torch.no_grad():
        for path in paths:
            image = transform(Image.open(path).convert("RGB"))
            rows.append(model(image[None]).softmax(-1)[0])
    return torch.stack(rows)


def sizes(args):
    return ["--image-size", args.image_size] if args.image_size else []


def ours(args, paths, classes):
    command = [args.vitrum, "classify", "-", "--model", args.model, "--top-k", str(classes), "--json",
               "--precision", args.precision, *sizes(args)]
    result = subprocess.run(command, input="\n".join(map(str, paths)), capture_output=True, text=True, check=True)
    rows = torch.zeros(len(paths), classes)
    for i, line in enumerate(result.stdout.splitlines()):
        record = json.loads(line)
        assert record["image"] == str(paths[i]), "the order of the output is not that of the input"
        for p in record["predictions"]:
            rows[i, p["index"]] = p["probability"]
    return rows


def evaluate(args, precision):
    command = [args.vitrum, "eval", "--model", args.model, "--data", f"csv:{args.images}/labels.csv", "--json", "-q",
               "--precision", precision, *sizes(args)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", required=True)
    parser.add_argument("--vitrum", default="build/release/vitrum")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--image-size", help="another than the model's, as N or HxW")
    args = parser.parse_args()
    folder = pathlib.Path(args.images)
    rows = list(csv.reader((folder / "labels.csv").open()))[1:]
    paths, labels = [folder / row[0] for row in rows], torch.tensor([int(row[1]) for row in rows])

    edges = [int(n) for n in args.image_size.split("x")] if args.image_size else []
    image_size = None if not edges else edges[0] if len(edges) == 1 else tuple(edges)
    expected = timm_probabilities(pathlib.Path(args.model).resolve(), paths, image_size)
    found = ours(args, paths, expected.shape[1])
    same = int((expected.argmax(-1) == found.argmax(-1)).sum())
    largest = float((expected - found).abs().max())
    top5 = (expected.topk(5).indices == labels[:, None]).any(-1).float().mean()
    print(f"{len(paths)} photos in {args.precision}: same top-1 for {same}, largest difference of a probability {largest:.2e}")
    print(f"timm     top-1 {(expected.argmax(-1) == labels).float().mean():.4f}  top-5 {top5:.4f}")
    for precision in ("f32", "bf16"):
        result = evaluate(args, precision)
        print(f"{precision:8} top-1 {result['top1']:.4f}  top-5 {result['top5']:.4f}  loss {result['loss']:.4f}")
    sys.exit(same != len(paths) or largest > TOLERANCE)


if __name__ == "__main__":
    main()
