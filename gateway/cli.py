"""The command line: `keepwarm serve`, `demo`, `doctor`, `advise`, `simulate`, `plan`, `eval`, `config`, `version`.

Every option comes from the table in `gateway.config`. Rule: what a person can put right is said in one line on stderr
with exit code 2; a traceback means a bug of ours.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from typer.core import TyperCommand

from gateway.advice.cli import advise
from gateway.chosen import engine_config, find_model
from gateway.config import SETTINGS, Settings
from gateway.config_file import Configuration, read_configuration
from gateway.errors import ConfigError
from gateway.evaluation.cli import evaluation
from gateway.logs import set_up_logs
from gateway.operator_cli import HERE, operators
from gateway.options import option as _option
from gateway.planning.cli import plan
from gateway.simulation.cli import simulate

if TYPE_CHECKING:
    from gateway.backends import Backend
    from gateway.prompt import Renderer

app = typer.Typer(
    name="keepwarm",
    help="A prompt-prefix caching gateway: the second turn is cheaper, and the answer says why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

config_app = typer.Typer(name="config", help="The configuration file.", no_args_is_help=True)
app.add_typer(config_app)
app.add_typer(operators)
app.add_typer(evaluation)
app.command()(advise)
app.command()(simulate)
app.command()(plan)


Given = str | None


class _Bare(TyperCommand):
    """A command whose `--deterministic` may stand alone, and then means on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give the bare option its value, then parse as always."""
        flag = SETTINGS["deterministic"].flag
        pairs = zip(args, [*args[1:], "-"], strict=True)
        return super().parse_args(
            ctx, [f"{flag}=on" if one == flag and after[:1] == "-" else one for one, after in pairs]
        )


@app.command(cls=_Bare)
def serve(
    host: Annotated[Given, _option("host")] = None,
    port: Annotated[Given, _option("port")] = None,
    admin_host: Annotated[Given, _option("admin_host")] = None,
    admin_port: Annotated[Given, _option("admin_port")] = None,
    engine: Annotated[Given, _option("engine")] = None,
    workers: Annotated[Given, _option("workers")] = None,
    model: Annotated[Given, _option("model")] = None,
    device: Annotated[Given, _option("device")] = None,
    devices: Annotated[Given, _option("devices")] = None,
    deterministic: Annotated[Given, _option("deterministic")] = None,
    ttl: Annotated[Given, _option("ttl")] = None,
    kv_bytes: Annotated[Given, _option("kv_bytes")] = None,
    kv_cache_dtype: Annotated[Given, _option("kv_cache_dtype")] = None,
    gpu_memory_utilization: Annotated[Given, _option("gpu_memory_utilization")] = None,
    block_size: Annotated[Given, _option("block_size")] = None,
    max_model_len: Annotated[Given, _option("max_model_len")] = None,
    max_num_seqs: Annotated[Given, _option("max_num_seqs")] = None,
    max_waiting: Annotated[Given, _option("max_waiting")] = None,
    queue_timeout: Annotated[Given, _option("queue_timeout")] = None,
    step_tokens: Annotated[Given, _option("step_tokens")] = None,
    inter_token: Annotated[Given, _option("inter_token")] = None,
    cuda_graphs: Annotated[Given, _option("cuda_graphs")] = None,
    torch_compile: Annotated[Given, _option("torch_compile")] = None,
    max_body: Annotated[Given, _option("max_body")] = None,
    text_memory: Annotated[Given, _option("text_memory")] = None,
    stream_ping: Annotated[Given, _option("stream_ping")] = None,
    drain: Annotated[Given, _option("drain")] = None,
    cors_origins: Annotated[Given, _option("cors_origins")] = None,
    open_tenants: Annotated[Given, _option("open_tenants")] = None,
    chat_template: Annotated[Given, _option("chat_template")] = None,
    tool_format: Annotated[Given, _option("tool_format")] = None,
    canonical_json: Annotated[Given, _option("canonical_json")] = None,
    normalise_telemetry: Annotated[Given, _option("normalise_telemetry")] = None,
    recent_requests: Annotated[Given, _option("recent_requests")] = None,
    compat_metrics: Annotated[Given, _option("compat_metrics")] = None,
    metrics_tenants: Annotated[Given, _option("metrics_tenants")] = None,
    otlp_endpoint: Annotated[Given, _option("otlp_endpoint")] = None,
    traffic_log: Annotated[Given, _option("traffic_log")] = None,
    config: Annotated[Given, _option("config")] = None,
    redis: Annotated[Given, _option("redis")] = None,
    ledger_retention: Annotated[Given, _option("ledger_retention")] = None,
    *,
    no_engine: Annotated[bool, typer.Option("--no-engine", help="The same as --engine off.")] = False,
) -> None:
    """Serve a model, upstreams, or both. Set KEEPWARM_ADMIN_KEY to open the admin port beyond this machine."""
    flags: dict[str, Any] = dict(locals())
    if flags.pop("no_engine"):
        flags["engine"] = "off"
    try:
        _serve(read_configuration(flags, os.environ), flags)
    except ConfigError as error:
        _give_up(str(error))


@app.command()
def demo(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
    url: Annotated[
        Given, typer.Option(help="Server to use; without it, the one on port 8000, or one started for the demo.")
    ] = None,
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Play an hour of made-up traffic of three tenants, for the page.")
    ] = False,
    minutes: Annotated[float, typer.Option(min=0.05, max=60.0, help="How long that hour takes.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Equal seeds play equal hours.")] = 7,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the policies of the traffic in force.")] = False,
    admin_url: Annotated[
        str, typer.Option(help="Admin port of the server that gets the traffic; its key is KEEPWARM_ADMIN_KEY.")
    ] = HERE,
) -> None:
    """Show on a real conversation what the cache saves, or fill the page with an hour of traffic."""
    from gateway import demo as show  # noqa: PLC0415 - only this command needs it

    if minutes != minutes:  # noqa: PLR0124 - not a number is in no range
        _give_up("--minutes: expected a number from 0.05 to 60")
    if traffic:
        raise typer.Exit(
            show.run_traffic(url=url, admin_url=admin_url, minutes=minutes, seed=seed, keep=keep, as_json=json)
        )
    raise typer.Exit(show.run(url=url, as_json=json))


@app.command()
def doctor(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[A.json] [B.json]", help="Request bodies, the earlier one first; - is stdin."),
    ] = None,
    *,
    log: Annotated[Given, typer.Option("--log", metavar="FILE", help="Log with a body a line, or - for stdin.")] = None,
    rate: Annotated[Given, typer.Option(help="How often the application asks, such as 1000/h, to count a day.")] = None,
    api: Annotated[Given, typer.Option(help="chat, responses or anthropic, where the fields do not tell.")] = None,
    model: Annotated[Given, _option("model")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Find what breaks the prefix: in one request, between two, or over a log. Exit code 1 if something does."""
    from gateway.doctor import command  # noqa: PLC0415 - only this command needs it
    from gateway.doctor.errors import Unusable  # noqa: PLC0415

    if len(files or ()) > 2:  # noqa: PLR2004 - the earlier and the later one
        _give_up("doctor compares two bodies; for more, write them to a log, one a line, and use --log")
    try:
        code = command.run(
            files or [], log=log, rate=rate, api=api, as_json=json, renderer=lambda: _renderer({"model": model})
        )
    except (Unusable, ConfigError) as error:
        _give_up(str(error))
    raise typer.Exit(code)


