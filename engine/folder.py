"""Whether a model's folder is whole: configuration, every weight file to its last byte, a tokenizer that fits them.

Pure but for reading; knows no torch, so that the gateway can ask before anything is started. Rule: what is broken is
refused in one line that names the file, what is wrong with it and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ModelRefused

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_HEADER = 100_000_000  # bytes, as the format has it
SPECIALS = ("bos_token", "eos_token", "unk_token")  # those that prompts and answers are made with
AGAIN = "Get the model again: the file is broken or was not copied to its end."


def refuse_broken(folder: Path) -> None:
    """Raise ModelRefused unless configuration and weights are whole and the tokenizer fits them."""
    config = _object(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelRefused(f"{folder / 'config.json'} names no model_type: it is not a transformers model's. {AGAIN}")
    _refuse_missing(folder)
    for shard in sorted(folder.glob("*.safetensors")):
        header(shard)
    text = config.get("text_config")
    vocab = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    if isinstance(vocab, int):
        refuse_tokens(folder, vocab)


def header(shard: Path) -> dict[str, Any]:
    """Return what a safetensors file says it holds. Raises ModelRefused when it does not hold all of that."""
    size = shard.stat().st_size
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(MOST_HEADER, size - 8):
            raise ModelRefused(f"{shard} is no whole safetensors file ({size:,} bytes). {AGAIN}")
        try:
            held = msgspec.json.decode(file.read(length), type=dict[str, dict[str, Any]])
            ends = [int(tensor["data_offsets"][1]) for name, tensor in held.items() if name != "__metadata__"]
        except (msgspec.DecodeError, KeyError, TypeError, IndexError, ValueError) as error:
            raise ModelRefused(f"{shard} has a header that cannot be read. {AGAIN}") from error
    needed = 8 + length + max(ends, default=0)
    if size != needed:
        raise ModelRefused(f"{shard} has {size:,} bytes, and its header speaks of {needed:,}. {AGAIN}")
    return held


def refuse_tokens(folder: Path, vocab: int) -> None:
    """Raise ModelRefused where the tokenizer makes, or an answer ends with, tokens that the model does not have.

    Tokens that were added and are no special ones may lie beyond it: a prompt that has them is refused by itself.
    """
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            ends = _object(folder / name).get("eos_token_id")
            for token in ends if isinstance(ends, list) else [ends]:
                if isinstance(token, int) and not 0 <= token < vocab:
                    _refuse_token(folder / name, "ends answers with token", token, vocab)
    source = folder / "tokenizer.json"
    if not source.is_file():
        return
    ids, added = _tokens(source)
    if (highest := max(ids.values(), default=0)) >= vocab:
        _refuse_token(source, "has a vocabulary up to token", highest, vocab)
    for name, token in _named(folder, ids | added):
        if not 0 <= token < vocab:
            _refuse_token(source, f"has as its {name} token", token, vocab)


def _refuse_missing(folder: Path) -> None:
    """Raise ModelRefused where an index names files that are not there, or where there is neither index nor weights."""
    index = folder / INDEX
    if not index.is_file():
        if (folder / WEIGHTS).is_file():
            return
        raise ModelRefused(
            f"{folder} holds neither {WEIGHTS} nor {INDEX}. Get all of the model's files, or save it again."
        )
    named = _object(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise ModelRefused(f"{index} has no weight_map of file names. {AGAIN}")
    files = sorted(set(named.values()))
    lacking = [name for name in files if not (folder / name).is_file()]
    if lacking:
        raise ModelRefused(
            f"{folder} lacks {len(lacking)} of {len(files)} weight files ({', '.join(lacking[:3])}"
            f"{', …' if len(lacking) > len(lacking[:3]) else ''}). Get them from where the others are from."
        )
    held: set[str] = set()
    for name in files:
        held |= header(folder / name).keys()
    if absent := sorted(named.keys() - held):
        raise ModelRefused(f"{folder} lacks {len(absent)} tensors that {INDEX} names, such as {absent[0]}. {AGAIN}")


def _tokens(source: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of a tokenizer's own vocabulary, and those of what was added to it."""
    told = _object(source)
    try:
        added = {str(one["content"]): int(one["id"]) for one in told.get("added_tokens") or ()}
        vocab = told["model"]["vocab"]
        ids = vocab.items() if isinstance(vocab, dict) else ((piece[0], place) for place, piece in enumerate(vocab))
        own = {str(piece): int(place) for piece, place in ids}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelRefused(f"{source} is no tokenizer that can be read. {AGAIN}") from error
    extra = set(added.values())
    return {piece: place for piece, place in own.items() if place not in extra}, added


def _named(folder: Path, ids: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Return the special tokens that a tokenizer's configuration names, with their ids."""
    source = folder / "tokenizer_config.json"
    told = _object(source) if source.is_file() else {}
    for name in SPECIALS:
        token = told.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and content in ids:
            yield name.removesuffix("_token"), ids[content]


def _object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ModelRefused when there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read: {error.strerror or error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelRefused(f"{path} holds no JSON object ({error}). {AGAIN}") from error


def _refuse_token(path: Path, does: str, token: int, vocab: int) -> None:
    raise ModelRefused(
        f"{path} {does} {token}, and the model's tokens are 0 to {vocab - 1}: it belongs to another model. "
        "Put the files of one model together."
    )
