"""A plan as one object: the model, its keys and values, what fits, what stays resident, how fast. Pure.

Rule: a number that is not known is None, never zero; what a reader has to know of a number stands in `notes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gateway.planning import capacity, kv
from gateway.planning.errors import Unplannable
from gateway.planning.machines import MACHINES
from gateway.planning.parameters import Parameters, count, weight_bytes
from gateway.planning.roofline import Cost, Model, Roofs, break_even, prefill, step
from gateway.planning.shape import Found, Shape, shape_of
from gateway.planning.wanted import AUTO, Wanted
from prefix_store.classes import CLASSES

Json = dict[str, Any]

USUAL_LENGTH: Final = 4096  # tokens, where no length is given and the model's window is not shorter
USUAL_PREFIX: Final = 1024
DEFAULT_KV_BYTES: Final = 4 << 30  # the engine's own ceiling on a CPU, where it is given no number
BATCHES: Final = tuple(1 << power for power in range(9))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is planned for, with everything settled."""

    shape: Shape
    parameters: Parameters | None
    dtype: str
    kv_dtype: str
    length: int
    prefix: int
    dense_bytes: float | None  # weights that every token needs, the input's embedding included
    expert_bytes: float
    notes: list[str]

    @property
    def weight_bytes(self) -> int | None:
        return None if self.dense_bytes is None else round(self.dense_bytes + self.expert_bytes)


def planned(found: Found, wanted: Wanted) -> Json:
    """Make the plan of a model. Raises Unplannable."""
    subject = _settled(found, wanted)
    pool_bytes, told_from = _pool(subject, wanted)
    per_token = kv.bytes_per_token(subject.shape.layers, subject.kv_dtype)
    pool = pool_bytes // (per_token * wanted.block_tokens)
    fits = _fits(subject, wanted, pool, pool_bytes)
    if not fits["sequences"]:
        needed = kv.kept_bytes(subject.shape, subject.kv_dtype, subject.length, wanted.block_tokens)
        subject.notes.append(
            f"This memory holds no sequence of {subject.length:,} tokens: it would take {needed:,} bytes, or a "
            f"--length of {pool * wanted.block_tokens:,} at most."
        )
    return {
        "model": found.name,
        **_about(subject),
        "kv": _keys_and_values(subject, wanted, pool_bytes),
        "capacity": {"kv_bytes": pool_bytes, "from": told_from, "blocks": pool, **fits},
        "retention": _retention(subject, wanted, pool),
        "machine": _machine(subject, wanted, fits["sequences"]),
        "notes": subject.notes,
    }


def _settled(found: Found, wanted: Wanted) -> _Subject:
    shape = shape_of(found.config)
    notes: list[str] = []
    dtype = _dtype(shape, wanted, notes)
    length, prefix = _lengths(shape, wanted)
    fewest = min(layer.kv_heads for layer in shape.layers)
    if wanted.tensor_parallel > fewest:
        raise Unplannable(f"--tensor-parallel: expected 1 to {fewest}, the KV heads: beyond, K and V are held twice")
    if wanted.tensor_parallel > 1:
        notes.append("What devices tell each other takes no time here.")
    parameters = count(found.config, shape)
    dense, experts = _weights(found, parameters, dtype, wanted.weight_bytes, notes)
    return _Subject(
        shape=shape,
        parameters=parameters,
        dtype=dtype,
        kv_dtype=dtype if wanted.kv_cache_dtype == AUTO else wanted.kv_cache_dtype,
        length=length,
        prefix=prefix,
        dense_bytes=dense,
        expert_bytes=experts,
        notes=notes,
    )


def _dtype(shape: Shape, wanted: Wanted, notes: list[str]) -> str:
    if wanted.dtype != AUTO:
        return wanted.dtype
    if shape.dtype is None:
        notes.append("The configuration names no dtype: float32 is reckoned with.")
        return "float32"
    dtype = kv.SPELLINGS.get(shape.dtype, shape.dtype)
    if dtype not in kv.BYTES:
        raise Unplannable(f"dtype: expected one of {', '.join(kv.BYTES)}, not {dtype!r}; or give --dtype")
    return dtype


