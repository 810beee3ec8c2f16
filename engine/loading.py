"""From a local folder to a model: its files checked, its weights in the dtype that the device computes in.

Owns nothing. Rule: what is not whole, not one model's, or not to be paged is refused by name, in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog
import torch
import xxhash
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM

from engine.attention import packed
from engine.attention.dispatch import Attend, refuse_unread
from engine.attention.varlen import HALF
from engine.config import AUTO
from engine.errors import ModelRefused, first_line
from engine.folder import refuse_broken, refuse_tokens
from engine.fused import fuse
from engine.model import PAGED, PagedModel, register
from engine.pageable import refuse_unpaged
from engine.steady import steady

CPU = torch.device("cpu")
_UNLOADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError)

log = structlog.get_logger("engine")


def load(
    path: Path,
    *,
    attend: Attend = packed.attend,
    device: torch.device = CPU,
    kv_cache_dtype: str = AUTO,
    deterministic: bool = False,
) -> PagedModel:
    """Load a local folder. Raises ModelRefused when the layers cannot be paged, or not be `deterministic`."""
    refuse_broken(path)
    config = _config(path)
    text = config.get_text_config()
    refuse_tokens(path, text.vocab_size)
    refuse_unpaged(text)
    _refuse_quantised(config, device)
    dtype = compute_dtype(config, device)
    refuse_unread(kv_cache_dtype, dtype, device)
    register()
    try:
        module, found = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=PAGED,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    except _UNLOADABLE as error:
        raise ModelRefused(f"The weights in {path} cannot be loaded: {first_line(error)}") from error
    _refuse_strange(path, text.model_type, found)
    if device.type != "cpu":  # where each product is a kernel to be launched
        fuse(module)
    if deterministic:
        log.info("deterministic_layers", **steady(module))
    return PagedModel(module.eval().to(device), weights=digest(path), attend=attend, kv_cache_dtype=kv_cache_dtype)


def _config(path: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except _UNLOADABLE as error:
        raise ModelRefused(f"{path / 'config.json'} cannot be used: {first_line(error)}") from error


def _refuse_quantised(config: Any, device: torch.device) -> None:
    """Raise ModelRefused for weights in a dtype that a CPU lacks."""
    quantised = getattr(config, "quantization_config", None)
    if quantised is None or device.type != "cpu":
        return
    method = quantised.get("quant_method") if isinstance(quantised, dict) else getattr(quantised, "quant_method", None)
    raise ModelRefused(
        f"{config.get_text_config().model_type} has quantised weights ({getattr(method, 'value', method)}), a dtype "
        "that a CPU lacks: it computes in float32. Choose the model's unquantised weights, or a GPU with --device cuda."
    )


def _refuse_strange(path: Path, name: str, found: dict[str, Any]) -> None:
    """Raise ModelRefused where weights are not those of the configuration: what lacks would be random."""
    odd = sorted(found["mismatched_keys"])
    if lacking := sorted(set(found["missing_keys"]) - {one[0] for one in odd}):
        raise ModelRefused(
            f"The weights in {path} lack {len(lacking)} of those that {name} has, such as {lacking[0]}: they are not "
            "whole, or belong to another config.json. Put the files of one model together."
        )
    if odd:
        tensor, held, wanted = odd[0]
        raise ModelRefused(
            f"The weights in {path} have {tensor} as {list(held)}, and config.json wants {list(wanted)}: they belong "
            "to another config.json. Put the files of one model together."
        )


def compute_dtype(config: Any, device: torch.device) -> torch.dtype:
    """Return what a model is computed in: float32 on a CPU; on a GPU the configuration's own, where that is half."""
    if device.type == "cpu":
        return torch.float32
    own: torch.dtype | None = getattr(config.get_text_config(), "dtype", None)
    return own if own in HALF else torch.bfloat16


def digest(path: Path) -> str:
    """Return one digest over the names and contents of the weight files and the configuration."""
    total = xxhash.xxh3_128()
    files = sorted([*path.glob("*.safetensors"), path / "config.json"])
    for file in files:
        content = xxhash.xxh3_128()
        with file.open("rb") as stream:
            while part := stream.read(1 << 24):
                content.update(part)
        total.update(file.name.encode() + b"\0" + content.digest())
    return total.hexdigest()
