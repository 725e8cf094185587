"""Vision transformers without PyTorch: labels, features and training.

    >>> import vitrum
    >>> model = vitrum.load("vit_tiny_patch16_224.augreg_in21k_ft_in1k")   # a model directory
    >>> model.predict("cat.jpg")[0].label
    'tabby, tabby cat'

`load` opens a model, `train` and its kin train one, `explain` of a model shows what it looks at. Photos are paths, bytes,
PIL images, arrays (H, W, C) of uint8, or lists and generators of those. Errors are `VitrumError`, and ValueError,
MemoryError or RuntimeError too. numpy is used where it is installed. See docs/python.md.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import ExhaustedError, FailedError, InputError, UsageError, VitrumError
from ._model import Model, load
from ._predictions import Prediction, Predictions
from ._version import __version__

if TYPE_CHECKING:
    from ._build_info import build_info
    from ._explain import Picture
    from ._tensor import Tensor
    from ._training import EpochEvent, Training, distill, finetune, pretrain, train

__all__ = [
    "EpochEvent", "ExhaustedError", "FailedError", "InputError", "Model", "Picture", "Prediction", "Predictions", "Tensor",
    "Training", "UsageError", "VitrumError", "__version__", "build_info", "distill", "finetune", "load", "pretrain",
    "train",
]

# What a program that only predicts does not need is imported when it is first asked for.
_LATER = {
    "EpochEvent": "_training", "Training": "_training", "distill": "_training", "finetune": "_training",
    "pretrain": "_training", "train": "_training", "Picture": "_explain", "Tensor": "_tensor", "build_info": "_build_info",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'vitrum' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_LATER[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
