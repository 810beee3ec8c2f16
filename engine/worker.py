"""The engine process: one loop around the synchronous core.

Owns the socket and the process. Started by `engine.client` as `python -m engine.worker SOCKET`, with the configuration
as JSON on standard input, which then stays open: when it closes, the parent is gone and so is the worker.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

import msgspec
import structlog
import torch
import transformers
import zmq

from engine import messages
from engine.attention.dispatch import attention_for, usable
from engine.attention.varlen import Varlen
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ModelRefused
from engine.grammar import Compiler
from engine.graphs import DecodeGraphs
from engine.kv_tensors import Room, plan_blocks
from engine.loading import load
from engine.memory import free_bytes, room_of
from engine.messages import ModelCard, StartFailed
from engine.model import PagedModel
from engine.runner import Runner
from engine.self_test import SMALL_BLOCK, self_test
from engine.steady_test import steady_test

IDLE_POLL_MS = 250  # how often an idle engine frees what has expired
COMPILING_POLL_MS = 5  # how often an otherwise idle engine looks whether a grammar is compiled

log = structlog.get_logger("engine")


def build_core(config: EngineConfig) -> EngineCore:
    """Load, test and size everything. Raises ModelRefused with what to do."""
    torch.set_num_threads(config.threads or os.cpu_count() or 1)
    device = usable(config.device)
    attend = attention_for(device, config.block_tokens, deterministic=config.deterministic)
    free_before = free_bytes(device)
    model = load(
        Path(config.model_path),
        attend=attend,
        device=device,
        kv_cache_dtype=config.kv_cache_dtype,
        deterministic=config.deterministic,
    )
    self_test(model, block_tokens=SMALL_BLOCK if device.type == "cpu" else config.block_tokens)
    if config.deterministic:
        steady_test(model)
    if config.torch_compile:
        from engine.compiled import compile_layers  # noqa: PLC0415 - a second of imports that few want

        compile_layers(model, block_tokens=config.block_tokens)
    card = card_of(model, config, room_of(model, config, free_before=free_before))
    runner = Runner(model, blocks=card.blocks, block_tokens=card.block_tokens, spare=int(config.cuda_graphs))
    if config.cuda_graphs and isinstance(attend, Varlen):
        runner.graphs = DecodeGraphs.record(
            model,
            runner.kv,
            attend,
            spare=card.blocks,
            most_sequences=config.max_num_seqs,
            most_tokens=card.max_model_len,
        )
    grammars = Compiler(Path(config.model_path), vocab_size=card.vocab_size, eos_ids=card.eos_ids)
    return EngineCore(config, card, runner, time.monotonic, grammars=grammars)


def card_of(model: PagedModel, config: EngineConfig, room: Room) -> ModelCard:
    """Return what this engine serves: the configuration joined with what model and machine allow."""
    window = model.config.max_position_embeddings
    max_model_len = config.max_model_len or window
    if max_model_len > window:
        raise ModelRefused(f"--max-model-len {max_model_len} is above the model's own window of {window} tokens.")
    blocks = plan_blocks(
        model.layout,
        room,
        block_tokens=config.block_tokens,
        max_model_len=max_model_len,
        window=config.max_model_len is None,
    )
    return ModelCard(
        name=config.model,
        weights=model.weights,
        max_model_len=max_model_len,
        vocab_size=model.config.vocab_size,
        eos_ids=model.eos_ids,
        block_tokens=config.block_tokens,
        blocks=blocks,
        kv_bytes=blocks * config.block_tokens * model.layout.bytes_per_token,
        kv_bytes_per_token=model.layout.bytes_per_token,
        dtype=str(model.dtype).removeprefix("torch."),
        kv_dtype=model.layout.name,
        device=str(model.device),
        deterministic=config.deterministic,
    )


def serve(core: EngineCore, socket: zmq.Socket[bytes]) -> None:
    """Work until standard input closes. Messages are taken in between steps, so an abort acts at the next step."""
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while True:
        patience_ms = 0 if core.busy or core.looking else COMPILING_POLL_MS if core.compiling else IDLE_POLL_MS
        ready = dict(poller.poll(patience_ms))
        if sys.stdin.fileno() in ready:  # closed: the parent is gone
            return
        while socket.poll(0):
            answer = core.handle(messages.decode_engine_bound(socket.recv()))
            if answer is not None:
                socket.send(messages.encode(answer))
        for event in (*core.step(), *core.look()):
            socket.send(messages.encode(event))


def main() -> int:
    """Load the model, say so, serve. Exit code 2 when the model is refused."""
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()  # its bar would be drawn into the log
    config = msgspec.json.decode(sys.stdin.readline(), type=EngineConfig)
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
    socket.connect(sys.argv[1])
    try:
        core = build_core(config)
    except Exception as error:
        known = isinstance(error, ModelRefused)
        if not known:
            log.exception("model_failed")
        reason = str(error) if known else f"{config.model_path} cannot be loaded ({type(error).__name__}): {error}"
        socket.send(messages.encode(StartFailed(reason=reason.splitlines()[0])))
        socket.close(linger=2_000)
        return 2
    gc.freeze()  # what was loaded stays; a full collection need not walk it again between two steps
    socket.send(messages.encode(core.card))
    log.info("engine_ready", model=core.card.name, blocks=core.card.blocks, kv_bytes=core.card.kv_bytes)
    serve(core, socket)
    core.grammars.close()
    socket.close(linger=0)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
