"""Names in place of keys, for one developer's machine: who is whom, and where they are refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.config import read_settings
from gateway.config_file import read_configuration
from gateway.config_values import parse_tenants
from gateway.errors import ConfigError
from gateway.keyring import Identity, Key, Keyring

OPEN = Keyring((), ("support", "coding"))
EVERYBODY = Identity(key_id=None, tenant="default")
SUPPORT = Identity(key_id="support", tenant="support")
CODING = Identity(key_id="coding", tenant="coding")


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "who"),
    [
        ("Bearer support", None, SUPPORT),
        ("bearer  coding ", None, CODING),
        (None, "support", SUPPORT),
        ("Bearer support", "coding", SUPPORT),
        ("Bearer unused", "coding", EVERYBODY),
        (None, None, EVERYBODY),
        (None, "", EVERYBODY),
        ("Bearer", None, EVERYBODY),
        ("Basic support", None, EVERYBODY),
        ("Bearer Support", None, EVERYBODY),
        (None, "default", EVERYBODY),
        (None, "reports", EVERYBODY),
    ],
)
def test_a_name_in_place_of_a_key_says_who(authorization: str | None, x_api_key: str | None, who: Identity) -> None:
    """A client that sends exactly one of the names is that tenant, and every other client is everybody."""
    assert OPEN.identify(authorization, x_api_key) == who


def test_a_ring_knows_every_tenant_and_id() -> None:
    """The tenants and ids that callers can have are those of the keys, or everybody and the names."""
    digest = hashlib.sha256(b"k").hexdigest()
    keys = (Key(id="two", sha256=digest, tenant="b"), Key(id="one", sha256="0" * 64, tenant="a"))

    assert (OPEN.tenants, OPEN.ids) == (("coding", "default", "support"), ("support", "coding"))
    assert (Keyring(()).tenants, Keyring(()).ids) == (("default",), ())
    assert (Keyring(keys).tenants, Keyring(keys).ids) == (("a", "b"), ("two", "one"))


def test_names_beside_keys_are_refused() -> None:
    """A ring with keys takes no names in their place."""
    with pytest.raises(ValueError, match="open_tenants"):
        Keyring((Key(id="one", sha256="0" * 64, tenant="a"),), ("support",))


@pytest.mark.parametrize(("text", "names"), [("", ()), ("a", ("a",)), (" b , a,", ("b", "a"))])
def test_names_are_read(text: str, names: tuple[str, ...]) -> None:
    """Names stand between commas and keep their order."""
    assert parse_tenants(text) == names


@pytest.mark.parametrize(
    ("text", "said"), [("a b", "'a b' is not a name"), ("a,default", "'default'"), ("a,b,a", "'a' stands twice")]
)
def test_names_that_cannot_be_are_refused(text: str, said: str) -> None:
    """What is no name, everybody's own name, and a name that stands twice are refused under the flag."""
    with pytest.raises(ConfigError, match="--open-tenants: .*" + said):
        read_settings({"open_tenants": text}, {})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_names_go_on_loopback(host: str) -> None:
    """A listener that only this machine reaches takes names."""
    assert read_settings({"host": host}, {"KEEPWARM_OPEN_TENANTS": "a"}).open_tenants == ("a",)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "gateway.example"])
def test_names_beyond_loopback_are_refused(host: str) -> None:
    """A listener that other machines reach is refused at the start, and the line says what to do."""
    with pytest.raises(ConfigError, match=r"--open-tenants .*--host .*\[\[keys\]\]"):
        read_settings({"host": host, "open_tenants": "a"}, {})


def test_names_beside_a_file_with_keys_are_refused(tmp_path: Path) -> None:
    """A configuration with keys and names at once is refused, naming the file."""
    file = tmp_path / "keepwarm.toml"
    file.write_text(f'[[keys]]\nid = "one"\nsha256 = "{"0" * 64}"\ntenant = "a"\n')

    with pytest.raises(ConfigError, match=r"--open-tenants: .*keepwarm\.toml has \[\[keys\]\]"):
        read_configuration({"config": str(file), "open_tenants": "a"}, {})
