"""From what an operator names to a model's configuration: a known name, a JSON file, a folder, a hub id. No weights.

Rule: a configuration that says all by itself is taken as it is; for any other, transformers' classes are asked for
their defaults, in a process of its own (`engine.defaults`), so that torch never comes in here.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.errors import ModelRefused
from engine.weights import DEFAULT_MODEL, HUB_ID, hub_refusals
from gateway.planning.errors import Unplannable
from gateway.planning.shape import Config, Found

LARGEST_FILE: Final = 8 << 20  # bytes of a configuration
PATIENCE_S: Final = 120  # for transformers to be imported
SAID: Final = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
)
NEEDS: Final = {  # by family, what else a configuration must say, since the class's default for it is no plain absence
    "llama": (),
    "gemma": (),
    "granite": (),
    "olmo2": (),
    "mistral": ("sliding_window",),
    "mixtral": ("sliding_window", "num_local_experts", "num_experts_per_tok"),
    "phi3": ("sliding_window",),
    "qwen2": ("use_sliding_window",),
    "qwen3": ("use_sliding_window",),
    "qwen3_moe": ("use_sliding_window", "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "gemma2": ("sliding_window", "layer_types"),
    "gemma3_text": ("sliding_window", "layer_types"),
    "gpt_oss": ("sliding_window", "layer_types", "num_local_experts", "num_experts_per_tok"),
    "smollm3": ("sliding_window", "layer_types"),
}
HEADED: Final = frozenset({"llama", "mistral", "qwen2"})  # whose head size follows from the others where it is not said
KNOWN: Final[Mapping[str, Config]] = {
    DEFAULT_MODEL: {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
        "dtype": "float32",
    },
    "gemma3-270m": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "vocab_size": 262_144,
        "max_position_embeddings": 32_768,
        "sliding_window": 512,
        "layer_types": 3 * [*5 * ["sliding_attention"], "full_attention"],
        "attention_bias": False,
        "tie_word_embeddings": True,
        "dtype": "float32",
    },
}


def find(model: str) -> Found:
    """Find a configuration. Raises Unplannable."""
    if model in KNOWN:
        return Found(name=model, config=KNOWN[model])
    path = Path(model).expanduser()
    if model and path.is_dir():
        return Found(name=path.resolve().name, config=_read(path / "config.json"), bytes_on_disk=_on_disk(path))
    if path.suffix == ".gguf":
        raise Unplannable(
            f"{model}: a plan is made of a config.json, not of weights; name the folder that `keepwarm serve --model "
            f"{path.name}` makes of it in the cache, or a configuration of your own"
        )
    if path.is_file():
        return Found(name=path.stem, config=_read(path))
    if HUB_ID.fullmatch(model):
        return Found(name=model, config=_read(_of_hub(model)))
    raise Unplannable(
        f"There is no model {model[:200]!r}: it is none of the known names ({', '.join(KNOWN)}), no JSON file, no "
        "folder with a config.json and no hub id such as HuggingFaceTB/SmolLM2-135M-Instruct"
    )


def _read(file: Path) -> Config:
    """Return the configuration of the text model in a file, with nothing left unsaid. Raises Unplannable."""
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise Unplannable(f"{file}: larger than {LARGEST_FILE >> 20} MiB, so no configuration")
        told = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise Unplannable(f"{file}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unplannable(f"{file}: no JSON: {error}") from error
    if not isinstance(told, dict):
        raise Unplannable(f"{file}: expected a JSON object, as transformers writes configurations")
    return told if _says_all(told) else _filled(told, file)


def _says_all(config: Config) -> bool:
    family = config.get("model_type")
    if not isinstance(family, str) or family not in NEEDS or "text_config" in config:
        return False
    needed = SAID if family in HEADED else (*SAID, "head_dim")
    return all(config.get(name) is not None for name in needed) and all(name in config for name in NEEDS[family])


def _filled(config: Config, file: Path) -> Config:
    """Ask transformers for what a configuration leaves to its class. Raises Unplannable."""
    if not isinstance(config.get("model_type"), str):
        raise Unplannable(f"{file}: model_type: missing; a transformers configuration names its family there")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "engine.defaults"],
            env=environment,
            input=msgspec.json.encode(config),
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unplannable(f"{file}: transformers did not read it within {PATIENCE_S} s") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        raise Unplannable(f"{file}: transformers cannot read it: {words[-1].strip()[:300]}")
    return msgspec.json.decode(done.stdout, type=dict[str, Any])


def _of_hub(model: str) -> Path:
    """Return a model's config.json, from Hugging Face's own cache where it is there. Raises Unplannable."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache  # noqa: PLC0415 - only hub ids need it

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would tell of each try
    try:
        with hub_refusals(model, instead="its config.json as a file"):
            cached = try_to_load_from_cache(model, "config.json")
            return Path(cached if isinstance(cached, str) else hf_hub_download(model, "config.json"))
    except ModelRefused as error:
        raise Unplannable(str(error)) from error


def _on_disk(folder: Path) -> int | None:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
