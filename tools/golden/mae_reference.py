"""transformers' masked autoencoder with our masks: what mae_golden.py and check_mae.py share."""

import numpy as np
import torch
from models_golden import philox
from transformers import ViTMAEForPreTraining
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

SHUFFLE_STREAM = 2  # kShuffleStream of vitrum/core/philox.h


def draws32(seed, step, site, rows, n):
    """(rows, n): vitrum/core/philox.h's draw32 of every element."""
    per_row = (n + 3) // 4
    counter = np.arange(rows * per_row, dtype=np.uint64)
    words = [counter & np.uint64(0xFFFFFFFF), (counter >> np.uint64(32)) ^ np.uint64((step >> 32) << 16 & 0xFFFFFFFF),
             np.full_like(counter, step & 0xFFFFFFFF), np.full_like(counter, site)]
    return philox(seed, words).T.reshape(rows, 4 * per_row)[:, :n]


def our_noise(seed, step, images, patches, ratio):
    """For transformers, which keeps the patches of the smallest noise: 0 for those that we keep, 1 for the others."""
    draws = draws32(seed, step, 0, images, patches)  # the masks are a graph's first random site
    kept = np.argsort(draws, axis=1, kind="stable")[:, :int(patches * (1 - ratio))]
    noise = np.ones((images, patches), np.float32)
    np.put_along_axis(noise, kept, 0, axis=1)
    return torch.from_numpy(noise)


def epoch_order(seed, epoch, images):
    """The order of an epoch's images: Fisher-Yates with the words of one stream."""
    def words():
        position = 0
        while True:
            counter = [np.uint64(x) for x in (position, SHUFFLE_STREAM, epoch & 0xFFFFFFFF, epoch >> 32)]
            yield from (int(w) for w in philox(seed, counter))
            position += 1

    stream = words()

    def below(n):
        m = next(stream) * n
        if m & 0xFFFFFFFF < n:
            threshold = (1 << 32) % n
            while m & 0xFFFFFFFF < threshold:
                m = next(stream) * n
        return m >> 32

    order = list(range(images))
    for left in range(images, 1, -1):
        i = below(left)
        order[left - 1], order[i] = order[i], order[left - 1]
    return order


# Of the modules of a block, by our names.
BLOCK = {"norm1": "layernorm_before", "attn.proj": "attention.o_proj", "norm2": "layernorm_after", "mlp.fc1": "mlp.fc1",
         "mlp.fc2": "mlp.fc2"}
OTHERS = {"cls_token": "vit.embeddings.cls_token", "pos_embed": "vit.embeddings.position_embeddings",
          "patch_embed.proj": "vit.embeddings.patch_embeddings.projection", "norm": "vit.layernorm",
          "mask_token": "decoder.mask_token", "decoder_pos_embed": "decoder.decoder_pos_embed",
          "decoder_embed": "decoder.decoder_embed", "decoder_norm": "decoder.decoder_norm",
          "decoder_pred": "decoder.decoder_pred"}


def by_our_names(tensors, config):
    """What is named as transformers 5 names parameters, under our names: q, k and v are one, patches are flat."""
    ours = {}
    for mine, theirs in OTHERS.items():
        for end in ("", ".weight", ".bias"):
            if theirs + end in tensors:
                ours[mine + end] = tensors[theirs + end]
    for mine, theirs, depth in (("blocks", "vit.layers", config.num_hidden_layers),
                                ("decoder_blocks", "decoder.decoder_layers", config.decoder_num_hidden_layers)):
        for i in range(depth):
            for end in ("weight", "bias"):
                qkv = [tensors[f"{theirs}.{i}.attention.{x}_proj.{end}"] for x in "qkv"]
                ours[f"{mine}.{i}.attn.qkv.{end}"] = torch.cat(qkv)
                for ours_is, theirs_is in BLOCK.items():
                    ours[f"{mine}.{i}.{ours_is}.{end}"] = tensors[f"{theirs}.{i}.{theirs_is}.{end}"]
    ours["patch_embed.proj.weight"] = ours["patch_embed.proj.weight"].flatten(1)
    return ours


def table(side, width):
    """transformers' own fixed positions, columns before rows as in published files."""
    rows_first = build_2d_sinusoidal_position_embedding(height=side, width=side, embed_dim=width, cls_token=True)
    return torch.cat([rows_first[:, width // 2:], rows_first[:, :width // 2]], dim=1)


def random_model(config, seed=0):
    """With weights that are nowhere zero, and the tables of positions that every trained one has; a new one has zeros."""
    torch.manual_seed(seed)
    model = ViTMAEForPreTraining(config)
    with torch.no_grad():
        for positions in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
            positions.copy_(table(config.image_size // config.patch_size, positions.shape[-1]))
        for name, p in model.named_parameters():
            if "pos" not in name:
                p.add_(0.1 * torch.randn_like(p) / max(1, p.shape[-1]) ** 0.5)
    return model


def loss_and_gradients(model, images, noise):
    """The loss, and every gradient under our names; positions have none."""
    model.zero_grad()
    loss = model(images, noise=noise).loss
    loss.backward()
    grads = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()}
    return loss.item(), by_our_names(grads, model.config)
