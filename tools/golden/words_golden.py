"""Writes tests/golden/words: tiny models of images and texts as transformers and OpenCLIP leave them, and what these
compute.

    tools/python.sh tools/golden/words_golden.py

Needs torch, transformers, open_clip_torch, safetensors, tokenizers and sentencepiece, and tests/golden/tokenizers.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))
from check_tokenizers import end_last

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

GOLDEN = pathlib.Path("tests/golden")
LABELS = ["a photo of the cat", "a dog", "naïve café", "the mat"]
CONTEXT, SIDE = 12, 13  # 3 x 3 patches of 4, a row and a column of pixels over
TEXT = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=CONTEXT)
VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, patch_size=4,
              image_size=SIDE)


def clip():
    folder = GOLDEN / "tokenizers" / "clip"
    tok = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tok.token_to_id("<|endoftext|>")
    tok.enable_truncation(CONTEXT)
    tok.enable_padding(length=CONTEXT, pad_id=end, pad_token="<|endoftext|>")
    text = TEXT | dict(vocab_size=tok.get_vocab_size(), eos_token_id=end, bos_token_id=0, pad_token_id=end)
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=8)
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    return transformers.CLIPModel(config), [tok.encode(t).ids for t in LABELS], folder / "tokenizer.json", mean, std


def siglip():
    file = GOLDEN / "tokenizers" / "siglip" / "spiece.model"
    sp = sentencepiece.SentencePieceProcessor(model_file=str(file))
    ids = [(sp.encode(t)[:CONTEXT - 1] + [1] * CONTEXT)[:CONTEXT] for t in LABELS]
    text = TEXT | dict(vocab_size=sp.get_piece_size(), bos_token_id=1, eos_token_id=1, pad_token_id=1, projection_size=16)
    model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=VISION))
    with torch.no_grad():
        model.logit_scale.fill_(1.3)
        model.logit_bias.fill_(-1.5)
    return model, ids, file, [0.5] * 3, [0.5] * 3


def open_clip_model():
    """Both towers in one file, the text tower's names without a prefix."""
    from open_clip.model import CLIP
    folder = GOLDEN / "tokenizers" / "clip"
    tok = end_last(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    out = GOLDEN / "words" / "open_clip"
    out.mkdir(exist_ok=True)
    tok.save(str(out / "tokenizer.json"))
    tok.enable_truncation(CONTEXT)
    tok.enable_padding(length=CONTEXT, pad_id=0)  # as its own tokenizer does
    config = dict(embed_dim=8, quick_gelu=True,
                  vision_cfg=dict(image_size=SIDE, layers=2, width=16, head_width=8, patch_size=4, mlp_ratio=1.5),
                  text_cfg=dict(context_length=CONTEXT, vocab_size=tok.get_vocab_size(), width=16, heads=2, layers=2,
                                mlp_ratio=1.5))
    torch.manual_seed(3)
    model = CLIP(**config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() > 1:
                p.add_(0.1 * torch.randn_like(p))
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    (out / "open_clip_config.json").write_text(json.dumps(
        {"model_cfg": config, "preprocess_cfg": {"mean": mean, "std": std, "interpolation": "bicubic",
                                                 "resize_mode": "shortest"}}, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, out / "open_clip_model.safetensors")
    pixels = torch.tensor(np.random.default_rng(1).integers(0, 256, (2, 3, SIDE, SIDE)), dtype=torch.float32)
    shift, scale = torch.tensor(mean).reshape(3, 1, 1), torch.tensor(std).reshape(3, 1, 1)
    ids = torch.tensor([tok.encode(t).ids for t in LABELS])
    with torch.no_grad():
        images, texts = model.encode_image((pixels / 255 - shift) / scale), model.encode_text(ids)
        unit = torch.nn.functional.normalize
        scores = model.logit_scale.exp() * unit(images, dim=-1) @ unit(texts, dim=-1).T
    return {"open_clip.pixels": pixels, "open_clip.images": images.contiguous(), "open_clip.texts": texts.contiguous(),
            "open_clip.probabilities": scores.softmax(-1).contiguous()}


def main():
    expected = open_clip_model()
    for name, make in ("clip", clip), ("siglip", siglip):
        torch.manual_seed(3)
        model, ids, tokenizer, mean, std = make()
        with torch.no_grad():
            for p in model.parameters():
                if p.numel() > 1:
                    p.add_(0.1 * torch.randn_like(p))
        folder = GOLDEN / "words" / name
        model.eval().save_pretrained(folder)
        shutil.copy(tokenizer, folder)
        pixels = torch.tensor(np.random.default_rng(1).integers(0, 256, (2, 3, SIDE, SIDE)), dtype=torch.float32)
        shift, scale = torch.tensor(mean).reshape(3, 1, 1), torch.tensor(std).reshape(3, 1, 1)
        with torch.no_grad():
            out = model(input_ids=torch.tensor(ids), pixel_values=(pixels / 255 - shift) / scale)
            texts = model.get_text_features(input_ids=torch.tensor(ids))
            images = model.get_image_features(pixel_values=(pixels / 255 - shift) / scale)
        plain = lambda x: (x if torch.is_tensor(x) else x.pooler_output).contiguous()
        scores = out.logits_per_image
        expected |= {f"{name}.pixels": pixels, f"{name}.images": plain(images), f"{name}.texts": plain(texts),
                     f"{name}.probabilities": (scores.softmax(-1) if name == "clip" else scores.sigmoid()).contiguous()}
    save_file(expected, GOLDEN / "words" / "expected.safetensors")
    (GOLDEN / "words" / "labels.txt").write_text("\n".join(LABELS) + "\n")


main()
