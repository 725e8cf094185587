"""Compares models of images and texts with transformers, OpenCLIP and timm: random weights, vectors and probabilities.

    tools/python.sh tools/check/check_zero_shot.py [--build build/release] [--device cpu]

Needs torch, transformers, timm, open_clip_torch, tokenizers, sentencepiece, safetensors, numpy and Pillow. CLIPModel,
SiglipModel and OpenCLIP's CLIP in small sizes: vectors of images (`embed`) and texts (`embed --text`), probabilities
(`classify --labels`), the image towers in timm's and transformers' classes, read and written, and both towers as
`convert` writes them for transformers and OpenCLIP. Exit status 1 where one differs by more than 2e-5 of its
norm (probabilities: 2e-5).
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from check_tokenizers import canonical, end_last, make_clip, make_spiece

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CONTEXT, LABELS = 16, ["a photo of the cat", "a dog", "naïve café", "the mat", "sitting on the mat, don't we"]
LIMIT = 2e-5


def perturb(model):
    """Biases and norms away from 0 and 1, where a swapped or forgotten one would not show."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() > 1:
                p.add_(0.05 * torch.randn_like(p))
    return model.eval()


class Check:
    def __init__(self, args, folder):
        self.vitrum, self.device, self.folder, self.bad = args.build / "vitrum", args.device, folder, 0

    def run(self, *arguments):
        command = [self.vitrum, *map(str, arguments), "--device", self.device, "--precision", "f32", "-q"]
        done = subprocess.run(command, capture_output=True, text=True, env={"VITRUM_CACHE": str(self.folder / "cache")})
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
        return done.stdout

    def close(self, name, ours, theirs, norm=None):
        theirs = theirs.detach().numpy() if torch.is_tensor(theirs) else np.asarray(theirs)
        error = np.abs(ours - theirs).max() / (norm or np.abs(theirs).max())
        print(f"{name:58} {error:.2g}")
        self.bad += not error <= LIMIT

    def embed(self, *arguments):
        self.run("embed", *arguments, "--output", self.folder / "out.npy", "--force")
        return np.load(self.folder / "out.npy")

    def forward(self, model, pixels):
        np.save(self.folder / "in.npy", pixels.numpy())
        self.run("forward", "--model", model, "--input", self.folder / "in.npy", "--output", self.folder / "out.npy", "--force")
        return np.load(self.folder / "out.npy")


def pictures(folder, size):
    draw = np.random.default_rng(5)
    (folder / "photos").mkdir(exist_ok=True)
    images = []
    for i in range(3):
        images.append(Image.fromarray(draw.integers(0, 256, (size, size, 3), dtype=np.uint8)))
        images[-1].save(folder / "photos" / f"{i}.png")
    return images


def pixels_of(images, mean, std):
    x = np.stack([np.asarray(i, np.float32) for i in images]).transpose(0, 3, 1, 2) / 255
    return torch.tensor((x - np.float32(mean).reshape(3, 1, 1)) / np.float32(std).reshape(3, 1, 1))


def make_pair(kind, folder):
    """A directory as transformers leaves it, the model, token ids of LABELS, and mean and std of pixels."""
    text = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                max_position_embeddings=CONTEXT)
    vision = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, patch_size=8)
    if kind == "clip":
        tok = make_clip()
        tok.save(str(folder / "tokenizer.json"))
        tok.enable_truncation(CONTEXT)
        end = tok.token_to_id("<|endoftext|>")
        tok.enable_padding(length=CONTEXT, pad_id=end, pad_token="<|endoftext|>")
        ids = [tok.encode(t).ids for t in LABELS]
        text |= dict(vocab_size=tok.get_vocab_size(), eos_token_id=end, bos_token_id=0, pad_token_id=end, projection_dim=40)
        model = transformers.CLIPModel(transformers.CLIPConfig(
            text_config=text, vision_config=vision | dict(image_size=32, projection_dim=40), projection_dim=40))
        mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    else:
        sp = make_spiece(folder)
        ids = [(sp.encode(canonical(t))[:CONTEXT - 1] + [1] * CONTEXT)[:CONTEXT] for t in LABELS]
        text |= dict(vocab_size=sp.get_piece_size() + 5, projection_size=64, bos_token_id=1, eos_token_id=1, pad_token_id=1)
        model = transformers.SiglipModel(transformers.SiglipConfig(
            text_config=text, vision_config=vision | dict(image_size=34)))  # 4 x 4 patches, two pixels over
        with torch.no_grad():
            model.logit_scale.fill_(1.3)
            model.logit_bias.fill_(-1.5)
        mean = std = [0.5, 0.5, 0.5]
    perturb(model).save_pretrained(folder)
    return model, torch.tensor(ids), mean, std


def compare_pair(check, name, folder, ids, pixels, logits):
    """transformers' model of both towers, as `convert` wrote it: every tensor read, the same logits."""
    model, loading = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
    with torch.no_grad():
        theirs = model.eval()(input_ids=ids, pixel_values=pixels).logits_per_image
    check.close(name, theirs.numpy(), logits)


