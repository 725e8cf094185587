"""What a model says of an image."""
from __future__ import annotations

from dataclasses import dataclass
from typing import List


@dataclass(frozen=True)
class Prediction:
    """One class: its label, its index among the model's outputs, its probability."""

    label: str
    index: int
    probability: float

    def __repr__(self) -> str:
        return f"Prediction({self.label!r}, {self.index}, {self.probability:.4f})"


_ROW = ('<tr><td style="text-align:left">{label}</td><td>{percent:.1f} %</td><td style="width:8em;padding:2px">'
        '<div style="background:#4c8bf5;height:0.8em;width:{percent:.1f}%"></div></td></tr>')


class Predictions(List[Prediction]):
    """The most probable classes of one image, the best first: a list that a notebook shows as a table."""

    @property
    def label(self) -> str:
        """Of the most probable class."""
        return self[0].label

    @property
    def probability(self) -> float:
        """Of the most probable class."""
        return self[0].probability

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(_ROW.format(label=escape(p.label), percent=100 * p.probability) for p in self)
        return f"<table>{rows}</table>"
