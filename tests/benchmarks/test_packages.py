"""Rivals' environments: when they are made, and what is done to a package that pip does not do."""

from __future__ import annotations

import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from benchmarks.packages import DONE, Package, call, installed
from benchmarks.peers.install import also_known_as, unpack

RIVAL = Package(name="a-rival", version="1.2", extra="[serving]")


def test_a_finished_installation_is_not_repeated(tmp_path: Path) -> None:
    """A folder that says it is complete is taken as it is."""
    home = tmp_path / "a-rival-1.2"
    home.mkdir()
    (home / DONE).touch()
    assert installed(RIVAL, tmp_path) == home / "bin"
    assert RIVAL.requirement == "a-rival[serving]==1.2"


def test_an_installation_that_was_broken_off_is_made_anew(tmp_path: Path) -> None:
    """What lay there is gone, but for the folder that is kept; the mark that it is complete comes last."""
    home = tmp_path / "a-rival-1.2"
    for folder in ("build", "lib"):
        (home / folder).mkdir(parents=True)
        (home / folder / "left").touch()
    with pytest.raises(RuntimeError, match="failed"):
        installed(RIVAL, tmp_path, tools=["--no-such-option"], kept={"build"})
    assert [(home / name).exists() for name in ("build/left", "lib/left", "bin/python", DONE)] == [
        True,
        False,
        True,
        False,
    ]


def test_a_command_that_fails_is_quoted() -> None:
    """Its last words stand in the error."""
    with pytest.raises(RuntimeError, match="failed: no such luck"):
        call([sys.executable, "-c", "import sys; sys.exit('no such luck')"])


def test_a_command_gets_what_it_is_told() -> None:
    """A variable of the environment is set beside ours."""
    call([sys.executable, "-c", "import os; assert os.environ['A'] == 'b' and os.environ['PATH']"], A="b")


def test_a_package_is_found_by_its_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name and version are the second ones, prose that looks like fields is left, and commands are the same."""
    own = tmp_path / "a_rival-1.2.dist-info"
    own.mkdir()
    (own / "METADATA").write_text("Metadata-Version: 2.4\nName: a-rival\nVersion: 1.2\n\nName: nobody\n")
    (own / "entry_points.txt").write_text("[console_scripts]\nrival = a.b:main\n")
    also_known_as(tmp_path, RIVAL, "rival", "1.2+cpu")
    monkeypatch.syspath_prepend(tmp_path)
    found = distribution("rival")
    assert (found.version, [each.name for each in found.entry_points]) == ("1.2+cpu", ["rival"])
    assert (found.read_text("METADATA") or "").endswith("\nName: nobody\n")


def test_one_folder_is_taken_out_of_a_source_package(tmp_path: Path) -> None:
    """What lies under the folder lies under the target, and nothing else does."""
    source = tmp_path / "a-rival-1.2"
    (source / "vendor" / "engine" / "tools").mkdir(parents=True)
    (source / "vendor" / "engine" / "tools" / "main.c").write_text("int main;")
    (source / "setup.py").write_text("")
    archive = tmp_path / "a-rival-1.2.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, "a-rival-1.2")
    unpack(archive, "vendor/engine", tmp_path / "out")
    files = [path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files == [Path("tools/main.c")]


def test_a_source_package_without_the_folder_is_an_error(tmp_path: Path) -> None:
    """The error names the package and the folder."""
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(Path(__file__), "a/test.py")
    with pytest.raises(RuntimeError, match=r"a\.tar\.gz has no vendor/engine"):
        unpack(archive, "vendor/engine", tmp_path / "out")