@config_app.command("check")
def config_check(
    file: Annotated[
        Path | None, typer.Argument(help="File to check; the one in KEEPWARM_CONFIG when not given.")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Check a configuration file and show what it comes to, and where each setting is from."""
    from gateway import config_check as checking  # noqa: PLC0415 - only this command needs it

    try:
        checked = checking.check(file, os.environ)
    except ConfigError as error:
        _give_up(str(error))
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(checked)).decode())
    else:
        checking.show(checked, Console())


@app.command()
def version() -> None:
    """Print the version."""
    try:
        typer.echo(importlib.metadata.version("keepwarm"))
    except importlib.metadata.PackageNotFoundError:
        _give_up("not installed, only lying here: run `make setup` first")


def main() -> None:
    """Entry point of the console script."""
    app()


def _serve(configuration: Configuration, flags: dict[str, Any]) -> None:
    from gateway import listeners  # noqa: PLC0415 - `--help` and wrong settings answer without these
    from gateway.opening import open_house  # noqa: PLC0415
    from gateway.relay.upstream import require_keys  # noqa: PLC0415

    settings, file = configuration.settings, configuration.file
    require_keys(file.upstreams, os.environ)
    if not settings.engine and not file.upstreams:
        raise ConfigError("--engine off: nothing would be served; name [[upstreams]] in the file of --config")
    set_up_logs()
    if settings.workers > 1:
        from gateway.workers import parent  # noqa: PLC0415

        parent.serve(configuration, flags)
        return
    with (
        listeners.bind(settings.host, settings.port, "--port") as serving,
        listeners.bind(settings.admin_host, settings.admin_port, "--admin-port") as admin,
    ):
        backend, renderer, block_tokens = _engine(settings)

        async def run() -> None:
            built = await open_house(configuration, backend, renderer, block_tokens=block_tokens)
            await listeners.serve(built, serving, admin)

        asyncio.run(run())


def _engine(settings: Settings) -> tuple[Backend, Renderer | None, int]:
    """Return who computes, who renders for it and the tokens of a block; without an engine nobody does."""
    from engine.config import EngineConfig  # noqa: PLC0415 - only `serve` needs it

    if not settings.engine:
        from gateway.backends.absent import Absent  # noqa: PLC0415

        return Absent(), None, EngineConfig(model="", model_path="").block_tokens
    from gateway.backends.several import engines_on  # noqa: PLC0415
    from gateway.prompt import Renderer  # noqa: PLC0415

    name, folder = find_model(settings, os.environ)
    config = engine_config(settings, name, folder)
    renderer = Renderer.load(
        folder,
        template=settings.chat_template,
        tool_format=settings.tool_format,
        canonical=settings.canonical_json,
        normalises=settings.normalise_telemetry,
        text_bytes=settings.text_memory,
    )
    return engines_on(settings.devices or (settings.device,), config), renderer, config.block_tokens


def _renderer(flags: dict[str, Any]) -> Renderer:
    """Return the prompts of the model that `serve` would take; a folder with no more than a tokenizer will do."""
    from gateway.prompt import Renderer  # noqa: PLC0415 - what is slow to import comes once the input is read

    settings = read_configuration(flags, os.environ).settings
    folder = Path(settings.model).expanduser()
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        _, folder = find_model(settings, os.environ)
    return Renderer.load(
        folder,
        template=settings.chat_template,
        tool_format=settings.tool_format,
        canonical=settings.canonical_json,
        normalises=settings.normalise_telemetry,
    )


def _give_up(message: str) -> NoReturn:
    typer.echo(f"keepwarm: {message}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    main()
