"""Settings into an engine: the model found, and how its process is set up. Equal for all commands that start one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engine.config import EngineConfig, device_block_tokens
from gateway.config import Settings, cache_dir
from gateway.errors import ConfigError

log = structlog.get_logger("gateway")


def engine_config(settings: Settings, name: str, folder: Path) -> EngineConfig:
    """Return how the engine process of a model that was found is set up, on the first device of several."""
    device = (settings.devices or (settings.device,))[0]
    return EngineConfig(
        model=name,
        model_path=str(folder),
        device=device,
        deterministic=settings.deterministic,
        block_tokens=settings.block_size or device_block_tokens(device),
        kv_bytes=settings.kv_bytes,
        kv_cache_dtype=settings.kv_cache_dtype,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_model_len=settings.max_model_len,
        step_tokens=settings.step_tokens,
        inter_token_s=settings.inter_token,
        torch_compile=settings.torch_compile,
        cuda_graphs=settings.cuda_graphs and device.startswith("cuda"),
        max_num_seqs=settings.max_num_seqs,
        max_waiting=settings.max_waiting,
        queue_timeout_s=settings.queue_timeout,
    )


def find_model(settings: Settings, environ: Mapping[str, str]) -> tuple[str, Path]:
    """Name and folder of the model, converted or downloaded first where needed. Raises ConfigError."""
    from engine.errors import ModelRefused  # noqa: PLC0415 - not every command has an engine
    from engine.weights import resolve_in_subprocess  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"Looking for {settings.model}", total=None)

        def show(what: str, done: int, total: int) -> None:
            if not console.is_terminal and done == 0:
                log.info("preparing_model", step=what)
            bar.update(task, description=what, completed=done, total=total or None)

        try:
            found = resolve_in_subprocess(settings.model, cache_dir(settings, environ), show)
        except ModelRefused as refusal:
            raise ConfigError(f"--model {settings.model}: {refusal}") from refusal
    return found.name, Path(found.path)
