"""The documents say what is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from engine.operator_messages import EngineStats
from gateway.api import openai_chat
from gateway.cli import app
from gateway.config import SETTINGS
from gateway.errors import HTTP_CODES, VERDICTS
from gateway.metrics import Metrics
from gateway.nonces import RULES
from gateway.workers.room import Figures
from tests.gateway.scripted import CARD

ROOT = Path(__file__).parent.parent
PACKAGES = ("engine", "gateway", "prefix_store")
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
OPERATORS = (ROOT / "docs/operators.md").read_text()
CLIENTS = (ROOT / "docs/clients.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
CODE = re.compile(r'\bcode="(\w+)"')
RESPONSES_OWN = {"server_error", "rate_limit_exceeded"}  # words of a response that failed, not of an error
ROW = re.compile(r"^\| (?:`(--[\w-]+)`|-) \| `(KEEPWARM_\w+)` \| (?:`(\S+)`|-) \| (.*) \|$", re.MULTILINE)


def test_the_map_names_exactly_the_modules_that_exist() -> None:
    """ARCHITECTURE.md has one line for each module, in each package, and no other."""
    named = re.findall(r"^(\w+/[\w/]+\.py)  +\S", ARCHITECTURE, re.MULTILINE)
    exist = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert sorted(named) == sorted(exist)


def test_every_owner_exists() -> None:
    """Each module and class in the ownership table is there."""
    table = ARCHITECTURE.partition("## Who owns what")[2].partition("\n## ")[0]
    owners = re.findall(r"`((?:engine|gateway|prefix_store)\.[\w.]+)`", table)
    assert len(owners) > 8
    for owner in owners:
        module, _, name = re.sub(r"\.(?=[A-Z])", ":", owner).partition(":")
        source = ROOT / (module.replace(".", "/") + ".py")
        assert source.is_file(), owner
        assert not name or f"class {name}" in source.read_text(), owner


def test_the_settings_are_listed_as_they_are() -> None:
    """Flag, variable, default and help of each setting stand in the operators' table, in order."""
    told = ROW.findall(OPERATORS)
    assert told == [(row.flag, row.env, row.default or "", row.help) for row in SETTINGS.values()]


def test_every_command_is_in_the_readme() -> None:
    """Each command of the command line is named, and so is each word of the Makefile."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        assert re.search(rf"`{name}`|keepwarm {name}\b", README), name
    for word in re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE):
        assert word == "help" or f"make {word}" in README, word


def test_every_make_word_in_the_documents_exists() -> None:
    """No document names a word that the Makefile does not have."""
    words = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    for document in DOCUMENTS:
        told = set(re.findall(r"(?:^|`)make ([a-z]+)", document.read_text(), re.MULTILINE))
        assert told <= words, document.name


def test_every_metric_is_listed() -> None:
    """Each metric on the metrics page is in the operators' table, and the table has no other."""
    page = Metrics("model").exposition(EngineStats(), 0, card=CARD).decode()
    page += Figures().page()
    emitted = set(re.findall(r"^# HELP (\S+)", page, re.MULTILINE))
    assert set(re.findall(r"^\| `((?:keepwarm_|vllm:|gen_ai_)\w+)`", OPERATORS, re.MULTILINE)) == emitted


def test_every_error_code_is_listed() -> None:
    """Each word that a program may find in `error.code` has its status in the operators' table."""
    codes = {(verdict.status, verdict.code) for verdict in VERDICTS.values() if verdict.code}
    codes |= {(status, code) for status, code in HTTP_CODES.items() if code}
    listed = {(int(status), code) for status, code in re.findall(r"^\| (\d+) \| .*?`(\w+)`", OPERATORS, re.MULTILINE)}
    assert codes <= listed
    written = {code for path in ROOT.glob("gateway/**/*.py") for code in CODE.findall(path.read_text())}
    assert len(written) > 15
    assert written - RESPONSES_OWN <= {code for _, code in listed}


def test_every_address_is_listed() -> None:
    """Each address of the APIs stands in the operators' row and in the clients' table, and so does each rule's name."""
    wiring = (ROOT / "gateway/app.py").read_text()
    addresses = {address.replace(":.+}", "}") for address in re.findall(r'"(/v1/[^"]+)"', wiring)}
    assert len(addresses) == 9
    for text in (OPERATORS, CLIENTS):
        assert {f"{address}`" for address in addresses} <= set(re.findall(r"/v1/[\w/{}]+`", text))
    assert {rule.name for rule in RULES} == set(re.findall(r"^\| `([a-z-]+)` \| Claude", CLIENTS, re.MULTILINE))


def test_the_curl_of_the_readme_is_a_request() -> None:
    """The body that the README sends is accepted, and asks for the default model at the default address."""
    block = re.search(r"^curl .*?\n```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    words = shlex.split(block[0].removesuffix("```").replace("\\\n", " "))
    request = openai_chat.parse(words[words.index("-d") + 1].encode())
    assert request.model == SETTINGS["model"].default
    assert f"http://{SETTINGS['host'].default}:{SETTINGS['port'].default}/v1/chat/completions" in words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    """A relative link names a file of the repository."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_every_file_in_the_readme_tree_exists() -> None:
    """The tree at the README's end names files and folders that are there."""
    tree = README.partition("## What is where")[2].partition("\n## ")[0]
    for name in re.findall(r"^(\S+)  +\S", tree, re.MULTILINE):
        assert (ROOT / name).exists(), name
