"""`keepwarm eval needle`: what a KV dtype does to answers from long prompts. Options and exit codes.

Rule: what a person can put right is one line on stderr and exit code 2; a dtype that kept less than `--fail-under` is
exit code 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import structlog
import typer

from gateway.errors import ConfigError
from gateway.options import option

Given = str | None

INTERRUPTED = 130  # as shells count a program that Ctrl-C ended

evaluation = typer.Typer(name="eval", help="What a way of keeping K and V does to answers.", no_args_is_help=True)


@evaluation.callback()
def chosen() -> None:
    """Measure what a way of keeping K and V does to answers."""


@evaluation.command()
def needle(
    *,
    kv_cache_dtype: Annotated[
        list[str] | None,
        typer.Option(help="What to compare, the first with the others: several, or several between commas."),
    ] = None,
    lengths: Annotated[
        list[str] | None,
        typer.Option(help="Tokens of prompt and answer, such as 512,1k; to 4k as far as the window goes."),
    ] = None,
    depths: Annotated[
        list[str] | None, typer.Option(help="Where facts stand, in percent; 0,25,50,75,100 where not given.")
    ] = None,
    facts: Annotated[int, typer.Option(help="Facts at each depth of each length.")] = 2,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text to read and to hide facts in; one is bundled.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds hide equal facts in equal places.")] = 0,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit code 1 if a dtype keeps less than this of the first, such as 0.95.")
    ] = None,
    model: Annotated[Given, option("model")] = None,
    device: Annotated[Given, option("device")] = None,
    kv_bytes: Annotated[Given, option("kv_bytes")] = None,
    max_model_len: Annotated[Given, option("max_model_len")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw length by depth.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Hide facts in long prompts, ask for them and read a long text, once for each KV dtype; show what each loses."""
    from gateway.chosen import engine_config, find_model  # noqa: PLC0415 - only this command needs them
    from gateway.config_file import read_configuration  # noqa: PLC0415
    from gateway.evaluation import command, reading, report, wanted  # noqa: PLC0415
    from gateway.evaluation.errors import Unmeasurable  # noqa: PLC0415
    from gateway.evaluation.picture import svg  # noqa: PLC0415
    from gateway.evaluation.prompts import Prompts  # noqa: PLC0415
    from gateway.prompt import Renderer  # noqa: PLC0415
    from gateway.telling import save  # noqa: PLC0415

    flags = {"model": model, "device": device, "kv_bytes": kv_bytes, "max_model_len": max_model_len}
    try:
        options = wanted.Wanted(
            dtypes=wanted.dtypes_of(kv_cache_dtype or ()),
            lengths=wanted.lengths_of(lengths or ()),
            depths=wanted.depths_of(depths or ()),
            facts=facts,
            seed=seed,
            fail_under=fail_under,
        )
        read = reading.read_text(text)
        settings = read_configuration(flags, os.environ).settings
        if picture is not None:
            _check(picture)
        name, folder = find_model(settings, os.environ)
        prompts = Prompts(Renderer.load(folder, template=settings.chat_template))
        with _hushed(), command.progress(f"Looking at {name}") as step:
            config = engine_config(settings, name, folder)
            told = asyncio.run(command.measured(config, options, prompts, read, step))
        report.show(told, as_json=json)
        if picture is not None:
            save(svg(told), picture)
    except (ConfigError, Unmeasurable) as error:
        typer.echo(f"keepwarm: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("keepwarm: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if told["failed"]:
        raise typer.Exit(1)


def _check(picture: Path) -> None:
    """Refuse a picture that could not be written: before minutes of work, not after them."""
    if picture.is_dir() or not os.access(picture if picture.exists() else picture.parent, os.W_OK):
        raise ConfigError(f"--picture {picture}: no file can be written there")


@contextmanager
def _hushed() -> Iterator[None]:
    """Leave the engine's coming and going out of the log: what came of it is told in the table."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