def compare_open_clip(check, name, folder, ids, pixels, logits):
    """OpenCLIP's model of a directory that `convert` wrote, by its own factory: every tensor read, the same logits."""
    import open_clip
    model = open_clip.create_model(f"local-dir:{folder}").eval()
    state = load_file(folder / "open_clip_model.safetensors")
    assert set(state) == set(model.state_dict()), set(state) ^ set(model.state_dict())
    assert all((state[k] == v).all() for k, v in model.state_dict().items())
    with torch.no_grad():
        images, texts = (torch.nn.functional.normalize(x, dim=-1)
                         for x in (model.encode_image(pixels), model.encode_text(ids)))
        theirs = model.logit_scale.exp() * images @ texts.T
        if model.logit_bias is not None:
            theirs = theirs + model.logit_bias
    check.close(name, theirs.numpy(), logits)


def check_pair(check, kind):
    folder = check.folder / kind
    folder.mkdir()
    model, ids, mean, std = make_pair(kind, folder)
    size = model.config.vision_config.image_size
    images = pictures(folder, size)
    pixels = pixels_of(images, mean, std)
    with torch.no_grad():
        out = model(input_ids=ids, pixel_values=pixels)
        vectors = model.get_image_features(pixel_values=pixels)
        texts = model.get_text_features(input_ids=ids)
    as_tensor = lambda x: x if torch.is_tensor(x) else x.pooler_output
    check.close(f"{kind}: vectors of images", check.embed(folder / "photos", "--model", folder), as_tensor(vectors))
    arguments = [a for t in LABELS for a in ("--text", t)]
    check.close(f"{kind}: vectors of texts", check.embed(*arguments, "--model", folder), as_tensor(texts))
    names = folder / "names.txt"
    names.write_text("\n".join(LABELS) + "\n")
    theirs = out.logits_per_image.softmax(-1) if kind == "clip" else out.logits_per_image.sigmoid()
    for attempt in ("computed", "cached"):
        lines = check.run("classify", folder / "photos", "--model", folder, "--labels", f"@{names}", "--top-k", 9, "--json")
        ours = np.zeros((3, len(LABELS)))
        for row, line in zip(ours, lines.splitlines()):
            for p in json.loads(line)["predictions"]:
                row[p["index"]] = p["probability"]
        check.close(f"{kind}: probabilities, {attempt}", ours, theirs, 1)
    check.run("convert", folder, check.folder / f"{kind}_pair", "--to", "hf")
    compare_pair(check, f"{kind}: converted, both towers", check.folder / f"{kind}_pair", ids, pixels, out.logits_per_image)
    assert (check.folder / f"{kind}_pair" / ("tokenizer.json" if kind == "clip" else "spiece.model")).exists()
    tower_class = transformers.CLIPVisionModelWithProjection if kind == "clip" else transformers.SiglipVisionModel
    check.run("convert", folder, check.folder / f"{kind}_back", "--to", "hf", "--image-only")
    tower = tower_class.from_pretrained(check.folder / f"{kind}_back").eval()
    back = tower(pixel_values=pixels)
    check.close(f"{kind}: transformers reads what convert writes", (back.image_embeds if kind == "clip" else
                back.pooler_output).detach().numpy(), as_tensor(vectors))
    check.run("convert", folder, check.folder / f"{kind}_timm", "--to", "timm")
    check.close(f"{kind}: converted to timm's names", check.forward(check.folder / f"{kind}_timm", pixels), as_tensor(vectors))
    config = json.loads((check.folder / f"{kind}_timm" / "config.json").read_text())
    other = timm.create_model(config["architecture"], **config["model_args"]).eval()
    other.load_state_dict(load_file(check.folder / f"{kind}_timm" / "model.safetensors"))
    check.close(f"{kind}: timm computes the same with them", other(pixels).detach().numpy(), as_tensor(vectors))


