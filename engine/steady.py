"""Linear layers and activations whose result for a row is the same to the bit, whoever its neighbours are.

A matrix product is computed by another kernel for other row counts, and rounds otherwise. Row counts are therefore
padded to rungs of a ladder that a test on the model's own matrices found to round alike, wherever a row stands; what is
above the top rung is computed in several. Of the kernels there are, the first with a usable ladder is taken: weights
packed for oneDNN, else the plain product.

Owns the packed weights, which take the place of the plain ones. Rule: no ladder, no service; refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from engine.errors import ModelRefused

RUNGS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
MOST_OUTPUTS = 1 << 22  # numbers of one product, so that a vocabulary is not tested, nor computed, in 1,024 rows
FEW = 2  # rungs at least that a ladder for single rows should have
LANES = 32  # elements that an activation computes together; those behind the last full lot round otherwise
ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")
SUMS = (nn.Softmax, nn.LogSoftmax, nn.Softmin)  # among them, which are not element by element
SERIAL = 1 << 14  # elements up to which torch computes any activation in one thread

Product = Callable[[Tensor], Tensor]  # [rows, in] to [rows, out]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Row counts that round alike, ascending."""

    rungs: tuple[int, ...]

    def steps(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """Cut rows into (first, last, padded count)."""
        top = self.rungs[-1]
        for first in range(0, rows, top):
            last = min(rows, first + top)
            yield first, last, next(rung for rung in self.rungs if rung >= last - first)


class Kernel:
    """One way to compute a linear layer."""

    name = "plain"

    def make(self, layer: nn.Linear) -> Product | None:
        """Return the product of this layer, or None where there is none of this kind."""
        weight, bias = layer.weight, layer.bias
        return lambda rows: linear(rows, weight, bias)


class Packed(Kernel):
    """Weights reordered once for oneDNN, whose kernels add up in one order for nearly all row counts."""

    name = "packed"
    MEANT_FOR = 256  # rows that the reordering is told to expect

    def make(self, layer: nn.Linear) -> Product | None:
        """Return the product, where torch has oneDNN and the layer is in float32."""
        there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not there or layer.weight.dtype != torch.float32:
            return None
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), self.MEANT_FOR)  # noqa: SLF001
        product, bias = torch.ops.mkldnn._linear_pointwise, layer.bias  # noqa: SLF001
        return lambda rows: product(rows, packed, bias, "none", [], "")


KERNELS: tuple[Kernel, ...] = (Packed(), Kernel())


class Steady(nn.Module):
    """Stands where a linear layer stood."""

    def __init__(self, product: Product, ladder: Ladder, outputs: int) -> None:
        super().__init__()
        self.product, self.ladder, self.outputs = product, ladder, outputs

    def forward(self, given: Tensor) -> Tensor:
        """Project: [..., in] to [..., out]."""
        rows = given.reshape(-1, given.shape[-1])
        parts = []
        for first, last, count in self.ladder.steps(len(rows)):
            some = rows[first:last]
            if count > last - first:
                some = pad(some, (0, 0, 0, count - last + first))
            parts.append(self.product(some)[: last - first])
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.view(*given.shape[:-1], self.outputs)


