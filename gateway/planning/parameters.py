"""How many parameters a model has, counted from its configuration, and what bytes they take. Pure.

Owns the table of families that it can count: each line is what that family's layers have beside the plain matrices.
Rule: a family that is not in the table is not guessed at; what is counted is the text model alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.planning.kv import BYTES
from gateway.planning.shape import Config, Shape, whole

MXFP4_BYTES: Final = 4.25 / 8  # four bits, and an eight-bit scale for 32 of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a family's layers have; None: as `attention_bias` or `mlp_bias` of the configuration says."""

    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = False
    norms: int = 2  # of a layer
    qk_norm: Literal["no", "head", "full"] = "no"
    sinks: bool = False
    expert_bias: bool = False
    tied: bool = False  # where the configuration does not say


FAMILIES: Final[Mapping[str, Family]] = {
    "gemma": Family(tied=True),
    "gemma2": Family(norms=4, tied=True),
    "gemma3_text": Family(norms=4, qk_norm="head", tied=True),
    "gpt_oss": Family(sinks=True, expert_bias=True),
    "granite": Family(mlp_bias=None),
    "llama": Family(mlp_bias=None),
    "mistral": Family(qkv_bias=False, out_bias=False),
    "mixtral": Family(qkv_bias=False, out_bias=False),
    "olmo2": Family(qk_norm="full"),
    "phi3": Family(qkv_bias=False, out_bias=False),
    "qwen2": Family(qkv_bias=True, out_bias=False),
    "qwen3": Family(qk_norm="head"),
    "qwen3_moe": Family(qk_norm="head"),
    "smollm3": Family(mlp_bias=None, tied=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters by what they are for."""

    embedding: int
    head: int  # 0 where the embedding is used again
    attention: int
    mlp: int  # of layers without experts
    experts: int
    routers: int
    norms: int
    expert_matrices: int  # those of `experts` that are matrices
    expert_count: int = 0  # in a layer that has any
    chosen: int = 0  # of these, for each token

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.attention + self.mlp + self.experts + self.routers + self.norms

    @property
    def active(self) -> int:
        """Those that one token goes through; an embedding counts whole."""
        return self.total - self.experts + self.active_experts

    @property
    def active_experts(self) -> int:
        """Parameters of the experts that one token goes through."""
        return self.experts * self.chosen // self.expert_count if self.expert_count else 0

    @property
    def body(self) -> int:
        """Those that every token is multiplied with, experts and the last projection aside."""
        return self.attention + self.mlp + self.routers + self.norms

    @property
    def last(self) -> int:
        """Those of the last projection, which only tokens that are sampled from go through."""
        return self.head or self.embedding


def count(config: Config, shape: Shape) -> Parameters | None:
    """Count a model's parameters; None where its family is not known. Raises Unplannable."""
    family = FAMILIES.get(shape.family)
    if family is None or shape.vocab is None or any(not layer.stored for layer in shape.layers):
        return None
    tied = config.get("tie_word_embeddings")
    table = shape.vocab * shape.hidden
    sparse = _sparse_layers(config, len(shape.layers))
    experts = _experts(config) if sparse else 0
    matrices, biases = _expert(config, shape, family) if sparse else (0, 0)
    dense = len(shape.layers) - sparse
    return Parameters(
        embedding=table,
        head=0 if (family.tied if tied is None else tied) else table,
        attention=sum(_attention(config, family, shape, at) for at in range(len(shape.layers))),
        mlp=dense * _mlp(config, shape, family) if dense else 0,
        experts=sparse * experts * (matrices + biases),
        routers=sparse * experts * (shape.hidden + family.expert_bias),
        norms=(family.norms * len(shape.layers) + 1) * shape.hidden,
        expert_matrices=sparse * experts * matrices,
        expert_count=experts,
        chosen=min(experts, whole(config, "num_experts_per_tok")) if sparse else 0,
    )


def weight_bytes(config: Config, parameters: Parameters, dtype: str) -> tuple[float, float] | None:
    """Return the bytes of all but the experts, and of the experts; None for a quantisation that is not known."""
    each = BYTES[dtype]
    rest = parameters.total - parameters.experts
    quantised: Any = config.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    if method is None:
        return rest * each, parameters.experts * each
    if method == "mxfp4":
        biases = parameters.experts - parameters.expert_matrices
        return rest * each, parameters.expert_matrices * MXFP4_BYTES + biases * each
    if method == "fp8":
        linear = parameters.attention + parameters.mlp
        return (rest - linear) * each + linear, parameters.experts
    return None


def _attention(config: Config, family: Family, shape: Shape, at: int) -> int:
    layer = shape.layers[at]
    queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    told = bool(config.get("attention_bias", shape.family == "gpt_oss"))
    found = shape.hidden * (2 * queries + 2 * keys)
    found += (queries + 2 * keys) * (told if family.qkv_bias is None else family.qkv_bias)
    found += shape.hidden * (told if family.out_bias is None else family.out_bias)
    found += {"no": 0, "head": 2 * layer.head_dim, "full": queries + keys}[family.qk_norm]
    return found + layer.heads * family.sinks


def _mlp(config: Config, shape: Shape, family: Family) -> int:
    inner = whole(config, "intermediate_size")
    biased = bool(config.get("mlp_bias")) if family.mlp_bias is None else family.mlp_bias
    return 3 * shape.hidden * inner + (2 * inner + shape.hidden) * biased


def _expert(config: Config, shape: Shape, family: Family) -> tuple[int, int]:
    """Return the matrices' and the biases' parameters of one expert."""
    inner = whole(config, "moe_intermediate_size" if shape.family == "qwen3_moe" else "intermediate_size")
    return 3 * shape.hidden * inner, (2 * inner + shape.hidden) * family.expert_bias


def _experts(config: Config) -> int:
    return whole(config, "num_experts", absent=whole(config, "num_local_experts", low=0, absent=0))


def _sparse_layers(config: Config, layers: int) -> int:
    """Return how many layers have experts."""
    if not (config.get("num_experts") or config.get("num_local_experts")):
        return 0
    step = whole(config, "decoder_sparse_step", absent=1)
    alone = config.get("mlp_only_layers")
    dense = set(alone) if isinstance(alone, list) and all(isinstance(at, int) for at in alone) else set()
    return sum(at not in dense and (at + 1) % step == 0 for at in range(layers))