def check_open_clip(check, timm_tower):
    """A directory as OpenCLIP leaves it: CLIP's own towers, or a SigLIP whose image tower is timm's."""
    from open_clip.model import CLIP, CustomTextCLIP
    folder = check.folder / f"open_clip_{'siglip' if timm_tower else 'clip'}"
    folder.mkdir()
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    preprocess = dict(mean=mean, std=std, interpolation="bicubic", resize_mode="shortest")
    text = dict(context_length=CONTEXT, width=64, heads=4, layers=3)
    if timm_tower:
        sp = make_spiece(folder)
        size, mean, std = 224, [0.5] * 3, [0.5] * 3
        preprocess = dict(mean=mean, std=std, interpolation="bicubic", resize_mode="squash")
        ids = [(sp.encode(canonical(t))[:CONTEXT - 1] + [1] * CONTEXT)[:CONTEXT] for t in LABELS]
        config = dict(embed_dim=768, init_logit_bias=-10, custom_text=True,
                      vision_cfg=dict(image_size=size, timm_model_name="vit_base_patch16_siglip_224", timm_pool="map",
                                      timm_proj="none"),
                      text_cfg=dict(text, vocab_size=sp.get_piece_size(), no_causal_mask=True, proj_bias=True,
                                    pool_type="last", norm_kwargs=dict(eps=1e-6),
                                    tokenizer_kwargs=dict(clean="canonicalize")))
        model = CustomTextCLIP(**{k: v for k, v in config.items() if k != "custom_text"})
    else:
        tok = end_last(make_clip())
        tok.save(str(folder / "tokenizer.json"))
        tok.enable_truncation(CONTEXT)
        tok.enable_padding(length=CONTEXT, pad_id=0)  # as its own tokenizer does
        size, ids = 32, [tok.encode(t).ids for t in LABELS]
        config = dict(embed_dim=40, quick_gelu=True,
                      vision_cfg=dict(image_size=size, layers=3, width=64, head_width=16, patch_size=8),
                      text_cfg=dict(text, vocab_size=tok.get_vocab_size()))
        model = CLIP(**config)
    perturb(model)
    (folder / "open_clip_config.json").write_text(json.dumps(dict(model_cfg=config, preprocess_cfg=preprocess)))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    pixels, name = pixels_of(pictures(folder, size), mean, std), folder.name
    with torch.no_grad():
        images, texts = model.encode_image(pixels), model.encode_text(torch.tensor(ids))
        unit = torch.nn.functional.normalize
        logits = model.logit_scale.exp() * unit(images, dim=-1) @ unit(texts, dim=-1).T
        logits = logits + model.logit_bias if timm_tower else logits
        scores = logits.sigmoid() if timm_tower else logits.softmax(-1)
    check.close(f"{name}: vectors of images", check.embed(folder / "photos", "--model", folder), images)
    arguments = [a for t in LABELS for a in ("--text", t)]
    check.close(f"{name}: vectors of texts", check.embed(*arguments, "--model", folder), texts)
    (folder / "names.txt").write_text("\n".join(LABELS) + "\n")
    lines = check.run("classify", folder / "photos", "--model", folder, "--labels", f"@{folder / 'names.txt'}", "--top-k",
                      9, "--json")
    ours = np.zeros((3, len(LABELS)))
    for row, line in zip(ours, lines.splitlines()):
        for p in json.loads(line)["predictions"]:
            row[p["index"]] = p["probability"]
    check.close(f"{name}: probabilities", ours, scores, 1)
    expected = dict(model.state_dict())
    for arguments in ([], ["--image-only"]):
        check.run("convert", folder, check.folder / f"{name}.safetensors", "--to", "original", *arguments)
        state = load_file(check.folder / f"{name}.safetensors")
        if arguments:
            expected = {k: v for k, v in expected.items() if k.startswith("visual.")}
        assert set(state) == set(expected), set(state) ^ set(expected)
        assert all((state[k] == expected[k]).all() for k in state)
    # To transformers, and from there to OpenCLIP again, which must not need what it said itself.
    ids = torch.tensor(ids)
    check.run("convert", folder, check.folder / f"{name}_pair", "--to", "hf")
    compare_pair(check, f"{name}: both towers in transformers", check.folder / f"{name}_pair", ids, pixels, logits)
    for source, what in ((folder, "itself"), (check.folder / f"{name}_pair", "transformers")):
        check.run("convert", source, check.folder / f"{name}_{what}", "--to", "original")
        compare_open_clip(check, f"{name}: both towers from {what}", check.folder / f"{name}_{what}", ids, pixels, logits)
    check.run("convert", folder, check.folder / f"{name}_hf", "--to", "hf", "--image-only")
    tower_class = transformers.SiglipVisionModel if timm_tower else transformers.CLIPVisionModelWithProjection
    back = tower_class.from_pretrained(check.folder / f"{name}_hf").eval()(pixel_values=pixels)
    check.close(f"{name}: its image tower in transformers", (back.pooler_output if timm_tower else
                back.image_embeds).detach().numpy(), images)


def check_timm_siglip(check):
    """What timm writes of a tower with attention pooling."""
    model = perturb(timm.create_model("vit_base_patch16_siglip_224", img_size=32, patch_size=8, embed_dim=48, depth=2,
                                      num_heads=3))
    folder = check.folder / "timm_siglip"
    timm.models.save_for_hf(model, folder, model_args=dict(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3))
    x = torch.randn(2, 3, 32, 32)
    check.close("timm's SigLIP tower", check.forward(folder, x), model(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default="build/release")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check = Check(args, pathlib.Path(folder))
        for kind in ("clip", "siglip"):
            check_pair(check, kind)
        check_timm_siglip(check)
        for timm_tower in (False, True):
            check_open_clip(check, timm_tower)
    sys.exit(1 if check.bad else 0)


if __name__ == "__main__":
    main()
