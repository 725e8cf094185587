"""What `vitrum explain` computes, in PyTorch and NumPy and by whole matrices: attention weights, their gradients,
rollout and gradient-weighted attention. Used by tools/explain_golden.py and tools/check_explain.py."""

import numpy as np
import torch


class Probabilities:
    """Keeps the attention weights of a timm model, with fused attention off, and their gradients."""

    def __init__(self, model):
        self.model, self.kept = model, []
        for name, module in model.named_modules():
            if hasattr(module, "attn_drop") and hasattr(module, "fused_attn"):
                module.fused_attn = False
                module.attn_drop.register_forward_hook(self.keep)

    def keep(self, _module, _inputs, output):
        if output.requires_grad:
            output.retain_grad()
        self.kept.append(output)

    def __call__(self, image, target=None):
        """Logits (classes), weights and gradients of the score of `target`, a list of (H, T, T) each."""
        self.kept.clear()
        logits = self.model(image[None])[0]
        if target is None:
            target = int(logits.argmax())
        logits[target].backward()
        return (logits.detach().numpy(), [p.detach()[0].numpy() for p in self.kept],
                [p.grad[0].numpy() for p in self.kept])


def readout(tokens, prefix, mean):
    """How the head weighs tokens: the class (and distillation) tokens, or the mean of the patches."""
    weights = np.zeros(tokens)
    weights[prefix if mean else 0:None if mean else prefix] = 1
    return weights / weights.sum()


def rollout(probs, weights, prefix, fusion="mean", discard=0.0):
    result = np.eye(probs[0].shape[-1])
    for p in probs:
        a = getattr(p.astype(np.float64), fusion)(axis=0)
        flat = a.reshape(-1)
        flat[np.argsort(flat, kind="stable")[:int(discard * flat.size)]] = 0
        a = flat.reshape(a.shape) + np.eye(len(a))
        result = a / a.sum(-1, keepdims=True) @ result
    return (weights @ result)[prefix:]


def gradient_relevance(probs, grads, weights, prefix):
    relevance = np.eye(probs[0].shape[-1])
    for p, g in zip(probs, grads):
        relevance = relevance + np.maximum(p.astype(np.float64) * g, 0).mean(0) @ relevance
    return (weights @ relevance)[prefix:]


def mean_distances(p, prefix, rows, columns, step_y, step_x):
    y, x = np.divmod(np.arange(rows * columns), columns)
    far = np.hypot((y[:, None] - y) * step_y, (x[:, None] - x) * step_x)
    p = p[:, prefix:, prefix:].astype(np.float64)
    return ((p * far).sum(-1) / p.sum(-1)).mean(-1)