class Level(nn.Module):
    """An activation that has no element at the end of a lot, nor at the border between two threads."""

    def __init__(self, act: nn.Module, threads: int) -> None:
        super().__init__()
        self.act, self.threads = act, threads

    def forward(self, given: Tensor) -> Tensor:
        """Apply it to [..., width]."""
        width = given.shape[-1]
        padded = pad(given, (0, -width % LANES)) if width % LANES else given
        if given.numel() <= SERIAL or all(width % (LANES * n) == 0 for n in range(1, self.threads + 1)):
            whole: Tensor = self.act(padded)
            return whole[..., :width]
        rows = padded.reshape(-1, padded.shape[-1])
        pieces = torch.functional.split(rows, max(1, SERIAL // rows.shape[-1]))
        return torch.cat([self.act(piece) for piece in pieces])[:, :width].view(given.shape)


def steady(module: Any, *, kernels: Sequence[Kernel] = KERNELS) -> dict[str, int]:
    """Replace what depends on row counts, in place; return how many layers got which kernel.

    Raises ModelRefused for what cannot be made independent of them.
    """
    _refuse_others(module)
    head = module.get_output_embeddings()
    found: dict[tuple[int, int, bool, bool], tuple[Kernel, Ladder]] = {}
    used: dict[str, int] = {}
    threads = torch.get_num_threads()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                shape = (child.in_features, child.out_features, child.bias is None, child is head)
                if shape not in found:
                    found[shape] = _choose(child, kernels, name, single=child is head)
                kernel, ladder = found[shape]
                product = kernel.make(child)
                assert product is not None
                setattr(parent, name, Steady(product, ladder, child.out_features))
                used[kernel.name] = used.get(kernel.name, 0) + 1
            elif type(child).__module__ in ACTIVATIONS and not isinstance(child, SUMS):
                setattr(parent, name, Level(child, threads))
    return used


def _refuse_others(module: Any) -> None:
    """Raise ModelRefused where matrices are multiplied by code that cannot be reached layer by layer."""
    for name, part in module.named_modules():
        if type(part) in (nn.Linear, nn.Embedding) or isinstance(part, nn.Embedding):
            continue
        wide = [own for own, weight in part.named_parameters(recurse=False) if weight.dim() > 1]
        if wide:
            raise ModelRefused(
                f"--deterministic: {module.config.model_type} multiplies by {name}.{wide[0]} outside a linear layer "
                "(experts do), with row counts that depend on the batch. Serve it without --deterministic."
            )


def _choose(layer: nn.Linear, kernels: Sequence[Kernel], name: str, *, single: bool) -> tuple[Kernel, Ladder]:
    """Return the first kernel that has a ladder for this layer. What computes single rows keeps its own weight."""
    for kernel in reversed(kernels) if single else kernels:
        product = kernel.make(layer)
        ladder = None if product is None else ladder_of(product, layer, single=single)
        if ladder is not None:
            return kernel, ladder
    raise ModelRefused(
        f"--deterministic: on this machine a row's result of {name} ({layer.in_features} to {layer.out_features}) "
        "depends on the rows beside it, for every row count tried. Serve without --deterministic."
    )


@torch.inference_mode()
def ladder_of(product: Product, layer: nn.Linear, *, single: bool) -> Ladder | None:
    """Return row counts that round alike: those that reach furthest, or with `single` those that begin lowest."""
    top = max(RUNGS[1], MOST_OUTPUTS // layer.out_features)
    rungs = [rung for rung in RUNGS if rung <= top]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(rungs[-1], layer.in_features, generator=generator).to(layer.weight)
    families: list[tuple[list[int], Tensor]] = []
    for rung in reversed(rungs):
        ours = _where_it_stands(product, rows, rung)
        if ours is None:
            continue
        for members, theirs in families:
            if torch.equal(theirs[:rung], ours):
                members.append(rung)
                break
        else:
            families.append(([rung], ours))
    ladders = [Ladder(tuple(reversed(members))) for members, _ in families if members[0] > 1]  # not row after row
    if not ladders:
        return None
    if single:
        return min(ladders, key=lambda one: (len(one.rungs) < FEW, one.rungs[0]))
    return max(ladders, key=lambda one: (one.rungs[-1], -one.rungs[0]))


def _where_it_stands(product: Product, rows: Tensor, rung: int) -> Tensor | None:
    """Return the product of the first `rung` rows, or None where a row's place or its neighbours change it."""
    ours = product(rows[:rung])
    turned = product(rows[:rung].roll(rung // 2 + 1, 0)).roll(-(rung // 2 + 1), 0)
    alone = product(torch.zeros_like(rows[:rung]).index_copy_(0, torch.tensor([rung - 1]), rows[:1]))[rung - 1]
    return ours if torch.equal(ours, turned) and torch.equal(ours[0], alone) else None
