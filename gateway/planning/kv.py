"""What keys and values take: of a token, a block, a sequence; by dtype and by kind of heads. Pure.

Two accountings of a sequence. `kept`: every layer keeps every token, as Keepwarm's tree does, since a later prompt may
part from a prefix at any token of it. `windowed`: a paged engine that frees what has left the window of every sequence
that uses it; a sliding layer then holds at most the blocks that its window can touch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from gateway.planning.shape import Layer, Shape

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
SPELLINGS: Final = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "half": "float16", "float": "float32"}
SCALE_BYTES: Final = 4  # int8: one float32 for each token, head and of K and V


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The same model with other heads or another dtype of keys and values."""

    heads: str  # MHA, GQA or MQA
    kv_heads: int  # of the first layer
    dtype: str
    own: bool  # whether it is the model as it is planned for
    bytes_per_token: int


def read_bytes(layer: Layer, dtype: str) -> int:
    """Return the bytes of one token's K and V that a layer reads."""
    scale = SCALE_BYTES if dtype == "int8" else 0
    return 2 * layer.kv_heads * (layer.head_dim * BYTES[dtype] + scale)


def layer_bytes(layer: Layer, dtype: str) -> int:
    """Return the bytes of one token's K and V that a layer keeps; 0 where it reads another layer's."""
    return read_bytes(layer, dtype) if layer.stored else 0


def bytes_per_token(layers: Iterable[Layer], dtype: str) -> int:
    """Return the bytes of one token's K and V over all layers."""
    return sum(layer_bytes(layer, dtype) for layer in layers)


def blocks_of(tokens: int, block_tokens: int) -> int:
    """Return the blocks that so many tokens take."""
    return -(-tokens // block_tokens)


def window_blocks(window: int, block_tokens: int) -> int:
    """Return the most blocks that a window can touch, wherever it begins in a block."""
    return (window + block_tokens - 2) // block_tokens + 1


def kept_bytes(shape: Shape, dtype: str, tokens: int, block_tokens: int) -> int:
    """Return what a sequence takes where every layer keeps every token."""
    return blocks_of(tokens, block_tokens) * block_tokens * bytes_per_token(shape.layers, dtype)


def windowed_bytes(shape: Shape, dtype: str, tokens: int, block_tokens: int) -> int:
    """Return what a sequence takes where sliding layers free what has left their window."""
    whole = blocks_of(tokens, block_tokens)
    total = 0
    for layer in shape.layers:
        held = whole if layer.window is None else min(whole, window_blocks(layer.window, block_tokens))
        total += held * block_tokens * layer_bytes(layer, dtype)
    return total


def variants(shape: Shape, dtype: str) -> list[Variant]:
    """Return MHA, GQA and MQA in the dtype given, in fp8 and in int8; the model's own kind keeps its own heads."""
    own = kind_of(shape)
    found = []
    for kind in ("MHA", "GQA", "MQA"):
        layers = shape.layers if kind == own else tuple(_with_heads(layer, kind) for layer in shape.layers)
        found += [
            Variant(
                heads=kind,
                kv_heads=layers[0].kv_heads,
                dtype=each,
                own=kind == own and each == dtype,
                bytes_per_token=bytes_per_token(layers, each),
            )
            for each in dict.fromkeys((dtype, "fp8", "int8"))
        ]
    return found


def kind_of(shape: Shape) -> str:
    """Return what a model's heads are called."""
    if all(layer.kv_heads == layer.heads for layer in shape.layers):
        return "MHA"
    return "MQA" if all(layer.kv_heads == 1 for layer in shape.layers) else "GQA"


def _with_heads(layer: Layer, kind: str) -> Layer:
    """Return a layer with another number of KV heads; GQA is one for eight, where eight divide them, else for two."""
    grouped = next((layer.heads // by for by in (8, 4, 2) if layer.heads % by == 0), 1)
    return replace(layer, kv_heads={"MHA": layer.heads, "GQA": grouped, "MQA": 1}[kind])
