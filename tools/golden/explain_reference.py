"""What `vitrum explain` computes, in PyTorch and NumPy and by whole matrices: attention weights, their gradients,
rollout and gradient-weighted attention. Used by tools/golden/explain_golden.py and tools/check/check_explain.py."""

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
        """Logits (classes), weights and gradients of the score of `target`, a list of (windows, H, T, T) each."""
        self.kept.clear()
        logits = self.model(image[None])[0]
        if target is None:
            target = int(logits.argmax())
        logits[target].backward()
        return (logits.detach().numpy(), [p.detach().numpy() for p in self.kept], [p.grad.numpy() for p in self.kept])


def readout(tokens, prefix, mean):
    """How the head weighs tokens: the class (and distillation) tokens, or the mean of the patches."""
    weights = np.zeros(tokens)
    weights[prefix if mean else 0:None if mean else prefix] = 1
    return weights / weights.sum()


class Layer:
    """Where the tokens of one attention layer lie: (windows, T) token numbers, on a grid of rows x columns."""

    def __init__(self, rows, columns, prefix=0, places=None):
        self.rows, self.columns, self.prefix = rows, columns, prefix
        self.tokens = prefix + rows * columns
        self.places = np.arange(self.tokens)[None] if places is None else places

    def whole(self, windows):
        """One matrix (tokens, tokens) out of (windows, T, T)."""
        matrix = np.zeros((self.tokens, self.tokens))
        for place, window in zip(self.places, windows):
            matrix[np.ix_(place, place)] = window
        return matrix

    def merged_from(self, finer):
        """(tokens, finer tokens): each token the mean of those it was merged from; nothing where none were."""
        if (self.rows, self.columns) == (finer.rows, finer.columns):
            return np.eye(self.tokens)
        y, x = np.divmod(np.arange(finer.tokens), finer.columns)
        matrix = np.zeros((self.tokens, finer.tokens))
        matrix[y // 2 * self.columns + x // 2, np.arange(finer.tokens)] = 1
        return matrix / matrix.sum(-1, keepdims=True)


def vit_layers(model):
    return [Layer(*model.patch_embed.grid_size, model.num_prefix_tokens)] * len(model.blocks)


def swin_layers(model):
    """Every block of a timm Swin, its windows cut by timm itself."""
    from timm.models.swin_transformer import window_partition
    layers = []
    for stage in model.layers:
        for block in stage.blocks:
            rows, columns = block.input_resolution
            numbers = torch.arange(rows * columns).view(1, rows, columns, 1)
            numbers = torch.roll(numbers, [-s for s in block.shift_size], (1, 2))
            places = window_partition(numbers, block.window_size).flatten(1).numpy()
            layers.append(Layer(rows, columns, places=places))
    return layers


def through(layers, matrices, weights):
    """The rows that the head reads of the product of all layers' matrices, the last layer's leftmost."""
    result = weights
    for i in range(len(layers) - 1, -1, -1):
        if i + 1 < len(layers):
            result = result @ layers[i + 1].merged_from(layers[i])
        result = result @ matrices[i]
    return result[layers[0].prefix:].reshape(layers[0].rows, layers[0].columns)


def attention_map(p, layer, weights, fusion="mean"):
    return (weights @ layer.whole(getattr(p, fusion)(axis=1)))[layer.prefix:].reshape(layer.rows, layer.columns)


def rollout(probs, layers, weights, fusion="mean", discard=0.0):
    matrices = []
    for p, layer in zip(probs, layers):
        a = getattr(p.astype(np.float64), fusion)(axis=1)
        for window in a:
            flat = window.reshape(-1)
            flat[np.argsort(flat, kind="stable")[:int(discard * flat.size)]] = 0
        a = layer.whole(a) + np.eye(layer.tokens)
        matrices.append(a / a.sum(-1, keepdims=True))
    return through(layers, matrices, weights)


def gradient_relevance(probs, grads, layers, weights):
    matrices = [np.eye(layer.tokens) + layer.whole(np.maximum(p.astype(np.float64) * g, 0).mean(1))
                for p, g, layer in zip(probs, grads, layers)]
    return through(layers, matrices, weights)


def mean_distances(p, layer, height, width):
    """For each head, in pixels of an image of height x width."""
    y, x = np.divmod(np.arange(layer.rows * layer.columns), layer.columns)
    far = np.hypot((y[:, None] - y) * height / layer.rows, (x[:, None] - x) * width / layer.columns)
    means = []
    for head in range(p.shape[1]):
        a = layer.whole(p[:, head].astype(np.float64))[layer.prefix:, layer.prefix:]
        means.append(((a * far).sum(-1) / a.sum(-1)).mean())
    return np.array(means)
