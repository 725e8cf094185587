"""Writes tests/golden/naflex: a tiny SigLIP 2 for images of any shape (NaFlex) as transformers leaves it, photos of
several shapes, and what transformers makes of them.

    tools/python.sh tools/golden/naflex_golden.py

Needs torch, transformers, safetensors, sentencepiece, Pillow, and tests/golden/tokenizers.
"""

import pathlib
import shutil

import numpy as np
import sentencepiece
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

GOLDEN = pathlib.Path("tests/golden")
LABELS = ["a photo of the cat", "a dog", "naïve café", "the mat"]
CONTEXT, PATCH, PATCHES = 12, 4, 16
SHAPES = (20, 31), (40, 9), (12, 12), (3, 60), (33, 24), (31, 20)
TEXT = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=1, pad_token_id=1, projection_size=16)
VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, patch_size=PATCH,
              num_patches=PATCHES)


def main():
    folder = GOLDEN / "naflex"
    folder.mkdir(exist_ok=True)
    file = GOLDEN / "tokenizers" / "siglip" / "spiece.model"
    words = sentencepiece.SentencePieceProcessor(model_file=str(file))
    ids = torch.tensor([(words.encode(t)[:CONTEXT - 1] + [1] * CONTEXT)[:CONTEXT] for t in LABELS])
    torch.manual_seed(3)
    model = transformers.Siglip2Model(transformers.Siglip2Config(
        text_config=TEXT | dict(vocab_size=words.get_piece_size()), vision_config=VISION)).eval()
    processor = Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=PATCHES)
    draw = np.random.default_rng(2)
    expected = {}
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() > 1:
                p.add_(0.1 * torch.randn_like(p))
        model.logit_scale.fill_(1.3)
        model.logit_bias.fill_(-1.5)
        photos = [draw.integers(0, 256, (3, *shape), dtype=np.uint8) for shape in SHAPES]
        inputs = processor([p.transpose(1, 2, 0) for p in photos], return_tensors="pt", input_data_format="channels_last")
        images = model.get_image_features(**inputs).pooler_output
        out = model(input_ids=ids, **inputs)
        for i, photo in enumerate(photos):
            rows, columns = inputs["spatial_shapes"][i].tolist()
            patches = (inputs["pixel_values"][i, :rows * columns] * 0.5 + 0.5) * 255
            pixels = patches.reshape(rows, columns, PATCH, PATCH, 3).permute(4, 0, 2, 1, 3)
            expected[f"photo.{i}"] = torch.tensor(photo, dtype=torch.float32)
            expected[f"pixels.{i}"] = pixels.reshape(3, rows * PATCH, columns * PATCH).round().contiguous()
        texts = model.get_text_features(input_ids=ids).pooler_output
    expected |= {"images": images.contiguous(), "texts": texts.contiguous(),
                 "probabilities": out.logits_per_image.sigmoid().contiguous()}
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    shutil.copy(file, folder)
    save_file(expected, folder / "expected.safetensors")


if __name__ == "__main__":
    main()
