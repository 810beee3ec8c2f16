"""Ways in which a model's folder is not whole, each as a function that spoils a good one in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.folder import INDEX, WEIGHTS

Spoil = Callable[[Path], None]


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file."""
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))


def cut(folder: Path) -> None:
    """Cut the weights off."""
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])


def cut_header(folder: Path) -> None:
    """Cut the weights off within their header."""
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:1000])


def garbage(folder: Path) -> None:
    """Put something else in the place of the weights."""
    (folder / WEIGHTS).write_bytes(b"<html>not found</html>" * 100)


def shards(folder: Path) -> None:
    """Save the weights as two files, of which the second is lost."""
    from safetensors.torch import load_file, save_file

    held = load_file(folder / WEIGHTS)
    names = sorted(held)
    places = {name: f"model-{1 + (place % 2)}-of-2.safetensors" for place, name in enumerate(names)}
    for file in sorted(set(places.values())):
        save_file({name: held[name] for name in names if places[name] == file}, folder / file, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / WEIGHTS).unlink()
    (folder / "model-2-of-2.safetensors").unlink()


def lost_tensor(folder: Path) -> None:
    """Save the weights without one matrix, in a file that is whole."""
    from safetensors.torch import load_file, save_file

    held = load_file(folder / WEIGHTS)
    del held["model.layers.1.self_attn.q_proj.weight"]
    save_file(held, folder / WEIGHTS, {"format": "pt"})


def no_json(folder: Path) -> None:
    """Break the configuration."""
    (folder / "config.json").write_text('{"model_type": "llama",')


def no_type(folder: Path) -> None:
    """Take the architecture's name out of the configuration."""
    edit(folder / "config.json", lambda held: held.pop("model_type"))


def unknown_type(folder: Path) -> None:
    """Name an architecture that nobody knows."""
    edit(folder / "config.json", lambda held: held.update(model_type="lighthouse"))


def other_size(folder: Path) -> None:
    """Make the configuration that of a wider model."""
    edit(folder / "config.json", lambda held: held.update(intermediate_size=96))


def quantised(folder: Path) -> None:
    """Say that the weights are in eight bits."""
    edit(folder / "config.json", lambda held: held.update(quantization_config={"quant_method": "fp8"}))


def large_vocabulary(folder: Path) -> None:
    """Put a tokenizer of more tokens beside the model."""
    edit(folder / "tokenizer.json", lambda held: held["model"]["vocab"].update(lighthouse=300))


def far_special(folder: Path) -> None:
    """Move the token that ends a turn beyond the model's."""

    def move(held: dict[str, Any]) -> None:
        held["model"]["vocab"].pop("<|im_end|>")
        for one in held["added_tokens"]:
            one["id"] = 300 if one["content"] == "<|im_end|>" else one["id"]

    edit(folder / "tokenizer.json", move)


def far_end(folder: Path) -> None:
    """End answers with a token that the model does not have."""
    edit(folder / "generation_config.json", lambda held: held.update(eos_token_id=[2, 267]))


def broken_tokenizer(folder: Path) -> None:
    """Break the tokenizer."""
    (folder / "tokenizer.json").write_text("{}")


def cut_tokenizer(folder: Path) -> None:
    """Cut the tokenizer off."""
    source = folder / "tokenizer.json"
    source.write_bytes(source.read_bytes()[:-10])


AGAIN = "Get the model again: the file is broken or was not copied to its end."
TOGETHER = "Put the files of one model together."
BELONGS = f"and the model's tokens are 0 to 266: it belongs to another model. {TOGETHER}"

BROKEN: dict[str, tuple[Spoil, str]] = {  # found without loading anything; {} is the folder
    "weights cut off": (cut, "{}/model.safetensors has 110,476 bytes, and its header speaks of 110,576. " + AGAIN),
    "header cut off": (cut_header, "{}/model.safetensors is no whole safetensors file (1,000 bytes). " + AGAIN),
    "no weights": (garbage, "{}/model.safetensors is no whole safetensors file (2,200 bytes). " + AGAIN),
    "a shard is missing": (
        shards,
        "{} lacks 1 of 2 weight files (model-2-of-2.safetensors). Get them from where the others are from.",
    ),
    "configuration is no JSON": (
        no_json,
        "{}/config.json holds no JSON object (Input data was truncated). " + AGAIN,
    ),
    "no architecture": (
        no_type,
        "{}/config.json names no model_type: it is not a transformers model's. " + AGAIN,
    ),
    "vocabulary too large": (large_vocabulary, "{}/tokenizer.json has a vocabulary up to token 300, " + BELONGS),
    "special token out of range": (far_special, "{}/tokenizer.json has as its eos token 300, " + BELONGS),
    "end out of range": (far_end, "{}/generation_config.json ends answers with token 267, " + BELONGS),
    "tokenizer broken": (broken_tokenizer, "{}/tokenizer.json is no tokenizer that can be read. " + AGAIN),
    "tokenizer cut off": (
        cut_tokenizer,
        "{}/tokenizer.json holds no JSON object (Input data was truncated). " + AGAIN,
    ),
}

ONCE = (  # one of each kind, which a process is started for
    "weights cut off",
    "a shard is missing",
    "configuration is no JSON",
    "vocabulary too large",
    "special token out of range",
    "tokenizer broken",
    "a matrix is missing",
    "a dtype that a CPU lacks",
)

UNLOADABLE: dict[str, tuple[Spoil, str]] = {  # found by the engine's process
    "a matrix is missing": (
        lost_tensor,
        (
            "The weights in {} lack 1 of those that llama has, such as model.layers.1.self_attn.q_proj.weight: they "
            f"are not whole, or belong to another config.json. {TOGETHER}"
        ),
    ),
    "another model's configuration": (
        other_size,
        (
            "The weights in {} have model.layers.0.mlp.down_proj.weight as [32, 64], and config.json wants [32, 96]: "
            f"they belong to another config.json. {TOGETHER}"
        ),
    ),
    "a dtype that a CPU lacks": (
        quantised,
        (
            "llama has quantised weights (fp8), a dtype that a CPU lacks: it computes in float32. Choose the model's "
            "unquantised weights, or a GPU with --device cuda."
        ),
    ),
}