def _lengths(shape: Shape, wanted: Wanted) -> tuple[int, int]:
    """Return the tokens of a sequence and of a prefix. Raises Unplannable."""
    length = wanted.length or min(USUAL_LENGTH, shape.max_len or USUAL_LENGTH)
    if shape.max_len is not None and length > shape.max_len:
        raise Unplannable(f"--length: expected a whole number from 2 to {shape.max_len:,}, the model's window")
    prefix = wanted.prefix_tokens or min(USUAL_PREFIX, length // 2)
    if not wanted.block_tokens <= prefix < length:
        raise Unplannable(
            f"--prefix-tokens: expected a whole number from {wanted.block_tokens} (one block) to {length - 1:,} (less "
            f"than --length), not {prefix}"
        )
    return length, prefix


def _weights(
    found: Found, parameters: Parameters | None, dtype: str, given: int | None, notes: list[str]
) -> tuple[float | None, float]:
    """Return the bytes of all weights but the experts', and of the experts'; what is given or lies there wins."""
    counted = None if parameters is None else weight_bytes(found.config, parameters, dtype)
    if counted is not None:
        scale = 1.0 if given is None else given / sum(counted)
        return counted[0] * scale, counted[1] * scale
    if parameters is None:
        notes.append("The parameters of this family are not counted here.")
    given = found.bytes_on_disk if given is None else given
    if given is None:
        notes.append("The size of its weights is not known; --weight-bytes says it.")
        return None, 0.0
    of_experts = parameters.experts / parameters.total if parameters is not None else 0.0
    return given * (1.0 - of_experts), given * of_experts


def _pool(subject: _Subject, wanted: Wanted) -> tuple[int, str]:
    """Return the bytes for keys and values, and where that number is from. Raises Unplannable."""
    if wanted.kv_bytes is not None:
        return wanted.kv_bytes, "--kv-bytes"
    memory = wanted.memory
    if memory is None and wanted.device is not None:
        memory = MACHINES[wanted.device].memory
    if memory is None:
        return DEFAULT_KV_BYTES, "the engine's own ceiling on a CPU; --kv-bytes or --gpu-memory for another"
    weights = subject.weight_bytes
    if weights is None:
        raise Unplannable(
            "--weight-bytes: not known for this model; without it, what --gpu-memory leaves is not either"
        )
    memory *= wanted.tensor_parallel
    usable = int(memory * wanted.utilization)
    if usable <= weights:
        raise Unplannable(
            f"--gpu-memory: {memory:,} bytes at {wanted.utilization:g} are {usable:,}, and the weights alone take "
            f"{weights:,} in {subject.dtype}: expected more than {int(weights / wanted.utilization):,}, fewer bytes a "
            "weight, or --tensor-parallel"
        )
    subject.notes.append("What activations and the runtime take of the memory is not counted.")
    return usable - weights, f"{memory:,} bytes x {wanted.utilization:g} - {weights:,} of weights"


def _fits(subject: _Subject, wanted: Wanted, pool: int, pool_bytes: int) -> Json:
    each = kv.blocks_of(subject.length, wanted.block_tokens)
    windowed = kv.windowed_bytes(subject.shape, subject.kv_dtype, subject.length, wanted.block_tokens)
    return {
        "tokens": pool * wanted.block_tokens,
        "sequences": capacity.sequences(pool, each),
        "sequences_sharing_prefix": capacity.sharing(pool, each, subject.prefix // wanted.block_tokens),
        "sequences_windowed": pool_bytes // windowed,
    }


def _about(subject: _Subject) -> Json:
    layers, parameters = subject.shape.layers, subject.parameters
    return {
        "family": subject.shape.family,
        "layers": len(layers),
        "sliding_layers": sum(layer.window is not None for layer in layers),
        "window": next((layer.window for layer in layers if layer.window is not None), None),
        "layers_without_own_kv": sum(not layer.stored for layer in layers),
        "heads": layers[0].heads,
        "kv_heads": sorted({layer.kv_heads for layer in layers}),
        "head_dim": sorted({layer.head_dim for layer in layers}),
        "attention": kv.kind_of(subject.shape),
        "max_len": subject.shape.max_len,
        "dtype": subject.dtype,
        "kv_cache_dtype": subject.kv_dtype,
        "parameters": None if parameters is None else parameters.total,
        "active_parameters": None if parameters is None else parameters.active,
        "weight_bytes": subject.weight_bytes,
    }


def _keys_and_values(subject: _Subject, wanted: Wanted, pool_bytes: int) -> Json:
    shape, dtype = subject.shape, subject.kv_dtype
    own = kv.bytes_per_token(shape.layers, dtype)
    blocks = kv.blocks_of(subject.length, wanted.block_tokens)
    return {
        "bytes_per_token": own,
        "block_tokens": wanted.block_tokens,
        "bytes_per_block": own * wanted.block_tokens,
        "length": subject.length,
        "sequence_bytes": kv.kept_bytes(shape, dtype, subject.length, wanted.block_tokens),
        "sequence_bytes_windowed": kv.windowed_bytes(shape, dtype, subject.length, wanted.block_tokens),
        "variants": [
            {
                "heads": one.heads,
                "kv_heads": one.kv_heads,
                "dtype": one.dtype,
                "own": one.own,
                "bytes_per_token": one.bytes_per_token,
                "of_own": one.bytes_per_token / own,
                "sequences": capacity.sequences(pool_bytes // (one.bytes_per_token * wanted.block_tokens), blocks),
            }
            for one in kv.variants(shape, dtype)
        ],
    }


def _retention(subject: _Subject, wanted: Wanted, pool: int) -> Json:
    blocks = subject.prefix // wanted.block_tokens
    budget = int(wanted.promise_budget * pool)
    rows = []
    for klass, ttl_s in CLASSES.lengths_s.items():
        life_s = ttl_s + wanted.used_for_s
        promised, held = (
            capacity.steady(rate=wanted.rate * wanted.new_share, life_s=life_s, room=room // blocks)
            for room in (budget, pool)
        )
        rows.append(
            {
                "class": klass,
                "life_s": life_s,
                "resident": held.resident,
                "peak": held.peak,
                "blocks": held.peak * blocks,
                "promised": {**_steady(promised), "kept_share": promised.kept_share},
                "held": {**_steady(held), "lives_s": held.lives_s},
            }
        )
    return {
        "prefix_tokens": subject.prefix,
        "kept_tokens": blocks * wanted.block_tokens,
        "rate": wanted.rate,
        "new_share": wanted.new_share,
        "used_for_s": wanted.used_for_s,
        "promise_budget": wanted.promise_budget,
        "classes": rows,
    }


def _steady(steady: capacity.Steady) -> Json:
    return {"room": steady.room, "verdict": steady.verdict, "most_new_per_s": steady.most_rate}


def _machine(subject: _Subject, wanted: Wanted, sequences: int) -> Json | None:
    preset = None if wanted.device is None else MACHINES[wanted.device]
    flops = wanted.flops or (preset.of(subject.dtype) if preset else None)
    bandwidth = wanted.bandwidth or (preset.bandwidth if preset else None)
    if preset is not None and flops is None:
        raise Unplannable(f"--device {wanted.device}: no datasheet number for {subject.dtype}; give --flops")
    if flops is None or bandwidth is None:
        return None
    if subject.parameters is None or subject.dense_bytes is None:
        subject.notes.append("Without the parameters there is no roofline.")
        return None
    kept = subject.parameters
    looked_up = subject.dense_bytes * kept.embedding / (kept.total - kept.experts) if kept.head else 0.0
    model = Model(
        parameters=kept,
        dense_bytes=subject.dense_bytes - looked_up,
        expert_bytes=subject.expert_bytes,
        layers=subject.shape.layers,
        kv_dtype=subject.kv_dtype,
    )
    flops, bandwidth = flops * wanted.tensor_parallel, bandwidth * wanted.tensor_parallel
    roofs = Roofs(flops=flops, bandwidth=bandwidth)
    cold = prefill(model, roofs, new=subject.length, past=0, chunk=wanted.step_tokens)
    warm = prefill(model, roofs, new=subject.length - subject.prefix, past=subject.prefix, chunk=wanted.step_tokens)
    past = subject.length - 1
    return {
        "device": wanted.device,
        "devices": wanted.tensor_parallel,
        "source": preset.source if preset else "as given",
        "flops": flops,
        "bandwidth": bandwidth,
        "prefill": [
            {"read": 0, "computed": subject.length, **_cost(cold)},
            {"read": subject.prefix, "computed": subject.length - subject.prefix, **_cost(warm)},
        ],
        "decode": [
            {"batch": batch, "fits": batch <= sequences, "tokens_per_s": batch / cost.seconds, **_cost(cost)}
            for batch in BATCHES
            for cost in (step(model, roofs, new=1, past=past, batch=batch),)
        ],
        "break_even_batch": break_even(model, roofs, past=past),
        "break_even_batch_empty": break_even(model, roofs, past=0),
    }


def _cost(cost: Cost) -> Json:
    return {
        "seconds": cost.seconds,
        "compute_share": cost.compute_s / cost.seconds,
        "memory_share": cost.memory_s / cost.seconds,
        "bound": cost.bound,
    }
