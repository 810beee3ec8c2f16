"""A model's configuration as keys and values see it: layers, heads, windows. Pure: knows no torch and no files.

Rule: what the engine cannot page is refused by name; a field that is wrong is refused by name, with its range. Layers
that differ in shape, or read the keys and values of others, are counted, though the bundled engine takes none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.planning.errors import Unplannable

Config = Mapping[str, Any]

FULL: Final = ("full_attention", "attention")
SLIDING: Final = "sliding_attention"
EXTENDED_ROPE: Final = ("dynamic", "longrope", "su")  # their frequencies depend on how long the prompt is
STATES: Final = ("ssm_cfg", "mamba_d_state", "state_size", "time_mix_extra_dim", "linear_num_value_heads")
MOST: Final[Mapping[str, int]] = {"num_hidden_layers": 10_000}
LARGEST: Final = 1 << 24  # of any other size in a configuration
SHOWN: Final = 60  # characters of a wrong value that a message repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model's configuration, and what is known of its weights besides."""

    name: str
    config: Config
    bytes_on_disk: int | None = None  # of a folder's safetensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The attention of one layer."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None  # tokens that a token sees, itself included; None: all before it
    stored: bool = True  # False: it reads the keys and values of an earlier layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a model its keys and values depend on."""

    family: str
    layers: tuple[Layer, ...]
    hidden: int
    vocab: int | None
    max_len: int | None  # tokens
    dtype: str | None  # as the configuration names it


def shape_of(config: Config) -> Shape:
    """Read a text model's configuration. Raises Unplannable."""
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        raise Unplannable("model_type: missing; a transformers configuration names its family there")
    _refuse_unpaged(family, config)
    count, heads = whole(config, "num_hidden_layers"), whole(config, "num_attention_heads")
    kv_heads = _kv_heads(config, heads)
    hidden = whole(config, "hidden_size")
    head_dim = whole(config, "head_dim", absent=max(1, hidden // heads))
    if whole(config, "v_head_dim", absent=head_dim) != head_dim:
        raise Unplannable(f"v_head_dim: {family} has values of another size than its keys ({head_dim}): not paged")
    windows = _windows(config, count)
    shared = whole(config, "num_kv_shared_layers", low=0, absent=0)
    if shared >= count:
        raise Unplannable(f"num_kv_shared_layers: expected less than num_hidden_layers ({count}), not {shared}")
    layers = []
    for at in range(count):
        own = _own(config, at)
        layers.append(
            Layer(
                heads=heads,
                kv_heads=whole(own, "num_key_value_heads", absent=kv_heads),
                head_dim=whole(own, "head_dim", absent=head_dim),
                window=windows[at],
                stored=at < count - shared,
            )
        )
    return Shape(
        family=family,
        layers=tuple(layers),
        hidden=hidden,
        vocab=whole(config, "vocab_size") if config.get("vocab_size") is not None else None,
        max_len=whole(config, "max_position_embeddings") if config.get("max_position_embeddings") else None,
        dtype=_dtype(config),
    )


def whole(config: Config, field: str, *, low: int = 1, absent: int | None = None) -> int:
    """Return a whole number of a configuration, or `absent` where it has none. Raises Unplannable."""
    value = config.get(field)
    if value is None:
        if absent is None:
            raise Unplannable(f"{field}: missing from the configuration")
        return absent
    most = MOST.get(field, LARGEST)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= most:
        raise Unplannable(f"{field}: expected a whole number from {low} to {most:,}, not {repr(value)[:SHOWN]}")
    return value


def _own(config: Config, at: int) -> Config:
    """Return what a configuration says of one layer alone."""
    overrides = config.get("per_layer_config")
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise Unplannable(f"per_layer_config: expected an object, not {repr(overrides)[:SHOWN]}")
    own = overrides.get(f"{at:02}", overrides.get(str(at), {}))
    if not isinstance(own, Mapping):
        raise Unplannable(f"per_layer_config.{at:02}: expected an object, not {repr(own)[:SHOWN]}")
    return own


def _kv_heads(config: Config, heads: int) -> int:
    if config.get("num_key_value_heads") is None and config.get("multi_query") is True:
        return whole(config, "num_kv_heads", absent=heads) if config.get("new_decoder_architecture") else 1
    kv_heads = whole(config, "num_key_value_heads", absent=heads)
    if kv_heads > heads or heads % kv_heads:
        raise Unplannable(f"num_key_value_heads: expected a divisor of num_attention_heads ({heads}), not {kv_heads}")
    return kv_heads


def _windows(config: Config, count: int) -> list[int | None]:
    """Return each layer's window."""
    kinds = config.get("layer_types")
    used = config.get("use_sliding_window", not str(config.get("model_type")).startswith("qwen"))  # Qwen's default: no
    slides = config.get("sliding_window") is not None and used is not False
    window = whole(config, "sliding_window") if slides else None
    if kinds is None:
        first = whole(config, "max_window_layers", low=0, absent=0)  # Qwen's: layers from this one on slide
        return [window if at >= first else None for at in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count:
        raise Unplannable(f"layer_types: expected a list of num_hidden_layers ({count}) kinds")
    if SLIDING in kinds and window is None:
        raise Unplannable("sliding_window: missing, but layer_types has sliding layers")
    return [window if kind == SLIDING else None for kind in kinds]


def _refuse_unpaged(family: str, config: Config) -> None:
    """Raise Unplannable for layers whose state is not plain keys and values of earlier tokens."""
    kinds = config.get("layer_types")
    odd = sorted({str(kind) for kind in kinds} - {*FULL, SLIDING}) if isinstance(kinds, list) else []
    if odd:
        raise Unplannable(
            f"layer_types: {family} has {', '.join(odd)[:SHOWN]} layers: their state cannot be cut at a token, so a "
            "prefix cannot be shared"
        )
    if config.get("kv_lora_rank"):
        raise Unplannable(f"kv_lora_rank: {family} uses latent attention (MLA), which is not paged")
    if config.get("is_encoder_decoder"):
        raise Unplannable(f"is_encoder_decoder: {family} is no decoder alone, which is all that is paged")
    for state in STATES:
        if config.get(state):
            raise Unplannable(f"{state}: {family} has state-space or linear-attention layers, which cannot be paged")
    extended = sorted(_rope_kinds(config) & set(EXTENDED_ROPE))
    if extended:
        raise Unplannable(
            f"rope_parameters: {family} rescales its positions with the length of the prompt ({', '.join(extended)} "
            "RoPE): cached keys of a short prompt would be wrong in a longer one"
        )


def _rope_kinds(config: Config) -> set[str]:
    kinds: set[str] = set()
    for field in ("rope_parameters", "rope_scaling"):
        told = config.get(field)
        if isinstance(told, Mapping):
            for part in (told, *(value for value in told.values() if isinstance(value, Mapping))):
                kinds.update(str(part[key]) for key in ("rope_type", "type") if part.get(key) is not None)
    return kinds


def _dtype(config: Config) -> str | None:
    for field in ("dtype", "torch_dtype"):
        told = config.get(field)
        if told is not None:
            return str(told).removeprefix("torch.")[:SHOWN]
    return None
