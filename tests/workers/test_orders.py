"""What workers are told at their start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.workers.orders import Orders

FILE = '[server]\ndrain = "3s"\n[[upstreams]]\nname = "{}"\nkind = "vllm"\nbase_url = "http://h/v1"\nmodels = ["m"]\n'


def orders(file: Path, reloaded: str | None) -> Orders:
    """Orders of a gateway with that file, which need not be there any more."""
    flags: dict[str, str | None] = {"config": str(file), "engine": "off", "workers": "2", "admin_host": "0.0.0.0"}
    return Orders(
        number=1,
        flags=flags,
        file=FILE.format("a"),
        reloaded=reloaded,
        drained=(),
        secret="00",
        serving=3,
        private=4,
    )


@pytest.mark.parametrize(("reloaded", "name"), [(None, "a"), (FILE.replace("3s", "9s").format("b"), "b")])
def test_a_worker_takes_the_newest_upstreams_and_the_first_of_all_else(
    reloaded: str | None, name: str, tmp_path: Path
) -> None:
    """A worker that begins later has the upstreams that the others have, and the settings that they started with."""
    told = orders(tmp_path / "gone.toml", reloaded).configuration({"KEEPWARM_ADMIN_KEY": "k"})
    assert [one.name for one in told.file.upstreams] == [name]
    assert (told.settings.drain, told.settings.workers, told.settings.admin_key) == (3.0, 2, None)


def test_an_engine_has_one_worker() -> None:
    """With the bundled engine more than one is refused in a line that says why and what to do."""
    with pytest.raises(ConfigError) as refusal:
        Settings(workers=4)
    assert str(refusal.value) == (
        "--workers 4: one engine process belongs to one gateway process; leave --workers at 1, "
        "or run gateways with --no-engine and several workers in front of several `keepwarm serve`"
    )
