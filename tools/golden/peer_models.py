"""PyTorch models that Vitrum is compared with, apart from timm's own, and their parameters under timm's names.

Used by models_golden.py, check_live.py and bench/pytorch_train.py.
"""

import torch
import torch.nn.functional as F
from torch import nn


def patches(image, size, channels_last):
    """(B, C, H, W) -> (B, N, size * size * C), each patch flattened (P, P, C) or (C, P, P)."""
    b, c, h, w = image.shape
    tiles = image.reshape(b, c, h // size, size, w // size, size)  # (B, C, rows, P, columns, P)
    order = (0, 2, 4, 3, 5, 1) if channels_last else (0, 2, 4, 1, 3, 5)
    return tiles.permute(order).reshape(b, -1, size * size * c)


def with_class_token(token, tokens):
    return torch.cat((token.expand(len(tokens), -1, -1), tokens), dim=1)


class MnistViT(nn.Module):
    """The post-norm ViT of document 003: PyTorch's encoder layers, no final norm."""

    def __init__(self, image=28, channels=1, patch=7, width=64, heads=8, depth=3, hidden=2048, classes=100,
                 dropout=0.1):
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(channels * patch * patch, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.rand(1, (image // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, image):
        x = self.project(patches(image, self.patch, channels_last=True))
        x = self.encoder(with_class_token(self.token, x) + self.positions)
        return self.head(x[:, 0])

    def timm_names(self):
        """Our prefix -> timm's, for parameters that differ only in name."""
        names = {"project": "patch_embed.proj", "token": "cls_token", "positions": "pos_embed", "head": "head"}
        for i in range(len(self.encoder.layers)):
            names |= {f"encoder.layers.{i}.{ours}": f"blocks.{i}.{theirs}" for ours, theirs in (
                ("self_attn.in_proj_weight", "attn.qkv.weight"), ("self_attn.in_proj_bias", "attn.qkv.bias"),
                ("self_attn.out_proj", "attn.proj"), ("linear1", "mlp.fc1"), ("linear2", "mlp.fc2"),
                ("norm1", "norm1"), ("norm2", "norm2"))}
        return names


class MinBlock(nn.Module):
    def __init__(self, width, heads, dropout, sdpa):
        super().__init__()
        self.heads, self.dropout, self.sdpa = heads, dropout, sdpa
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.fc1 = nn.Linear(width, 4 * width, bias=False)
        self.fc2 = nn.Linear(4 * width, width, bias=False)

    def attend(self, x):
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for layer in (self.query, self.key, self.value))  # (B, H, T, D)
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + F.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))), self.dropout, self.training)


class MinViT(nn.Module):
    """The pre-norm ViT of document 000; unlike there, a patch never mixes two images.

    `sdpa` chooses PyTorch's fused attention, which computes the same and is the faster peer.
    """

    def __init__(self, image=32, channels=3, patch=4, width=768, heads=4, depth=4, classes=10, dropout=0.1,
                 sdpa=True):
        super().__init__()
        self.patch, self.dropout = patch, dropout
        self.project = nn.Linear(channels * patch * patch, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(MinBlock(width, heads, dropout, sdpa) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, image):
        x = self.project(patches(image, self.patch, channels_last=False))
        x = F.dropout(with_class_token(self.token, x) + self.positions, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])

    def timm_names(self):
        names = {"project": "patch_embed.proj", "token": "cls_token", "positions": "pos_embed", "norm": "norm",
                 "head": "head"}
        for i in range(len(self.blocks)):
            names |= {f"blocks.{i}.{ours}": f"blocks.{i}.{theirs}" for ours, theirs in (
                ("norm1", "norm1"), ("norm2", "norm2"), ("out", "attn.proj"), ("fc1", "mlp.fc1"),
                ("fc2", "mlp.fc2"))}
        return names


def to_timm(model, tensor_of):
    """`tensor_of(parameter)` of every parameter of `model` as {timm's name: tensor}, in timm's shapes."""
    tensors = {name: tensor_of(p).detach() for name, p in model.named_parameters()}
    if not hasattr(model, "timm_names"):
        return {name: t.clone() for name, t in tensors.items()}
    out = {}
    for ours, theirs in model.timm_names().items():
        for end in ("", ".weight", ".bias"):
            if ours + end in tensors:
                out[theirs + end] = tensors[ours + end].clone()
    if isinstance(model, MinViT):
        for i in range(len(model.blocks)):
            out[f"blocks.{i}.attn.qkv.weight"] = torch.cat(
                [tensors[f"blocks.{i}.{part}.weight"] for part in ("query", "key", "value")])
        weight = out["patch_embed.proj.weight"]
        out["patch_embed.proj.weight"] = weight.reshape(len(weight), -1, model.patch, model.patch)
    assert sum(t.numel() for t in out.values()) == sum(t.numel() for t in tensors.values())
    return out
