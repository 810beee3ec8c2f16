"""The walls between the packages stand."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
SEEN_BY_GATEWAY = {"client", "config", "errors", "messages", "operator_messages", "weights", "wire"}


def contract(name: str) -> dict[str, list[str]]:
    """Return the contract with this id."""
    (found,) = (entry for entry in CONTRACTS if entry["id"] == name)
    return dict(found)


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter at the root of the repository."""
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_contract_is_kept() -> None:
    """import-linter finds no import that crosses a border."""
    done = python("from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])")
    assert done.returncode == 0, done.stdout


def test_every_engine_module_is_on_one_side_of_the_door() -> None:
    """A module added to the engine is either named in the `door` contract or meant for the gateway."""
    modules = {path.stem for path in (ROOT / "engine").iterdir() if not path.name.startswith("_")}
    shut = {name.removeprefix("engine.") for name in contract("door")["forbidden_modules"]}
    assert shut == modules - SEEN_BY_GATEWAY


@pytest.mark.parametrize("module", contract("decisions")["source_modules"])
def test_decisions_need_no_tensors(module: str) -> None:
    """Importing a deciding module of the engine leaves torch, transformers and numpy unloaded."""
    done = python(
        f"import sys, {module}; sys.exit(str(sorted({{'torch', 'transformers', 'numpy'}} & set(sys.modules))))"
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("module", ["gateway.app", "gateway.cli", "gateway.backends.bundled", "engine.weights"])
def test_the_gateway_process_has_no_torch(module: str) -> None:
    """Importing the gateway, with the engine's client and the tokenizer, leaves torch unloaded."""
    done = python(f"import sys, {module}; sys.exit(str('torch' in sys.modules))")
    assert done.stderr.strip() == "False"


@pytest.mark.parametrize("module", ["chain", "radix", "retention"])
def test_the_store_stands_alone(module: str) -> None:
    """Importing a module of the store loads no network, no tensors and no other package of ours."""
    others = {"aiohttp", "engine", "gateway", "redis", "torch", "transformers", "zmq"}
    done = python(f"import sys, prefix_store.{module}; sys.exit(str(sorted({others} & set(sys.modules))))")
    assert done.stderr.strip() == "[]"
