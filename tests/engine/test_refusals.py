"""What cannot be served is refused at start, in one line that says what to do, by the engine's own process."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import ModelRefused
from engine.folder import refuse_broken
from engine.kv_tensors import KVLayout, Room, plan_blocks
from engine.loading import load
from engine.memory import Card, cpu_room, gpu_room, largest_step
from engine.worker import build_core
from tests.engine.spoilt import BROKEN, ONCE, UNLOADABLE, Spoil, edit, shards
from tests.tiny_model import save_tiny_model

GIB = 1 << 30
TINY = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype=torch.float32)  # 256 bytes a token
CARD = Card(total=80 * GIB, free_before=79 * GIB, free_after=62 * GIB, step=2 * GIB)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, as it should be."""
    return save_tiny_model(tmp_path_factory.mktemp("whole") / "tiny")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    shutil.copytree(whole, tmp_path / "tiny")
    return tmp_path / "tiny"


def config(folder: Path, **fields: Any) -> EngineConfig:
    """Return the settings of an engine for that folder."""
    return replace(EngineConfig(model="tiny", model_path=str(folder), threads=1, kv_bytes=1 << 22), **fields)


async def refusal(config: EngineConfig) -> str:
    """Start an engine process and return why it refuses, having asked for one start and no more."""
    client = EngineClient(config)
    await client.start()
    try:
        with pytest.raises(ModelRefused) as refused:
            await client.ready()
    finally:
        await client.stop()
    assert client.restarts == 0
    return str(refused.value)


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_seen_before_anything_is_loaded(what: str, folder: Path) -> None:
    """The line names the file, what is wrong with it and what to do."""
    spoil, said = BROKEN[what]
    refuse_broken(folder)
    spoil(folder)
    with pytest.raises(ModelRefused) as refused:
        refuse_broken(folder)
    assert str(refused.value) == said.format(folder)


@pytest.mark.parametrize("what", UNLOADABLE)
def test_what_cannot_be_loaded_is_refused(what: str, folder: Path) -> None:
    """Weights that the configuration does not describe are refused by name: nothing that lacks is made up."""
    spoil, said = UNLOADABLE[what]
    spoil(folder)
    with pytest.raises(ModelRefused) as refused:
        load(folder)
    assert str(refused.value) == said.format(folder)


@pytest.mark.parametrize("what", ONCE)
async def test_an_engine_refuses_it_once(what: str, folder: Path) -> None:
    """The engine's process says the same and is not started again."""
    spoil, said = (BROKEN | UNLOADABLE)[what]
    spoil(folder)
    assert await refusal(config(folder)) == said.format(folder)


LIMITS = [
    (
        {"kv_bytes": 256 * 1000},
        (
            "Keys and values of one sequence of 2048 tokens (the model's own window) need 524288 bytes, and 256000 "
            "bytes are there for them (--kv-bytes). Give --max-model-len 992 or less or --kv-bytes 524288 or more."
        ),
    ),
    (
        {"kv_bytes": 256 * 1000, "max_model_len": 1001, "block_tokens": 10},
        (
            "Keys and values of one sequence of 1001 tokens (--max-model-len) need 258560 bytes, and 256000 bytes are "
            "there for them (--kv-bytes). Give --max-model-len 1000 or less or --kv-bytes 258560 or more."
        ),
    ),
    ({"max_model_len": 2049}, "--max-model-len 2049 is above the model's own window of 2048 tokens."),
    ({"device": "cuda:3", "block_tokens": 256}, "--device cuda:3: torch {} finds no GPU here. Use --device cpu."),
]


@pytest.mark.parametrize(("fields", "said"), LIMITS)
def test_limits_that_cannot_be_kept_are_refused(fields, said, whole: Path) -> None:
    """The numbers stand in the line, with the values that would do."""
    with pytest.raises(ModelRefused) as refused:
        build_core(config(whole, **fields))
    assert str(refused.value) == said.format(torch.__version__)


@pytest.mark.parametrize(("fields", "said"), [LIMITS[0], LIMITS[-1]])
async def test_an_engine_refuses_limits_once(fields, said, whole: Path) -> None:
    """A pool that is too small, and a device that is not there, end the process with the same line."""
    assert await refusal(config(whole, **fields)) == said.format(torch.__version__)


@pytest.mark.parametrize(
    ("fields", "card"),
    [
        ({"kv_bytes": 256 * 1000, "max_model_len": 992}, (992, 62, 62 * 16 * 256)),
        ({"kv_bytes": 524_288}, (2048, 128, 524_288)),
    ],
)
def test_the_values_that_a_refusal_names_are_taken(fields, card, whole: Path) -> None:
    """An engine starts with the longest sequence, and with the least memory, that the refusals above name."""
    ready = build_core(config(whole, **fields)).card
    assert (ready.max_model_len, ready.blocks, ready.kv_bytes) == card


