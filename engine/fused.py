"""Projections of one input as one matrix product: queries, keys and values; gate and up.

Owns the joined weights. A model's code stays as it is: the first projection it calls computes all of them, the others
hand out their share. Rule: a projection that is called with another input computes its own share of that input, so
what a model does with its projections never decides whether the result is right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # as transformers calls them, in this order


class Joined(nn.Module):
    """Several linear layers of one input, one after another along the output."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]), requires_grad=False)
        biases: list[Tensor | None] = [layer.bias for layer in layers]
        known = [bias for bias in biases if bias is not None]
        self.bias = nn.Parameter(torch.cat(known), requires_grad=False) if known else None
        self.sizes = [layer.out_features for layer in layers]
        self._input: Tensor | None = None
        self._shares: list[Tensor] = []

    def share(self, index: int, given: Tensor) -> Tensor:
        """Return the output of one of the layers for `given` [..., in]: [..., out], a view."""
        if given is not self._input:
            self._input = given
            self._shares = list(torch.functional.split(linear(given, self.weight, self.bias), self.sizes, dim=-1))
        share = self._shares[index]
        if index == len(self.sizes) - 1:  # the last to be called: hold on to nothing between steps
            self._input, self._shares = None, []
        return share


class Share(nn.Module):
    """Stands where one of the joined layers stood."""

    def __init__(self, joined: Joined, index: int) -> None:
        super().__init__()
        self.joined, self.index = joined, index

    def forward(self, given: Tensor) -> Tensor:
        """Project: [..., in] to [..., out]."""
        return self.joined.share(self.index, given)


def fuse(module: nn.Module) -> int:
    """Join what can be joined everywhere in a model, in place; return how many products were saved.

    The layers' own weights are let go, so that memory stays what it was.
    """
    saved = 0
    for parent in list(module.modules()):
        for names in TOGETHER:
            layers = [layer for name in names if type(layer := getattr(parent, name, None)) is nn.Linear]
            if len(layers) == len(names) and _alike(layers):
                joined = Joined(layers)
                for index, name in enumerate(names):
                    setattr(parent, name, Share(joined, index))
                saved += len(names) - 1
    return saved


def _alike(layers: Sequence[nn.Linear]) -> bool:
    """Whether all take inputs of one size and kind, with a bias or without."""
    return len({(layer.in_features, layer.weight.dtype, layer.bias is None) for layer in layers}) == 1
