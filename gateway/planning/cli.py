"""`keepwarm plan`: what a model's keys and values cost and what fits. Options and exit codes.

Rule: what a person can put right is one line on stderr and exit code 2.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

Given = str | None


def plan(
    model: Annotated[str, typer.Argument(help="A known name, a config.json, a folder that has one, or a hub id.")],
    *,
    dtype: Annotated[
        str, typer.Option(help="Of the weights: auto (the config's own), float32, bfloat16, float16.")
    ] = "auto",
    kv_cache_dtype: Annotated[
        str, typer.Option(help="Of K and V: auto (as the weights), a dtype, fp8, int8.")
    ] = "auto",
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence, prompt and answer together.")] = None,
    prefix_tokens: Annotated[int | None, typer.Option(help="Tokens of a prefix that is kept.")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens of a block.")] = 16,
    step_tokens: Annotated[int, typer.Option(help="Prompt tokens in one forward pass.")] = 1024,
    kv_bytes: Annotated[Given, typer.Option(help="Memory for K and V, e.g. 4GiB.")] = None,
    gpu_memory: Annotated[Given, typer.Option(help="Memory of the device, e.g. 80GB; weights are taken off.")] = None,
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of --gpu-memory that is used.")] = 0.92,
    weight_bytes: Annotated[Given, typer.Option(help="Size of the weights, where it is another than counted.")] = None,
    rate: Annotated[float, typer.Option(help="Requests a second.")] = 1.0,
    new_share: Annotated[float, typer.Option(help="Share of the requests that bring a prefix not seen before.")] = 0.1,
    used_for: Annotated[
        Given, typer.Option(help="How long a prefix goes on being read before it idles, e.g. 10m.")
    ] = None,
    promise_budget: Annotated[float, typer.Option(help="Share of the pool that promises may take.")] = 0.5,
    device: Annotated[
        Given, typer.Option(help="A machine by name, for speed and memory; a wrong one lists all.")
    ] = None,
    flops: Annotated[Given, typer.Option(help="Operations a second, e.g. 989T.")] = None,
    bandwidth: Annotated[Given, typer.Option(help="Bytes a second from memory, e.g. 3.35TB.")] = None,
    tensor_parallel: Annotated[int, typer.Option(help="Devices that share one model.")] = 1,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the plan.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Reckon from a model's configuration alone what its K and V cost, what fits, and how fast it can be."""
    from gateway.errors import ConfigError  # noqa: PLC0415 - only this command needs them
    from gateway.planning import finding, plan, report, wanted  # noqa: PLC0415
    from gateway.planning.errors import Unplannable  # noqa: PLC0415
    from gateway.planning.picture import svg  # noqa: PLC0415
    from gateway.telling import save  # noqa: PLC0415

    try:
        options = wanted.Wanted(
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            length=length,
            prefix_tokens=prefix_tokens,
            block_tokens=block_size,
            step_tokens=step_tokens,
            kv_bytes=wanted.size("--kv-bytes", kv_bytes),
            memory=wanted.size("--gpu-memory", gpu_memory),
            utilization=gpu_memory_utilization,
            weight_bytes=wanted.size("--weight-bytes", weight_bytes),
            rate=rate,
            new_share=new_share,
            used_for_s=wanted.span("--used-for", used_for),
            promise_budget=promise_budget,
            device=device,
            flops=wanted.speed("--flops", flops),
            bandwidth=wanted.speed("--bandwidth", bandwidth),
            tensor_parallel=tensor_parallel,
        )
        console = Console(stderr=True)
        with console.status(f"Reading {escape(model)}") if console.is_terminal else nullcontext():
            found = finding.find(model)
        told = plan.planned(found, options)
        if picture is not None:
            save(svg(told), picture)
    except (ConfigError, Unplannable) as error:
        typer.echo(f"keepwarm: {error}", err=True)
        raise typer.Exit(2) from error
    report.show(told, as_json=json)