def test_a_pool_without_a_block_names_the_memory_alone() -> None:
    """Where not even a block fits, no length would do."""
    with pytest.raises(ModelRefused) as refused:
        plan_blocks(TINY, Room(4095, "--kv-bytes"), block_tokens=16, max_model_len=64, window=True)
    assert str(refused.value) == (
        "Keys and values of one sequence of 64 tokens (the model's own window) need 16384 bytes, and 4095 bytes are "
        "there for them (--kv-bytes). Give --kv-bytes 16384 or more."
    )
    assert plan_blocks(TINY, Room(16_384, "--kv-bytes"), block_tokens=16, max_model_len=64) == 4


def test_a_cpu_gives_a_quarter_of_what_is_free() -> None:
    """Four GiB at most, unless the operator names a number."""
    assert cpu_room(None, free=8 * GIB).size == 2 * GIB
    assert cpu_room(None, free=80 * GIB).size == 4 * GIB
    assert cpu_room(9 * GIB, free=8 * GIB) == Room(9 * GIB, "--kv-bytes")


def test_a_gpu_gives_its_share_less_weights_and_a_step() -> None:
    """Of 0.92 of the whole memory, what was loaded and what the largest step takes are not for keys and values."""
    room = gpu_room("cuda", None, 0.92, CARD)
    assert room.size == int(80 * GIB * 0.92) - 17 * GIB - 2 * GIB
    assert gpu_room("cuda", None, 0.2, CARD).size == 0
    assert gpu_room("cuda", 60 * GIB, 0.2, CARD) == Room(60 * GIB, "--kv-bytes")
    with pytest.raises(ModelRefused) as refused:
        plan_blocks(TINY, gpu_room("cuda", None, 0.2, CARD), block_tokens=256, max_model_len=512)
    assert str(refused.value) == (
        "Keys and values of one sequence of 512 tokens (--max-model-len) need 131072 bytes, and 0 bytes are there for "
        "them (--gpu-memory-utilization 0.2 of 80.0 GiB, less 19.0 GiB for weights and a step). Give --kv-bytes 131072 "
        "or more or a larger --gpu-memory-utilization."
    )


def test_memory_that_others_hold_is_not_promised() -> None:
    """Neither a share nor a number of bytes beyond what is free is taken; the line has the numbers."""
    with pytest.raises(ModelRefused) as refused:
        gpu_room("cuda:1", None, 0.99, CARD)
    assert str(refused.value) == (
        "--gpu-memory-utilization 0.99 of cuda:1 is 79.2 GiB, and 79.0 GiB of its 80.0 GiB were free at start. Give "
        "0.98 or less, or end what else runs there."
    )
    with pytest.raises(ModelRefused) as refused:
        gpu_room("cuda:1", 61 * GIB, 0.92, CARD)
    assert str(refused.value) == (
        f"--kv-bytes {61 * GIB}: cuda:1 has 60.0 GiB left beside weights and the largest step. Give less, a smaller "
        "--step-tokens, or free the GPU."
    )


def test_the_largest_step_can_be_taken(whole: Path) -> None:
    """A step of more tokens than the model's window, with every row's logits, runs and says what its pool took."""
    assert largest_step(load(whole), tokens=2050, wanted=272, block_tokens=16) == 129 * 16 * 256


def test_a_folder_of_shards_is_whole(folder: Path) -> None:
    """Two files that an index names are one model, and a tensor that is in none of them is missed."""
    lost = folder / "model-2-of-2.safetensors"
    shards(folder)
    first = folder / "model-1-of-2.safetensors"
    lost.write_bytes(first.read_bytes())
    with pytest.raises(ModelRefused, match=r"lacks \d+ tensors that model.safetensors.index.json names, such as "):
        refuse_broken(folder)


@pytest.mark.parametrize("spoil", [spoil for spoil, _ in BROKEN.values()])
def test_a_tokenizer_that_adds_more_than_it_needs_is_taken(spoil: Spoil, folder: Path) -> None:
    """An added token beyond the model's, which nothing is made with, is no reason to refuse; what is broken is."""
    edit(
        folder / "tokenizer.json",
        lambda held: held["added_tokens"].append(held["added_tokens"][0] | {"id": 267, "content": "<image>"}),
    )
    refuse_broken(folder)
    spoil(folder)
    with pytest.raises(ModelRefused):
        refuse_broken(folder)
